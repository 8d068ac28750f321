"""The parameters of a scene: from points to what the rasterizer takes."""

import dataclasses
import math
import sys

import pytest
import torch

import tsplat
from tsplat import ArgumentError, DtypeError, ShapeError
from tsplat.scene import Gaussians, MissingExtraError


def lattice(n=4, spacing=0.5):
    axis = torch.arange(n) * spacing
    return torch.cartesian_prod(axis, axis, axis)


def some(n=5, degree=1):
    generator = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(n, *size, generator=generator)

    return Gaussians(draw(3), draw(3), draw(4), draw(), draw(1, 3), draw((degree + 1) ** 2 - 1, 3))


def test_points_on_a_lattice_become_round_gaussians_as_wide_as_its_spacing():
    points = lattice()
    gaussians = Gaussians.from_points(points, torch.rand(len(points), 3), sh_degree=2)
    assert gaussians.sh_degree == 2
    assert torch.equal(gaussians.means, points)
    # Every point of the lattice has three neighbors at the spacing.
    torch.testing.assert_close(gaussians.scales, torch.full((64, 3), 0.5))
    torch.testing.assert_close(gaussians.opacities, torch.full((64,), 0.1))
    assert gaussians.quats.tolist() == [[1, 0, 0, 0]] * 64
    assert not gaussians.shN.any()


def test_spacing_is_the_mean_of_three_distances():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 6], [0, 0, 100]])
    gaussians = Gaussians.from_points(points, torch.zeros(5, 3))
    assert float(gaussians.scales[0, 0]) == pytest.approx((1 + 2 + 6) / 3)


def test_points_in_one_place_have_finite_scales():
    gaussians = Gaussians.from_points(torch.zeros(6, 3), torch.zeros(6, 3))
    assert gaussians.log_scales.isfinite().all()
    assert (gaussians.scales > 0).all()


def test_degree_zero_shows_the_color():
    colors = torch.tensor([[0.0, 0.25, 1.0], [0.9, 0.5, 0.1]])
    gaussians = Gaussians.from_points(torch.tensor([[0.0, 0, 0], [1, 2, 3]]), colors)
    shown = 0.5 + tsplat.spherical_harmonics(0, torch.ones(2, 3), gaussians.sh_coeffs(0))
    torch.testing.assert_close(shown, colors)


def test_coefficients_up_to_a_degree():
    gaussians = some(degree=3)
    assert gaussians.sh_coeffs(2).shape == (5, 9, 3)
    assert torch.equal(gaussians.sh_coeffs(2)[:, 1:], gaussians.shN[:, :8])


def test_what_is_not_a_number_is_not_sound():
    gaussians = some(6)
    gaussians.means[0, 1] = math.nan
    gaussians.shN[1, 2, 0] = math.inf
    gaussians.opacity_logits[2] = math.inf  # fully opaque, as converters write it
    gaussians.opacity_logits[3] = math.nan
    gaussians.log_scales[4, 0] = -math.inf
    assert gaussians.sound.tolist() == [False, False, True, False, True, True]


def test_the_mark_of_antialiased_gaussians_goes_along():
    gaussians = dataclasses.replace(some(), antialiased=True)
    assert gaussians.to("cpu").antialiased
    assert gaussians.map(lambda tensor: tensor[:2]).antialiased
    assert "antialiased" not in gaussians.tensors()
    assert not some().map(torch.clone).antialiased


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
def test_parameters_that_do_not_go_together_are_named(name, value, error):
    with pytest.raises(error, match=name):
        Gaussians(**{**some().tensors(), name: value})


@pytest.mark.parametrize(
    ("points", "colors", "degree", "words"),
    [
        (torch.zeros(3, 3), torch.zeros(2, 3), 3, "colors"),
        (torch.zeros(1, 3), torch.zeros(1, 3), 3, "two"),
        (torch.full((3, 3), math.nan), torch.zeros(3, 3), 3, "points.*finite"),
        (torch.zeros(3, 3), torch.zeros(3, 3), 5, "sh_degree"),
    ],
)
def test_points_that_make_no_scene(points, colors, degree, words):
    with pytest.raises(ArgumentError, match=words):
        Gaussians.from_points(points, colors, degree)


def test_without_scipy_there_is_a_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtraError, match=r"scipy .*pip install 'tsplat\[train\]'"):
        Gaussians.from_points(torch.rand(5, 3), torch.rand(5, 3))
