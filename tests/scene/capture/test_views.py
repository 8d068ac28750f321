"""Tests of the data classes View and Capture."""

import pytest
import torch

from tests.support.captures import POINTS
from tsplat import ArgumentError, ShapeError
from tsplat.scene import Capture, View

IMAGE = torch.zeros(4, 6, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(image=torch.zeros(4, 6, 3)), r"image: expected torch.uint8 \[H, W, 3\], found torch.float32"),
        (dict(viewmat=torch.eye(3)), r"viewmat: expected \[4, 4\], found \[3, 3\]"),
        (dict(K=torch.full((3, 3), torch.nan)), "K: expected finite values"),
        (dict(K=torch.zeros(3, 3)), "K: expected positive focal lengths"),
        (dict(mask=torch.ones(4, 6)), r"mask: expected torch.bool \[4, 6\]"),
        (dict(mask=torch.ones(6, 4, dtype=torch.bool)), r"mask: .*\[6, 4\]"),
        (dict(sparse=torch.zeros(5, 2)), r"sparse: expected \[P, 3\]"),
        (dict(camera_id=-1), "camera_id"),
    ],
)
def test_view_rejects_invalid_values(values, words):
    with pytest.raises(ArgumentError, match=rf"{words}.*view 'a'"):
        View(**{**dict(name="a", image=IMAGE, viewmat=torch.eye(4), K=torch.eye(3)), **values})


def test_capture_rejects_invalid_world():
    with pytest.raises(ShapeError, match="world"):
        Capture((), (), POINTS, POINTS, world=torch.eye(3))
    assert torch.equal(Capture((), (), POINTS, POINTS).world, torch.eye(4, dtype=torch.float64))


def test_to_keeps_every_attribute():
    view = View("a", IMAGE, torch.eye(4), torch.eye(3), torch.ones(4, 6, dtype=torch.bool), torch.zeros(5, 3), 3)
    assert vars(view.to("cpu")) == vars(view)
    minimal = View("a", IMAGE, torch.eye(4), torch.eye(3))
    assert vars(minimal.to("cpu")) == vars(minimal)
    capture = Capture((view,), (minimal,), POINTS, POINTS, (1.0, 0.5, 0.0), 2 * torch.eye(4, dtype=torch.float64))
    moved = capture.to("cpu")
    assert moved.world is capture.world
    assert moved.background == capture.background
    assert moved.train[0].mask is view.mask
