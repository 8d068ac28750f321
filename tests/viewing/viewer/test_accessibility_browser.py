"""Names, keys, hints and messages of the viewer's page in a web browser, on a desktop and on a phone."""

import numpy as np
import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, open_controls, open_tab
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.viewing.viewer import Viewer

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

ROLES = {"button", "slider", "textbox", "combobox", "checkbox", "spinbutton", "tab", "application"}
SLIDER = """(() => {
    const [hit, handle, mark] = ["trackContainer", "thumb", "markLabel"].map((part) =>
        document.querySelector(`.mantine-Slider-${part}`).getBoundingClientRect());
    return hit.height >= 24 && handle.width >= 16 && mark.top >= handle.bottom - 4;
})()"""
"""Whether the first slider can be hit, and its numbers are below its handle."""

CANVAS = "document.querySelector('canvas[data-engine]')"


def nodes(page):
    """Role and name of what a screen reader finds."""
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]


@pytest.mark.parametrize("size", SIZES)
def test_page_is_used_by_keys_and_screen_readers(size):
    viewer = Viewer([viewed()], port=19390, open_model=lambda path, warn: viewed())
    try:
        with open_page(viewer.url, **SIZES[size]) as page:
            wait_for(lambda: viewer._sessions, 120)
            # On a screen with small pixels, an image has as many pixels as the page.
            screen = dict(SIZES[size], mobile=size == "phone", deviceScaleFactor=2)
            screen.pop("phone", None)
            page.call("Emulation.setDeviceMetricsOverride", **screen)
            page.call("Page.navigate", url=viewer.url)
            wait_for(lambda: page.evaluate(f"{CANVAS}?.width === {CANVAS}?.clientWidth && devicePixelRatio === 2"), 120)
            open_controls(page)
            page.call("Accessibility.enable")
            for tab in ("View", "Cameras", "Crop", "Video"):
                open_tab(page, tab)
                wait_for(lambda: all(name.strip() for role, name in nodes(page) if role in ROLES), every=0.3)
                if tab == "View":
                    assert page.evaluate(SLIDER)
                    assert {("slider", "SH degree"), ("textbox", "SH degree")} <= set(nodes(page))
                if tab == "Crop":
                    axes = {("textbox", f"Lower corner (scene units) {axis}") for axis in "xyz"}
                    wait_for(lambda axes=axes: axes <= set(nodes(page)), every=0.3)
            shown = page.evaluate("getComputedStyle(document.querySelector('.tsplat-touch')).display")
            assert shown == ("inline" if size == "phone" else "none")
            camera = list(viewer._sessions.values())[-1]._client.camera
            page.evaluate(f"{CANVAS}.focus()")
            assert page.evaluate(f"document.activeElement === {CANVAS}")
            before = np.array(camera.position)
            key = dict(key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
            page.call("Input.dispatchKeyEvent", type="keyDown", **key)
            wait_for(lambda: np.abs(np.array(camera.position) - before).max() > 0.03, 60)
            page.call("Input.dispatchKeyEvent", type="keyUp", **key)
            assert page.evaluate(f"getComputedStyle({CANVAS}).outlineStyle") == "solid"
            assert page.evaluate("document.getElementById('tsplat-offline').textContent") == ""
            # That Chromium draws without a GPU is nothing to warn of.
            assert page.evaluate("document.querySelectorAll('.mantine-Notification-root').length") == 0
            viewer.close("The viewer has been stopped.")
            banner = "document.getElementById('tsplat-offline').innerText"
            wait_for(lambda: page.evaluate(banner).startswith("The viewer has been stopped"), 60, every=0.3)
            assert page.errors == []
    finally:
        viewer.close()
