"""Tests of the limit of needles: which views see a Gaussian, and how long its axes may be."""

import dataclasses
import math

import pytest
import torch

from tsplat.scene import Camera, intrinsics, look_at
from tsplat.training import needles
from tsplat.training.needles import LIMITS, length_limits, limits_needles, shorten_needles

MEANS = torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, -9.0]])
"""At the center; near the right border; outside; behind the cameras."""


def ring(n, model="pinhole", distance=2.0):
    camera = Camera(look_at((0.0, 0.0, -distance), (0.0, 0.0, 0.0)), intrinsics(80, 60, 60.0), 80, 60, model)
    return [dataclasses.replace(camera, name=str(i)) for i in range(n)]


@pytest.mark.parametrize("n", [1, 10])
def test_length_is_a_part_of_the_nearest_image_that_grows_with_the_square_of_the_views(n):
    lengths = length_limits(MEANS, [*ring(n - 1, distance=4.0), *ring(1)])
    # Of what the nearest image shows at the distance of the centers.
    width = 2.0 * 80 / 60 * 2 * math.tan(math.radians(30))
    assert lengths[:2].tolist() == pytest.approx([n**2 / 2000 * width] * 2, rel=1e-4)
    assert lengths[3] == 0


@pytest.mark.parametrize("block", [1, 2 * len(MEANS), needles.BLOCK])
def test_views_of_all_sizes_and_models_count_whatever_is_projected_at_a_time(monkeypatch, block):
    monkeypatch.setattr(needles, "BLOCK", block)
    (wide,) = ring(1, distance=3.0)
    wide = dataclasses.replace(wide, width=160, K=intrinsics(160, 60, 60.0))
    lengths = length_limits(MEANS, [*ring(3, distance=4.0), wide, *ring(2, "fisheye", 5.0), *ring(2, distance=3.5)])
    # All 8 see the center.
    least = min(3.5 * 80 / 60, 3.0 * 160 / 60) * 2 * math.tan(math.radians(30))
    assert lengths[0].item() == pytest.approx(8**2 / 2000 * least, rel=1e-4)


def test_views_see_what_is_inside_their_images():
    seen = length_limits(MEANS, ring(3)) > 0
    assert seen.tolist() == [True, True, False, False]


def test_fisheye_lenses_see_farther_to_the_side():
    K = torch.tensor([[25.0, 0.0, 40.0], [0.0, 25.0, 30.0], [0.0, 0.0, 1.0]])
    for model, sees in (("pinhole", False), ("fisheye", True)):
        (camera,) = ring(1, model)
        lengths = length_limits(torch.tensor([[6.0, 0.0, 0.0]]), [dataclasses.replace(camera, K=K)])
        assert (lengths > 0).tolist() == [sees]


def test_only_axes_that_are_long_and_elongated_are_shortened():
    scales = torch.tensor([[0.5, 0.01, 0.02], [0.04, 0.03, 0.01], [0.5, 0.01, 0.02]])
    means = MEANS[[0, 0, 2]]
    for n, expected in ((4, [0.06, 0.04, 0.06]), (15, [0.3464, 0.04, 0.06])):
        log_scales = scales.log()
        shorten_needles(log_scales, means, ring(n), 3.0)
        assert log_scales.exp()[:, 0].tolist() == pytest.approx(expected, rel=1e-3)
        assert torch.equal(log_scales[:, 1:], scales.log()[:, 1:])


@pytest.mark.parametrize("steps", [1, 59, 60, 300, 1500, 7000])
def test_needles_are_shortened_at_equal_intervals_up_to_the_end_of_the_run(steps):
    done = [step for step in range(steps) if limits_needles(step, steps)]
    assert len(done) == (steps if steps < LIMITS else steps // (steps // LIMITS))
    assert done[-1] + steps // LIMITS >= steps - 1
