"""The viewer in a web browser while the camera moves: images of lower quality, close to those at rest."""

import pytest
import torch

from tests.support.browser import CHROMIUM, open_page
from tests.support.paths import MODELS
from tests.viewing.viewer.test_browser import FULL_SIZE, UNCOVERED, expected, psnr
from tsplat.viewing.viewer import Viewer, open_viewed, worker

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
    pytest.mark.skipif(not MODELS.is_dir(), reason="needs the test models"),
]


@pytest.mark.parametrize(("divisor", "least"), [(1, 36), (2, 29)])
def test_image_while_the_camera_moves(divisor, least, monkeypatch):
    """The camera counts as moving for an hour after its last movement; the smaller size is that of a busy machine."""
    monkeypatch.setattr(worker, "REST_SECONDS", 3600)
    model = open_viewed(MODELS / "kettle.from_spz.ply", torch.device("cpu"), warn=pytest.fail)
    monkeypatch.setattr(model.renderer, "_divisor", lambda *_: divisor)
    viewer = Viewer([model], port=18480)
    try:
        with open_page(viewer.url + FULL_SIZE, 800, 600) as page:
            assert page.wait_for(lambda image: image[UNCOVERED].std() > 10)
            drag = dict(x=200, y=400, button="left", clickCount=1)
            page.call("Input.dispatchMouseEvent", type="mousePressed", **drag)
            for x in range(200, 260, 10):
                page.call("Input.dispatchMouseEvent", type="mouseMoved", **{**drag, "x": x})
            found = []

            def matches(image):
                found[:] = [psnr(image, expected(viewer))]
                return found[0] > least

            assert page.wait_for(matches), found
            assert page.errors == []
    finally:
        viewer.close()
