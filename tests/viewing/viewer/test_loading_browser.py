"""What a page of the viewer shows until its first image, and the contrast of its texts."""

import json

import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, open_controls, open_tab
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.errors import ArgumentError
from tsplat.viewing.viewer import Viewer

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

COVER = "document.getElementById('tsplat-cover')"
NOTE_STAGES = f"""
window.noted = [];
setInterval(() => {{
  const text = {COVER}?.children[0].textContent ?? "";
  if (text !== noted.at(-1)?.[0]) noted.push([text, document.querySelector('canvas[data-engine]')?.clientWidth]);
}}, 10);
"""
CONTRASTS = """
(() => {
  const parse = (color) => [...color.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3]));
  const luminance = (color) => {
    const [r, g, b] = color.map((v) => (v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = {};
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode()); ) {
    const element = node.parentElement, style = getComputedStyle(element);
    if (!node.textContent.trim() || !element.offsetWidth || style.visibility !== "visible") continue;
    const parents = [];
    for (let parent = element; parent; parent = parent.parentElement) parents.unshift(getComputedStyle(parent));
    const background = parents.reduce((below, parent) => over(parse(parent.backgroundColor), below), [20, 20, 20]);
    const color = over(parse(style.color), background);
    const [dark, light] = [luminance(color), luminance(background)].sort((a, b) => a - b);
    found[node.textContent.trim()] = (light + 0.05) / (dark + 0.05);
  }
  return JSON.stringify(found);
})()
"""


@pytest.mark.parametrize("size", SIZES)
def test_page_is_covered_until_its_first_image(size):
    viewer = Viewer([viewed("<b>one</b>.ply")], port=19490)
    try:
        with open_page("about:blank", **SIZES[size]) as page:
            page.call("Page.enable")
            page.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE_STAGES)
            page.call("Page.navigate", url=viewer.url)
            is_noted = f"Boolean(document.body) && !{COVER} && noted.length > 1 && noted.at(-1)[0] === ''"
            wait_for(lambda: page.evaluate(is_noted), 120)
            texts, widths = zip(*json.loads(page.evaluate("JSON.stringify(noted)")), strict=True)
            texts = [text for text in texts if text]
            assert texts[0] == "Loading the viewer …"
            assert set(texts) <= {"Loading the viewer …", "Connecting …", "Loading <b>one</b>.ply …"}
            # The image has its size by now, beside the controls or, on a phone, above the bar that opens them.
            canvas = "document.querySelector('canvas[data-engine]')"
            assert widths[-1] == page.evaluate(f"{canvas}.clientWidth")
            assert (widths[-1] == SIZES[size]["width"]) == (size == "phone")
            wait_for(lambda: page.screenshot()[:300, :300].std() > 10, 10)
            open_controls(page)
            for tab in ("View", "Crop", "Video"):
                open_tab(page, tab)
                found = json.loads(page.evaluate(CONTRASTS))
                assert len(found) > 5 and not {text for text, contrast in found.items() if contrast < 4.5}, found
            assert page.errors == []
    finally:
        viewer.close()


def test_reason_why_there_is_no_image_is_not_covered():
    model = viewed()

    def fail(*_arguments, **_options):
        raise ArgumentError("the model is broken")

    model.renderer.render = fail
    viewer = Viewer([model], port=19590)
    try:
        with open_page(viewer.url, **SIZES["desktop"]) as page:
            wait_for(lambda: page.evaluate("document.body?.innerText.includes('the model is broken')"), 120)
            wait_for(lambda: page.evaluate(f"{COVER} === null"), 60)
    finally:
        viewer.close()
