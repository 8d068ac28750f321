"""Tests of the data classes View and Capture."""

import dataclasses

import pytest
import torch

from tests.support.captures import POINTS
from tsplat import ArgumentError, ShapeError
from tsplat.scene import Camera, Capture, View

IMAGE = torch.zeros(4, 6, 3, dtype=torch.uint8)
CAMERA = Camera(torch.eye(4), torch.eye(3), 6, 4, name="a")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(image=torch.zeros(4, 6, 3)), r"image: expected torch.uint8 \[H, W, 3\], found torch.float32"),
        (dict(image=torch.zeros(4, 5, 3, dtype=torch.uint8)), r"image: expected \[4, 6\], the size .* found \[4, 5\]"),
        (dict(model="ortho"), "camera: expected the model 'pinhole', 'fisheye' or 'equirectangular', found 'ortho'"),
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
    of_camera = {name: value for name, value in values.items() if name in vars(CAMERA)}
    of_view = {name: value for name, value in values.items() if name not in of_camera}
    camera = dataclasses.replace(CAMERA, **of_camera)
    with pytest.raises(ArgumentError, match=rf"{words}.*view 'a'"):
        View(**{"image": IMAGE, "camera": camera, **of_view})


def test_capture_rejects_invalid_world():
    with pytest.raises(ShapeError, match="world"):
        Capture((), (), POINTS, POINTS, world=torch.eye(3))
    assert torch.equal(Capture((), (), POINTS, POINTS).world, torch.eye(4, dtype=torch.float64))


def test_to_keeps_every_attribute():
    view = View(IMAGE, CAMERA, torch.ones(4, 6, dtype=torch.bool), torch.zeros(5, 3), 3)
    minimal = View(IMAGE, CAMERA)
    for kept in (view, minimal):
        moved = vars(kept.to("cpu"))
        assert vars(moved.pop("camera")) == vars(CAMERA)
        assert moved == {name: value for name, value in vars(kept).items() if name != "camera"}
    capture = Capture((view,), (minimal,), POINTS, POINTS, (1.0, 0.5, 0.0), 2 * torch.eye(4, dtype=torch.float64))
    moved = capture.to("cpu")
    assert moved.world is capture.world
    assert moved.background == capture.background
    assert moved.train[0].mask is view.mask
