"""Extents of scenes and near planes, which neither units nor a few wrong poses change."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsplat.scene import Camera, intrinsics, look_at, orbit
from tsplat.scene.extents import (
    are_inliers,
    center_and_extent,
    median_depth,
    near_plane,
    scene_scale,
    shows_points,
    with_near_planes,
)

K = intrinsics(40, 30, 50)


def ring(n=14, radius=3.0):
    return [
        Camera(pose.double(), K, 40, 30, name=str(i))
        for i, pose in enumerate(orbit((0, 0, 0), radius, [360 * i / n for i in range(n)], [20.0] * n))
    ]


def cloud(n=300):
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5


def positions_of(cameras):
    return torch.stack([camera.position for camera in cameras])


@given(
    st.lists(
        st.tuples(st.floats(25, 1e9), st.integers(0, 2), st.sampled_from((-1, 1))).map(
            lambda chosen: [chosen[0] * chosen[2] * (axis == chosen[1]) for axis in range(3)]
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 13),
)
def test_cameras_far_away_change_no_extent(far, place):
    positions = positions_of(ring())
    with_far = torch.cat([positions[:place], torch.tensor(far, dtype=torch.float64), positions[place:]])
    close = are_inliers(with_far)
    assert (~close).nonzero().flatten().tolist() == list(range(place, place + len(far)))
    assert center_and_extent(with_far)[1] == pytest.approx(center_and_extent(positions)[1])


def test_extent_is_that_of_all_cameras_where_none_is_far_away():
    positions = positions_of(ring())
    assert are_inliers(positions).all()
    center, extent = center_and_extent(positions)
    assert extent == pytest.approx(1.1 * 3 * math.cos(math.radians(20)))
    torch.testing.assert_close(center, positions.mean(0))
    line = torch.arange(40, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64)
    assert are_inliers(line).all()
    # Of so few, nobody knows which are wrong.
    assert are_inliers(torch.tensor([[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [50.0, 0, 0]])).all()
    assert are_inliers(torch.zeros(6, 3)).all()


def test_cameras_show_points_on_more_than_a_spot():
    points = 4 * cloud()

    def looks(distance, target=(0.0, 0.0, 0.0), factor=1.0):
        lens = K * torch.tensor([[factor], [factor], [1.0]])
        lens[:2, 2] = K[:2, 2]
        return Camera(look_at((0, 0, -distance), target).double(), lens, 40, 30)

    assert shows_points(looks(3.0), points)
    assert shows_points(looks(40.0), points)
    assert not shows_points(looks(400.0), points)
    assert shows_points(looks(400.0, factor=20.0), points)  # by a long lens
    assert not shows_points(looks(40.0, target=(0.0, 0.0, -80.0)), points)
    # A few points far away are not the scene, and some tell nothing.
    lost = torch.tensor([[0.0, 0.0, 900.0]], dtype=torch.float64).expand(5, 3)
    assert not shows_points(looks(400.0), torch.cat([points, torch.tensor([1.0, 50.0, 1.0]) * lost + 40]))
    assert not shows_points(looks(40.0, target=(0.0, 0.0, -80.0)), torch.cat([points, -lost]))
    assert shows_points(looks(400.0), points[:7])


def test_photographs_from_one_place_have_the_extent_of_what_they_show():
    camera = Camera(look_at((0, 0, -2), (0, 0, 0)), K, 40, 30)
    points = cloud()
    depth = median_depth([camera] * 8, points)
    assert depth == pytest.approx(2.0, rel=0.05)
    assert scene_scale(positions_of([camera] * 8), depth) == pytest.approx(0.01 * depth)
    assert scene_scale(positions_of([camera]), 0.0) == 0


@given(st.integers(-40, 40))
def test_near_planes_are_as_large_as_the_unit(exponent):
    unit = 2.0**exponent
    cameras, points = ring(), cloud()
    moved = [
        dataclasses.replace(c, viewmat=c.viewmat * torch.tensor([1, 1, 1, unit], dtype=torch.float64)) for c in cameras
    ]
    assert near_plane(moved, unit * points) == unit * near_plane(cameras, points)
    assert near_plane(cameras, points) == pytest.approx(3 / 400, rel=0.1)


def test_only_cameras_without_a_near_plane_get_one():
    first, second, *_ = ring()
    given = dataclasses.replace(first, near=0.5)
    found = with_near_planes([given, second], cloud().float())
    assert found[0] is given
    assert found[1].near == near_plane([second], cloud().float())
    assert with_near_planes([second], torch.zeros(0, 3))[0].near is None
    assert near_plane([], cloud()) is None
    # Nothing is in the image: as far as the points are away.
    behind = Camera(look_at((0, 0, -2), (0, 0, -3)), K, 40, 30)
    assert near_plane([behind], cloud().float()) == pytest.approx(2 / 400, rel=0.1)
