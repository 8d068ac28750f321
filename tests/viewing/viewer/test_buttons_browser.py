"""Movements, title, full screen and keyframes in a web browser, on a desktop and on a phone."""

import time

import numpy as np
import pytest

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, click, drag, open_controls, open_tab, press
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.viewing.viewer import Viewer

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]


def fingers(page, kind, *points):
    page.call("Input.dispatchTouchEvent", type=kind, touchPoints=[dict(x=x, y=y) for x, y in points])


def pinch(page, x, y):
    """Spreads two fingers."""
    fingers(page, "touchStart", (x - 20, y), (x + 20, y))
    for half in range(30, 90, 10):
        time.sleep(0.1)
        fingers(page, "touchMove", (x - half, y), (x + half, y))
    fingers(page, "touchEnd")


def check_movements(page, camera, touch):
    """Turns, zooms and moves the camera, by all that the page says."""

    def state():
        """What turns, what zooms, and what moves."""
        offset = np.array(camera.position) - camera.look_at
        distance = np.linalg.norm(offset)
        return offset / distance, distance, np.array(camera.look_at)

    def changes(move, index):
        """Moves, and again where a busy page has missed it or has moved less."""
        before = state()[index]

        def has_changed():
            return np.abs(np.array(state()[index]) - before).max() > 0.03

        def moved():
            move()
            return any(has_changed() or time.sleep(0.1) for _ in range(50))

        wait_for(moved, 120)

    points = [(150, 300), (160, 300), (190, 310), (230, 320)]
    changes(lambda: drag(page, points, touch), 0)
    if touch:
        changes(lambda: pinch(page, 180, 300), 1)
        return
    wheel = dict(type="mouseWheel", x=200, y=300, deltaX=0, deltaY=-200)
    changes(lambda: page.call("Input.dispatchMouseEvent", **wheel), 1)
    changes(lambda: drag(page, points, button="right"), 2)
    for key, index in (("w", 2), ("a", 2), ("e", 2), ("ArrowLeft", 0)):
        changes(lambda key=key: press(page, key, seconds=0.5), index)


def check_turn_upright(page, camera):
    """Levels a camera that is tilted, where it is."""

    def tilt():
        """By how much the horizontal direction of the image points up or down, as the page has sent it."""
        w, x, y, z = camera.wxyz
        return abs(2 * (x * y + w * z))

    def is_tilted():
        """Tilts the camera, and again where a page that changes its size has missed it."""
        camera.up_direction = (1.0, 0.0, 0.0)
        return any(tilt() > 0.5 or time.sleep(0.1) for _ in range(50))

    position = np.array(camera.position)
    wait_for(is_tilted, 120)
    click(page, "Turn upright")
    wait_for(lambda: tilt() < 1e-3, 120, every=0.1)
    assert np.allclose(camera.position, position, atol=1e-3)


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
            check_movements(page, camera, size == "phone")
            open_controls(page)
            for full in (True, False):
                click(page, "Full screen")
                wait_for(lambda full=full: page.evaluate("Boolean(document.fullscreenElement)") == full, every=0.1)
            check_turn_upright(page, camera)
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
