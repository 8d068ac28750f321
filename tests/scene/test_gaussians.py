"""Tests of Gaussians: checks, activations, and initialization from points."""

import dataclasses
import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tsplat
from tests.support.model_files import random_gaussians
from tsplat import ArgumentError, DtypeError, ShapeError
from tsplat.scene import AlreadyActivatedError, Gaussians, MissingExtraError
from tsplat.scene.gaussians import point_spacing


def lattice(n=4, spacing=0.5):
    axis = torch.arange(n) * spacing
    return torch.cartesian_prod(axis, axis, axis)


def test_from_points_creates_isotropic_gaussians():
    points = lattice()
    gaussians = Gaussians.from_points(points, torch.rand(len(points), 3), sh_degree=2)
    assert gaussians.sh_degree == 2
    assert torch.equal(gaussians.means, points)
    # Every point of the lattice has three neighbors at distance 0.5.
    torch.testing.assert_close(gaussians.scales, torch.full((64, 3), 0.5))
    torch.testing.assert_close(gaussians.opacities, torch.full((64,), 0.1))
    assert gaussians.quats.tolist() == [[1, 0, 0, 0]] * 64
    assert not gaussians.shN.any()


def test_from_points_scales_are_mean_neighbor_distances():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 6], [0, 0, 100]])
    gaussians = Gaussians.from_points(points, torch.zeros(5, 3))
    assert float(gaussians.scales[0, 0]) == pytest.approx((1 + 2 + 6) / 3)


@pytest.mark.parametrize("jitter", [0.0, 1e-7, 3e-6])
@pytest.mark.parametrize("times", [2, 4, 7])
def test_from_points_scales_are_distances_to_other_positions(times, jitter):
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(3))
    expected = Gaussians.from_points(points, points).scales.repeat(times, 1)
    noise = jitter * torch.randn(200 * times, 3, generator=torch.Generator().manual_seed(4))
    found = Gaussians.from_points(points.repeat(times, 1) + noise, torch.zeros(200 * times, 3)).scales
    ratio = found / expected
    assert ratio.median() == pytest.approx(1.0, abs=0.02)
    assert ratio.min() > 0.3


