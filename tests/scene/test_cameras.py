"""Cameras, checked by projecting points."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import intrinsics, look_at, orbit


def project(points, viewmat, K):
    """Pixels [N, 2] and depths [N]."""
    camera = points @ viewmat[:3, :3].T + viewmat[:3, 3]
    pixels = camera @ K.T
    return pixels[:, :2] / pixels[:, 2:], camera[:, 2]


@pytest.mark.parametrize("up", [(0, -1, 0), (0, 0, 1), (0.3, 2.0, -0.4)])
def test_look_at_has_the_target_in_the_middle_and_up_upwards(up):
    eye, target = torch.tensor([1.0, -2.0, -5.0]), torch.tensor([0.5, 0.25, 1.0])
    viewmat, K = look_at(eye.tolist(), target.tolist(), up), intrinsics(640, 480, 60)
    rotation = viewmat[:3, :3]
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(3))
    assert float(torch.linalg.det(rotation)) == pytest.approx(1)
    points = torch.stack([target, target + 0.1 * torch.tensor(up, dtype=torch.float32)])
    pixels, depths = project(points, viewmat, K)
    torch.testing.assert_close(pixels[0], torch.tensor([320.0, 240.0]))
    assert float(depths[0]) == pytest.approx(float((target - eye).norm()))
    assert float(pixels[1, 0]) == pytest.approx(320, abs=1e-2)
    assert pixels[1, 1] < 240  # rows count downwards


def test_right_is_right():
    viewmat = look_at((0, 0, -3), (0, 0, 0), up=(0, -1, 0))
    torch.testing.assert_close(viewmat[:3, :3], torch.eye(3))


def test_field_of_view_is_what_the_height_sees():
    K = intrinsics(640, 480, 60)
    edge = torch.tensor([[0.0, math.tan(math.radians(30)), 1.0]])
    pixels, _ = project(edge, torch.eye(4), K)
    assert float(pixels[0, 1]) == pytest.approx(480)
    assert K[0, 0] == K[1, 1]


@pytest.mark.parametrize(
    ("eye", "target", "up", "words"),
    [
        ((1, 2, 3), (1, 2, 3), (0, 1, 0), "eye"),
        ((0, 0, 0), (0, 0, 0), (0, 1, 0), "eye"),
        ((math.nan, 0, 0), (0, 0, 1), (0, 1, 0), "eye"),
        ((0, 0, 0), (0, math.inf, 1), (0, 1, 0), "target"),
        ((0, 0, 0), (0, 0, 1), (0, 0, 0), "up"),
        ((0, 0, 0), (0, 0, 1), (0, 0, -2), "up"),
        ((0, 0), (0, 0, 1), (0, 1, 0), "eye"),
    ],
)
def test_cameras_without_a_meaning(eye, target, up, words):
    with pytest.raises(ArgumentError, match=words):
        look_at(eye, target, up)


@pytest.mark.parametrize("fov", [0, -10, 180, math.nan])
def test_fields_of_view_without_a_meaning(fov):
    with pytest.raises(ArgumentError, match="fov"):
        intrinsics(10, 10, fov)


@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 0.0, 2.0)])
def test_an_orbit_keeps_its_distance_and_height(up):
    target, elevations = torch.tensor([1.0, 2.0, 3.0]), [10.0, 45.0, -20.0, 0.0]
    viewmats = orbit(target.tolist(), 4.0, [0, 90, 180, 300], elevations, up)
    eyes = torch.linalg.inv(viewmats)[:, :3, 3]
    offsets = (eyes - target) / 4
    torch.testing.assert_close(offsets.norm(dim=-1), torch.ones(4), atol=1e-5, rtol=0)
    axis = torch.tensor(up) / torch.tensor(up).norm()
    torch.testing.assert_close(offsets @ axis, torch.tensor(elevations).deg2rad().sin(), atol=1e-5, rtol=0)
    flat = torch.nn.functional.normalize(offsets - (offsets @ axis)[:, None] * axis, dim=-1)
    torch.testing.assert_close(flat @ flat[0], torch.tensor([0, 90, 180, 300]).deg2rad().cos(), atol=1e-5, rtol=0)
