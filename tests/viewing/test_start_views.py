"""Start views: the first view of a run, and models without cameras."""

import dataclasses
import math

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tests.viewing.test_run_cameras import camera, dome
from tsplat import ArgumentError
from tsplat.scene import look_at
from tsplat.viewing.start_views import first_view

GAUSSIANS = make_gaussians()
SLOPE = math.tan(math.radians(45 / 2))


def test_first_view_of_a_run_is_that_of_its_first_camera():
    target = (1.0, -2.0, 0.5)
    cameras = dome(target)
    start = first_view(GAUSSIANS, cameras)
    assert start.eye == pytest.approx(cameras[0].position.tolist())
    assert start.target == pytest.approx(target, abs=1e-4)
    assert start.up == pytest.approx((0, 0, 1), abs=1e-6)
    assert start.slopes == pytest.approx((SLOPE * 40 / 30, SLOPE))
    assert torch.allclose(look_at(start.eye, start.target, start.up), cameras[0].viewmat, atol=1e-4)


def test_another_view_and_another_up_direction():
    cameras = [dataclasses.replace(camera, name=f"photos/{i}.jpg") for i, camera in enumerate(dome())]
    start = first_view(GAUSSIANS, cameras, view="photos/7.jpg", up=(0, 1, 0))
    assert start.eye == pytest.approx(cameras[7].position.tolist())
    assert start.up == (0, 1, 0)
    with pytest.raises(ArgumentError, match="there is no view 'nowhere'"):
        first_view(GAUSSIANS, cameras, view="nowhere")


def test_camera_that_looks_away_from_the_others_keeps_its_direction():
    cameras = [camera((4.0, 0.0, 1.0), (8.0, 0.0, 1.0)), *dome()]
    start = first_view(GAUSSIANS, cameras)
    x, y, z = start.target
    assert (y, z) == pytest.approx((0, 1), abs=1e-5)
    assert 4.2 < x < 5


def test_cameras_without_a_common_up_direction_use_that_of_the_view():
    ups = [(1.0, 0, 0), (-1.0, 0, 0), (0, 1.0, 0), (0, -1.0, 0)]
    start = first_view(GAUSSIANS, [camera((0.0, 0, 5), up=up) for up in ups])
    assert start.up == pytest.approx((1, 0, 0), abs=1e-6)


def test_fisheye_view_is_shown_as_a_pinhole_of_bounded_angle():
    wide = dataclasses.replace(dome()[0], model="fisheye", K=torch.tensor([[10.0, 0, 20], [0, 10, 15], [0, 0, 1]]))
    assert first_view(GAUSSIANS, [wide, *dome()]).slopes == pytest.approx((1.2, 0.9))


@pytest.mark.parametrize(
    ("size", "slopes"),
    [
        ((80, 60), (SLOPE * 40 / 30, SLOPE)),
        ((40, 60), (0.7 * SLOPE * 40 / 30, 0.7 * SLOPE * 40 / 30 * 60 / 40)),
        ((60, 50), (SLOPE * 60 / 50, SLOPE)),  # as much of the photograph as fills the window
        ((300, 60), (1.0, 60 / 300)),  # a right angle
    ],
)
def test_windows_show_the_core_of_a_photograph(size, slopes):
    camera = first_view(GAUSSIANS, dome()).camera(*size)
    assert (size[0] / 2 / float(camera.K[0, 0]), size[1] / 2 / float(camera.K[1, 1])) == pytest.approx(slopes)


def test_model_without_cameras_is_shown_as_a_whole():
    start = first_view(GAUSSIANS)
    assert list(start.up) == [0, -1, 0]
    matrix = look_at(start.eye, start.target, start.up)
    x, y, z = (GAUSSIANS.means @ matrix[:3, :3].T + matrix[:3, 3]).unbind(-1)
    assert (z > 0).all()
    assert float((x / z).abs().max()) < start.slopes[0]
    assert float((y / z).abs().max()) < start.slopes[1]
    assert list(first_view(GAUSSIANS, up=(0, 0, 1)).up) == [0, 0, 1]
    narrow = start.camera(20, 60)
    assert 10 / float(narrow.K[0, 0]) == pytest.approx(min(start.slopes[0], 20 / 60))


@pytest.mark.parametrize("up", [(0, 0, 0), (0, math.nan, 1), (math.inf, 0, 0)])
def test_invalid_up_direction(up):
    with pytest.raises(ArgumentError, match="up: expected a finite direction that is not zero"):
        first_view(GAUSSIANS, dome(), up=up)


def test_view_of_a_model_without_cameras():
    with pytest.raises(ArgumentError, match="--view: there are no cameras to choose '0' from"):
        first_view(GAUSSIANS, view="0")
