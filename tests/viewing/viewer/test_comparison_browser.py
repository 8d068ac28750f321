"""Photographs compared with renders in a web browser, on a desktop and on a phone."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.support.browser import CHROMIUM, open_page
from tests.support.viewer_pages import SIZES, choose, drag, open_tab, press
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.viewing.viewer import Viewer

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

COLORS = [(230, 20, 20), (20, 200, 20), (20, 20, 230), (220, 220, 20)]


@pytest.fixture
def viewer():
    """Photographs of one color each, which no render has."""
    model = viewed()
    for (name, view), color in zip(model.views.items(), COLORS, strict=True):
        image = torch.tensor(color, dtype=torch.uint8).expand(view.image.shape).contiguous()
        model.views[name] = dataclasses.replace(view, image=image)
    viewer = Viewer([model], port=18780)
    yield viewer
    viewer.close()


def share(image, color, width):
    """The share of a row of the canvas, left of the controls, that has about a color."""
    return float((np.abs(image[image.shape[0] // 2 + 40, :width].astype(int) - color).max(-1) < 25).mean())


@pytest.mark.parametrize("size", SIZES)
def test_split_is_dragged_and_views_are_stepped_through(viewer, size):
    touch = size == "phone"
    with open_page(viewer.url + "?fixedDpr=1", **SIZES[size]) as page:
        wait_for(lambda: viewer._sessions, 60)
        assert page.wait_for(lambda image: image[:300, :300].std() > 10)
        (session,) = viewer._sessions.values()
        camera = session._client.camera
        # Controls are docked beside the image once the page is there.
        wait_for(lambda: touch or camera.image_width < SIZES[size]["width"])
        width, height = camera.image_width, camera.image_height

        def compare(mode):
            if touch:  # lists close at once under the mouse of a phone
                session._cameras._mode.value = mode
                session._callbacks.enqueue(session._cameras._compare)
            else:
                choose(page, "Compare", mode)

        open_tab(page, "Cameras")
        compare("photograph")
        assert page.wait_for(lambda image: share(image, COLORS[0], width) > 0.95)
        # The frame is 4:3, with bars above and below on the phone.
        assert (np.abs(page.screenshot()[40:60, :10].astype(int) - 24).max() < 8) == touch
        compare("split")
        assert page.wait_for(lambda image: 0.4 < share(image, COLORS[0], width) < 0.55)
        x, y = width / 2, height / 2
        drag(page, [(x, y), (x - 20, y), (x - 60, y), (x - 0.3 * width, y)], touch)
        assert page.wait_for(lambda image: 0.1 < share(image, COLORS[0], width) < 0.25)
        before = camera.position
        press(page, "n")
        assert page.wait_for(lambda image: 0.1 < share(image, COLORS[1], width) < 0.25)
        press(page, "p")
        assert page.wait_for(lambda image: 0.1 < share(image, COLORS[0], width) < 0.25)
        assert np.allclose(camera.position, before, atol=1e-4)
        # Where the camera leaves the view, the model is shown.
        drag(page, [(60, 300), (70, 300), (90, 310), (120, 320)], touch)
        assert page.wait_for(lambda image: share(image, COLORS[0], width) < 0.05)
        assert page.errors == []
