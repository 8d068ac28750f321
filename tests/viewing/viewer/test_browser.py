"""The viewer in a web browser."""

import threading

import numpy as np
import pytest
import torch

from tests.support.browser import CHROMIUM, open_page
from tests.support.training_scenes import gray, make_gaussians, make_views
from tests.support.waiting import wait_for
from tsplat.scene import write_ply
from tsplat.training import Config, LiveView, Trainer, ViewOptions
from tsplat.viewing.viewer import Viewer, open_viewed

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

UNCOVERED = (slice(240, None), slice(0, 440))
"""Rows and columns of the page that neither the controls nor a notification cover."""
FULL_SIZE = "?fixedDpr=1"
"""Follows the address of a page that keeps its size; otherwise viser makes it smaller where frames take long."""


def psnr(one, other):
    difference = one[UNCOVERED].astype(float) - other[UNCOVERED]
    return 10 * np.log10(255**2 / max((difference**2).mean(), 1e-3))


@pytest.fixture
def viewer(tmp_path):
    write_ply(tmp_path / "model.ply", make_gaussians(sh_degree=1))
    model = open_viewed(tmp_path / "model.ply", torch.device("cpu"), warn=print)
    viewer = Viewer([model], port=18080)
    yield viewer
    viewer.close()


def expected(viewer):
    """What the renderer shows to the only client."""
    (session,) = viewer._sessions.values()
    frames = []
    session._worker.submit, submit = (
        lambda request, **_: frames.append(session._render(request, None)),
        session._worker.submit,
    )
    session._change()
    session._worker.submit = submit
    return frames[0].image


def test_image_at_rest_is_that_of_tsplat(viewer, capfd):
    with open_page(viewer.url + FULL_SIZE) as page:
        assert page.wait_for(lambda image: image[UNCOVERED].std() > 10)
        found = []

        def matches(image):
            found[:] = [psnr(image, expected(viewer))]
            return found[0] > 40

        assert page.wait_for(matches), found
        before = page.screenshot()
        drag = dict(x=200, y=400, button="left", clickCount=1)
        page.call("Input.dispatchMouseEvent", type="mousePressed", **drag)
        for x in range(200, 320, 10):
            page.call("Input.dispatchMouseEvent", type="mouseMoved", **{**drag, "x": x})
        page.call("Input.dispatchMouseEvent", type="mouseReleased", **{**drag, "x": 320})
        assert page.wait_for(lambda image: psnr(image, before) < 30)
        assert page.wait_for(matches), found
        assert page.errors == []
    wait_for(lambda: not viewer._sessions, 20)
    assert capfd.readouterr().err == ""


@pytest.fixture
def view():
    """A training that runs until the end of the test."""
    gaussians = make_gaussians()
    config = Config(steps=1_000_000, sh0_rate=5e-2)
    view = LiveView(gray(gaussians), make_views(gaussians), config, ViewOptions(port=18081))
    trainer = Trainer(gray(gaussians), make_views(gaussians), config, observers=[view])
    ended = threading.Event()

    def train():
        while not ended.is_set():
            trainer.advance()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    yield view
    ended.set()
    view.close()  # ends a pause
    thread.join(60)


def click(page, label):
    script = f"[...document.querySelectorAll('button')].find(button => button.innerText == '{label}').click()"
    page.evaluate(script)


def has_color(image, color):
    """Whether a screenshot has a line of a color."""
    return (np.abs(image.astype(int) - color).max(-1) < 25).sum() > 30


NOTE_TEXTS = """
{
  const { prototype } = CanvasRenderingContext2D, draw = prototype.fillText, texts = (window.texts = new Set());
  prototype.fillText = function (text, ...place) {
    texts.add(text);
    draw.call(this, text, ...place);
  };
}
"""


def test_page_of_a_training(view, capfd):
    viewer, training = view._viewer, view.training
    with open_page("about:blank", height=900) as page:
        page.call("Page.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE_TEXTS)
        page.call("Page.navigate", url=view.url + FULL_SIZE)
        assert page.wait_for(lambda image: image[UNCOVERED].std() > 10)
        # Both plots.
        assert page.wait_for(lambda image: has_color(image, (76, 155, 232)) and has_color(image, (232, 148, 76)))
        labels = page.evaluate("[...texts]")
        assert "500k" in labels and not [label for label in labels if label.endswith(",000")]
        before = training.step
        click(page, "Pause")
        wait_for(lambda: training.paused)
        found = []

        def matches(image):
            found[:] = [psnr(image, expected(viewer))]
            return found[0] > 40

        assert page.wait_for(matches), found
        step = training.step
        assert step >= before
        click(page, "One step")
        wait_for(lambda: training.step == step + 1)
        click(page, "Resume")
        wait_for(lambda: training.step > step + 10)
        assert page.errors == []
    wait_for(lambda: not viewer._sessions)
    assert capfd.readouterr().err == ""