@given(st.integers(1, 3), st.floats(8, 1e9), st.integers(-30, 30), st.floats(-1e3, 1e3), st.integers(0, 2**31))
def test_from_points_scales_do_not_depend_on_points_far_away_and_the_unit(n_far, distance, exponent, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(200, 3, generator=generator, dtype=torch.float64)
    expected = point_spacing(points)
    directions = torch.nn.functional.normalize(torch.randn(n_far, 3, generator=generator, dtype=torch.float64), dim=-1)
    far = torch.cat([points, distance * directions])
    found = point_spacing(far)
    torch.testing.assert_close(found[:200], expected, rtol=1e-9, atol=0)
    assert found[200:].max() <= 11 * expected.quantile(0.9)
    unit = 2.0**exponent
    assert torch.equal(point_spacing(unit * far), unit * found)
    torch.testing.assert_close(point_spacing(points + shift), expected, rtol=1e-6, atol=0)
    assert torch.equal(point_spacing(far, slice(7, 60)), found[7:60])


def test_from_points_scales_of_coincident_points_are_finite():
    gaussians = Gaussians.from_points(torch.zeros(6, 3), torch.zeros(6, 3))
    assert gaussians.log_scales.isfinite().all()
    assert (gaussians.scales > 0).all()


def test_from_points_reproduces_colors():
    colors = torch.tensor([[0.0, 0.25, 1.0], [0.9, 0.5, 0.1]])
    gaussians = Gaussians.from_points(torch.tensor([[0.0, 0, 0], [1, 2, 3]]), colors)
    found = 0.5 + tsplat.spherical_harmonics(0, torch.ones(2, 3), gaussians.sh_coeffs(0))
    torch.testing.assert_close(found, colors)


def test_sh_coeffs_up_to_a_degree():
    gaussians = random_gaussians(5, degree=3)
    assert gaussians.sh_coeffs(2).shape == (5, 9, 3)
    assert torch.equal(gaussians.sh_coeffs(2)[:, 1:], gaussians.shN[:, :8])


def test_coefficients_are_rendered_without_a_copy():
    gaussians = random_gaussians(5, degree=3)
    arguments = gaussians.rasterization_arguments(1)
    assert arguments["colors"] is gaussians.sh0
    assert arguments["shN"] is gaussians.shN
    assert "shN" not in random_gaussians(5, degree=0).rasterization_arguments(0)


def test_valid_is_false_for_nan_and_infinite_values():
    gaussians = random_gaussians(8, degree=1)
    gaussians.means[0, 1] = math.nan
    gaussians.shN[1, 2, 0] = math.inf
    gaussians.opacity_logits[2] = math.inf  # written by converters for opacity 1
    gaussians.opacity_logits[3] = math.nan
    gaussians.log_scales[4, 0] = -math.inf
    gaussians.shN[5, 0, 2] = math.nan
    gaussians.sh0[6, 0, 1] = -math.inf
    assert gaussians.valid.tolist() == [False, False, True, False, True, False, False, True]
    assert random_gaussians(2, degree=0).valid.all() and not len(gaussians.select(slice(0)).valid)


def test_quaternions_of_zeros_are_invalid():
    gaussians = random_gaussians(5)
    gaussians.quats[0] = 0
    gaussians.quats[1] = torch.tensor([0, 1e-13, 0, 0])
    gaussians.quats[2] = torch.tensor([0, 0, 0, -1e-11])
    gaussians.quats[3] = torch.tensor([0, 3e30, 0, 0])
    assert gaussians.valid.tolist() == gaussians.has_rotation.tolist() == [False, False, True, True, True]
    assert gaussians.finite.all()


def test_antialiased_flag_is_kept():
    gaussians = dataclasses.replace(random_gaussians(5), antialiased=True)
    assert gaussians.to("cpu").antialiased
    assert gaussians.map(lambda tensor: tensor[:2]).antialiased
    assert "antialiased" not in gaussians.tensors()
    assert not random_gaussians(5).map(torch.clone).antialiased


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("means", torch.zeros(5, 2), ShapeError),
        ("quats", torch.zeros(4, 4), ShapeError),
        ("opacity_logits", torch.zeros(5, 1), ShapeError),
        ("shN", torch.zeros(5, 4, 3), ShapeError),
        ("sh0", torch.zeros(5, 1, 3, dtype=torch.int64), DtypeError),
    ],
)
def test_inconsistent_parameters_are_rejected(name, value, error):
    with pytest.raises(error, match=name):
        Gaussians(**{**random_gaussians(5, degree=1).tensors(), name: value})


@pytest.mark.parametrize(
    ("points", "colors", "degree", "words"),
    [
        (torch.zeros(3, 3), torch.zeros(2, 3), 3, "colors"),
        (torch.zeros(1, 3), torch.zeros(1, 3), 3, "two"),
        (torch.full((3, 3), math.nan), torch.zeros(3, 3), 3, "points.*finite"),
        (torch.zeros(3, 3), torch.zeros(3, 3), 5, "sh_degree"),
    ],
)
def test_from_points_rejects_invalid_arguments(points, colors, degree, words):
    with pytest.raises(ArgumentError, match=words):
        Gaussians.from_points(points, colors, degree)


def test_missing_scipy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtraError, match=r"scipy .*pip install 'tsplat\[train\]'"):
        Gaussians.from_points(torch.rand(5, 3), torch.rand(5, 3))


@pytest.mark.parametrize(
    ("log_scales", "opacity_logits", "activated"),
    [
        ((0.01, 0.4), (0.0, 1.0), True),  # scales and opacities
        ((0.01, 0.4), (-3.0, 3.0), True),  # scales, by their number
        ((0.01, 3.0), (0.0, 1.0), True),  # large scales and opacities
        ((1.0, 3.0), (-3.0, 3.0), False),  # log scales of large Gaussians
        ((-5.0, 0.4), (0.0, 1.0), False),
    ],
)
def test_check_not_activated(log_scales, opacity_logits, activated):
    values = random_gaussians(40).tensors()
    values["log_scales"] = torch.linspace(*log_scales, 120).view(40, 3)
    values["opacity_logits"] = torch.linspace(*opacity_logits, 40)
    gaussians = Gaussians(**values)
    if activated:
        with pytest.raises(AlreadyActivatedError, match=r"a\.ply: expected log scales.*force=True"):
            gaussians.check_not_activated("a.ply")
    else:
        gaussians.check_not_activated("a.ply")
    gaussians.map(lambda tensor: tensor[:0]).check_not_activated("empty.ply")
