"""Cropping a model to a box or a sphere, and the box as an option of the command line."""

import math
import shlex

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat import ArgumentError
from tsplat.cli.parser import build_parser
from tsplat.scene import crop_gaussians, crop_sphere
from tsplat.scene.cropping import crop_option, raise_if_empty


def test_corners_are_inside_and_come_in_any_order():
    gaussians = make_gaussians()
    low, high = gaussians.means[3].tolist(), gaussians.means[7].tolist()
    cropped = crop_gaussians(gaussians, (low, high))
    assert torch.equal(cropped.means, crop_gaussians(gaussians, (high, low)).means)
    for i in (3, 7):
        assert (cropped.means == gaussians.means[i]).all(-1).any()
    lower, upper = (limit(gaussians.means[3], gaussians.means[7]) for limit in (torch.minimum, torch.maximum))
    inside = ((gaussians.means >= lower) & (gaussians.means <= upper)).all(-1)
    assert torch.equal(cropped.log_scales, gaussians.log_scales[inside])


def test_nothing_inside():
    gaussians = make_gaussians()
    gaussians.means[:] = torch.nan
    box = ((1e6, 1e6, 1e6), (-1e6, -1e6, -1e6))
    cropped = crop_gaussians(gaussians, box)
    assert len(cropped) == 0
    with pytest.raises(ArgumentError, match=r"crop: no Gaussian has its center between \(-1000000\.0, "):
        raise_if_empty(cropped, box)


def test_sphere():
    gaussians = make_gaussians()
    gaussians.means[3] = torch.nan
    center = torch.tensor([0.2, 0.1, -0.1])
    distances = (gaussians.means - center).norm(dim=-1)
    kept = crop_sphere(gaussians, center.tolist(), float(distances[5]) + 1e-6)
    assert torch.equal(kept.means, gaussians.means[distances <= distances[5]])
    assert 0 < len(kept) < len(gaussians)


@pytest.mark.parametrize(
    ("center", "radius", "problem"),
    [
        ((0, 0), 1, "center: expected three finite numbers, found"),
        ((0, 0, math.inf), 1, "center: "),
        ((0, 0, 0), 0, "radius: expected a positive number, found 0"),
        ((0, 0, 0), math.nan, "radius: .* found nan"),
    ],
)
def test_invalid_spheres(center, radius, problem):
    with pytest.raises(ArgumentError, match=problem):
        crop_sphere(make_gaussians(), center, radius)


def test_corner_that_is_not_finite():
    with pytest.raises(ArgumentError, match="crop: expected finite corners"):
        crop_gaussians(make_gaussians(), ((0.0, 0.0, 0.0), (math.nan, 1.0, 1.0)))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_option_selects_the_same_gaussians(scale):
    gaussians = make_gaussians()
    gaussians.means[:] *= scale
    low, high = gaussians.means[:30].aminmax(dim=0)
    box = (tuple(low.tolist()), tuple(high.tolist()))
    command = f"convert a.ply b.ply {crop_option(box)}"
    values = build_parser().parse_args(shlex.split(command)).crop
    selected = crop_gaussians(gaussians, (values[:3], values[3:]))
    assert torch.equal(selected.means, crop_gaussians(gaussians, box).means)
    assert 30 <= len(selected) < 60


def test_option_is_short():
    assert crop_option(((0.5, -1.0, 0.1), (-2.0, 1.0, 3.0))) == "--crop -2 -1 0.1 0.5 1 3"
