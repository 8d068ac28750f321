"""The axes along which surfaces lie: those of a room, wherever it is turned to, and none where there are none."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tsplat.scene.dominant_axes import dominant_axes
from tsplat.scene.rotation import axis_rotations, rotation_matrix

pytest.importorskip("scipy")

ANGLES = st.tuples(*[st.floats(-180, 180)] * 3)


def room(n=400, *, faces=6, noise=0.01, seed=0):
    """Noisy points on the first faces of a box of 4 x 2.5 x 3, and a fifth as many in its inside."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 3, generator=generator, dtype=torch.float64) - 0.5
    face = torch.arange(n) % faces
    points[torch.arange(n), face % 3] = (face // 3).double() - 0.5
    inside = torch.rand(n // 5, 3, generator=generator, dtype=torch.float64) - 0.5
    points = torch.cat([points, inside]) * torch.tensor([4.0, 2.5, 3.0])
    return points + noise * torch.randn(points.shape, generator=generator, dtype=torch.float64)


def angle_to(quat, rotation):
    """Degrees between the axes of a rotation [3, 3] and those of a quaternion that are next to them."""
    assert math.isclose(math.hypot(*quat), 1, abs_tol=1e-12)
    cosines = (rotation.T @ rotation_matrix(quat)).abs()
    return math.degrees(math.acos(min(1, float(cosines.amax(0).min()))))


@given(ANGLES, st.integers(0, 2**20), st.integers(-12, 12), st.tuples(*[st.floats(-100, 100)] * 3))
@settings(max_examples=10, deadline=None)
def test_axes_turn_with_the_points(angles, seed, exponent, offset):
    points, rotation = room(seed=seed), axis_rotations(angles)
    moved = 2.0**exponent * (points @ rotation.T + torch.tensor(offset, dtype=torch.float64))
    found, expected = dominant_axes(moved), dominant_axes(points)
    assert angle_to(found, rotation @ rotation_matrix(expected)) < 1e-3
    assert angle_to(found, rotation) < 3
    assert abs(found[0]) > 0.85  # the farthest of the rotations that are closest to none has 62.8 degrees


def test_axes_of_a_straight_room_are_next_to_those_of_the_world():
    quat = dominant_axes(room(2000).float())
    assert quat[0] > math.cos(math.radians(0.5) / 2) and all(abs(part) < 0.005 for part in quat[1:])


@pytest.mark.parametrize("change", ["repeated", "far away", "inside"])
def test_axes_do_not_depend_on_some_points(change):
    points = room()
    if change == "repeated":
        points = points.repeat(4, 1)
    elif change == "far away":
        points = torch.cat([points, 1e6 * torch.tensor([[0.3, -0.5, 0.8], [0.2, 0.9, 0.1], [0.7, 0.1, 0.1]])])
    else:
        points = torch.cat([points, room(200, noise=0.5, seed=1)])
    assert angle_to(dominant_axes(points), torch.eye(3, dtype=torch.float64)) < 3


def test_one_plane_tells_one_axis():
    rotation = axis_rotations((20.0, -65.0, 110.0))
    cosines = (rotation.T @ rotation_matrix(dominant_axes(room(faces=1) @ rotation.T))).abs()
    assert cosines[0].max() > math.cos(math.radians(2))


@pytest.mark.parametrize("n", [1, 2, 8, 9, 30, 300, 3000])
@pytest.mark.parametrize("kind", ["cube", "ball", "cloud", "sphere", "line", "one position"])
def test_points_on_no_surfaces_have_no_axes(kind, n):
    random = np.random.default_rng(n)
    points = random.standard_normal((n, 3))
    if kind == "cube":
        points = random.random((n, 3))
    elif kind in ("ball", "sphere"):
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        points *= random.random((n, 1)) ** (1 / 3) if kind == "ball" else 1
    elif kind == "line":
        points[:] = np.arange(n)[:, None]
    elif kind == "one position":
        points[:] = 3
    assert dominant_axes(torch.from_numpy(points)) is None
