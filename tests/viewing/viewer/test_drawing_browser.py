"""The viewer in a web browser that draws the model itself, by the renderer of exported pages."""

import pytest
import torch

from tests.support.browser import CHROMIUM, open_page
from tests.support.paths import MODELS
from tests.support.viewer_pages import choose, drag, until
from tests.support.viewer_sessions import viewed
from tests.viewing.viewer.test_browser import FULL_SIZE, UNCOVERED, psnr
from tsplat.viewing.viewer import Viewer, open_viewed

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

WITH_GPU = """
const get = WebGL2RenderingContext.prototype.getParameter;
WebGL2RenderingContext.prototype.getParameter = function (name) {
  return name === 0x9246 ? "A GPU" : get.call(this, name);
};
"""
"""Gives Chromium's software renderer the name of a GPU."""
LOADING = "document.getElementById('tsplat-loading')"


def shown_by(session):
    """The server's image of what the page shows."""
    return session._render(session._request(), None).image


@pytest.mark.skipif(not MODELS.is_dir(), reason="needs the test models")
def test_browser_draws_what_the_server_renders():
    model = open_viewed(MODELS / "playbot_3.from_sog.ply", torch.device("cpu"), warn=pytest.fail)
    viewer = Viewer([model], port=19480, draw="browser")
    found = []

    def matches(image):
        found.append(psnr(image, shown_by(session)))
        return found[-1] > 40

    try:
        with open_page("about:blank", 800, 600) as page:
            page.call("Page.enable")
            page.call("Page.addScriptToEvaluateOnNewDocument", source=WITH_GPU)
            page.call("Page.navigate", url=viewer.url + FULL_SIZE)
            until(lambda: viewer._sessions, "no session", 120)
            (session,) = viewer._sessions.values()
            until(lambda: session._is_drawn, "not drawn", 120)
            frames = []
            session._worker.submit = lambda *_, **__: frames.append(1)  # the server renders nothing from here on
            assert page.wait_for(matches), found
            first = page.screenshot()
            drag(page, [(200, 400), (230, 400), (260, 410)])
            until(lambda: psnr(first, shown_by(session)) < 30, "the camera does not move")
            assert page.wait_for(matches), found
            session._panel._background.value = (255, 255, 255)
            assert page.wait_for(lambda image: matches(image) and (image[UNCOVERED][-5, 5] == 255).all()), found
            assert not frames
            assert page.evaluate(LOADING) is None
            assert page.errors == []
            # What it cannot show, the server draws; and all of it, after another choice.
            del session._worker.submit
            choose(page, "Show", "alpha")
            assert page.wait_for(lambda image: psnr(image, shown_by(session)) > 60)
            choose(page, "Show", "rgb")
            assert page.wait_for(matches), found
            choose(page, "Drawn by", "the server")
            assert page.wait_for(lambda image: psnr(image, shown_by(session)) > 60)
            assert page.evaluate("document.querySelector('iframe')") is None
            assert page.errors == []
    finally:
        viewer.close()


def test_browser_without_a_gpu_says_so():
    viewer = Viewer([viewed()], port=19490, draw="browser")
    try:
        with open_page(viewer.url + FULL_SIZE, 800, 600) as page:
            words = "the server draws: WebGL of this browser runs without a GPU"
            until(lambda: words in (page.evaluate("document.body.innerText") or ""), "no sentence", 120)
            (session,) = viewer._sessions.values()
            assert page.wait_for(lambda image: psnr(image, shown_by(session)) > 40)
            assert "Drawn by" not in page.evaluate("document.body.innerText")
    finally:
        viewer.close()
