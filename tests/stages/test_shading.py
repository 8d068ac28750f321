"""spherical_harmonics: colors and gradients against the reference."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import assert_exact, assert_run_exact
from tsplat import reference


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("degree", range(5))
def test_colors_and_gradients_match_reference(backend, degree):
    generator = torch.Generator().manual_seed(degree)
    dirs = torch.randn(3, 5, 3, generator=generator, dtype=torch.float64)
    coeffs = torch.randn(3, 5, (degree + 1) ** 2 + 2, 3, generator=generator, dtype=torch.float64)
    masks = torch.rand(3, 5, generator=generator) < 0.7
    results = []
    for use_reference in (False, True):
        d, c = dirs.clone().requires_grad_(), coeffs.clone().requires_grad_()
        if use_reference:
            colors = reference.spherical_harmonics(degree, d, c) * masks[..., None]
        else:
            colors = tsplat.spherical_harmonics(degree, d, c, masks, backend=backend)
        gradients = torch.autograd.grad(colors, (d, c), scenes.random_like((colors,), 0), allow_unused=True)
        results.append((colors, *gradients))
    for name, found, expected in zip(("colors", "v_dirs", "v_coeffs"), *results):
        assert_exact(name, found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sh_degree", range(5))
def test_rendered_harmonics_match_reference(backend, sh_degree):
    structure = scenes.Structure(n=6, sh_degree=sh_degree, spare_bases=1, width=9, height=9, seed=sh_degree)
    assert_run_exact(scenes.make(structure), backend=backend, tile_size=16)
