"""Title, full screen and keyframes in a web browser, on a desktop and on a phone."""

import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, click, open_controls, open_tab
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.viewing.viewer import Viewer

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]


@pytest.mark.parametrize("size", SIZES)
def test_buttons(size):
    viewer = Viewer([viewed()], port=18790)
    try:
        with open_page(viewer.url + "?fixedDpr=1", **SIZES[size]) as page:
            wait_for(lambda: viewer._sessions, 60)
            assert page.wait_for(lambda image: image[:300, :300].std() > 10)
            (session,) = viewer._sessions.values()
            keyframes, camera = session._video._keyframes, session._client.camera
            assert page.evaluate("document.title") == "model · tsplat"
            open_controls(page)
            for full in (True, False):
                click(page, "Full screen")
                wait_for(lambda full=full: page.evaluate("Boolean(document.fullscreenElement)") == full)
            open_tab(page, "Video")
            for x in (-1.0, 0.0, 1.0):
                n = len(keyframes.cameras)
                camera.position = (x, -1.0, -3.0)
                click(page, "Add keyframe")
                wait_for(lambda n=n: len(keyframes.cameras) == n + 1)
            click(page, "Earlier")
            wait_for(lambda: [round(float(c.position[0])) for c in keyframes.cameras] == [-1, 1, 0])
            click(page, "Delete")
            wait_for(lambda: len(keyframes.cameras) == 2)
            click(page, "Remove all")
            click(page, "Remove 2 keyframes")
            wait_for(lambda: not keyframes.cameras)
            assert page.errors == []
    finally:
        viewer.close()
