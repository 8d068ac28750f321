"""A drag turns the camera as far in the viewer as on an exported page."""

import math

import numpy as np
import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, drag
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.viewing import StartView, write_page
from tsplat.viewing.viewer import Viewer

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

KEEP_VIEWER = """
Object.defineProperty(window, "supersplatViewer", {
  configurable: true,
  set(given) {
    const createViewer = async (options) => (window.shown = await given.createViewer(options));
    Object.defineProperty(window, "supersplatViewer", { value: { ...given, createViewer } });
  },
});
"""
FORWARD = "(({ x, y, z }) => [x, y, z])(shown.app.root.findComponent('camera').entity.forward)"
POINTS = [(100, 300), (110, 300), (140, 300), (200, 300)]


def angle(one, other):
    one, other = (np.array(vector) / np.linalg.norm(vector) for vector in (one, other))
    return math.degrees(math.acos(np.clip(one @ other, -1, 1)))


def turned(page, direction, touch):
    """Angle in degrees by which a drag turns a direction, once it stands still."""
    before, found = direction(), []

    def stands_still():
        found.append(angle(before, direction()))
        return len(found) > 3 and found[-1] > 1 and np.ptp(found[-3:]) < 0.01

    drag(page, POINTS, touch)
    wait_for(stands_still, 60, every=0.5)
    return found[-1]


@pytest.mark.parametrize(("size", "expected"), [("desktop", 15.0), ("phone", 45.0)])
def test_drag_turns_as_far_as_on_a_page(size, expected, tmp_path):
    model, touch = viewed(), size == "phone"
    # From the height of the target, where turns of the camera are turns of what it looks along.
    model.eye = [0.0, 0.0, -3.0]
    viewer = Viewer([model], port=19690)
    try:
        with open_page(viewer.url, **SIZES[size]) as page:
            wait_for(lambda: viewer._sessions, 120)
            wait_for(lambda: page.evaluate("document.getElementById('tsplat-cover') === null"), 60)
            (session,) = viewer._sessions.values()
            camera = session._client.camera
            found = turned(page, lambda: np.array(camera.look_at) - camera.position, touch)
            assert abs(found - expected) < 0.5
    finally:
        viewer.close()
    start = StartView(eye=(0, 0, -3), target=(0, 0, 0), up=(0, -1, 0), slopes=(0.5, 0.5))
    write_page(tmp_path / "page.html", model.gaussians, start)
    with open_page("about:blank", **SIZES[size]) as page:
        page.call("Page.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=KEEP_VIEWER)
        page.call("Page.navigate", url=(tmp_path / "page.html").as_uri())
        wait_for(lambda: page.evaluate("document.documentElement.dataset.loaded") is not None, 120)
        found = turned(page, lambda: page.evaluate(FORWARD), touch)
        assert abs(found - expected) < 0.5
        assert page.errors == []
