"""Spherical harmonics under gsplat's private names, which other projects import."""

import math

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError, reference, spherical_harmonics
from tsplat.compat.gsplat.cuda._torch_impl import _eval_sh_bases_fast, _spherical_harmonics


def directions(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(*shape, 3, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("degree", range(5))
def test_bases_match_reference(degree):
    dirs = directions(2, 7)
    found = _eval_sh_bases_fast((degree + 1) ** 2, dirs)
    assert_exact("bases", found, reference.sh_basis(degree, dirs))


def test_bases_are_orthonormal():
    # Gauss-Legendre nodes in z times equal angles integrate products of degree 8 exactly.
    import numpy as np

    z, weights = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(6))
    angles = torch.arange(12, dtype=torch.float64) * (2 * math.pi / 12) + 0.1
    ring = (1 - z * z).sqrt()[:, None]
    dirs = torch.stack([ring * angles.cos(), ring * angles.sin(), z[:, None].expand(-1, 12)], -1)
    bases = _eval_sh_bases_fast(25, dirs)
    gram = torch.einsum("zai,zaj,z->ij", bases, bases, weights) * (2 * math.pi / 12)
    assert_exact("gram", gram, torch.eye(25, dtype=torch.float64))


def test_bases_gradients():
    dirs = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda d: _eval_sh_bases_fast(16, torch.nn.functional.normalize(d, dim=-1)), (dirs,)
    )


def test_spherical_harmonics_are_those_of_tsplat():
    dirs = directions(6)
    coeffs = torch.rand(6, 16, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(_spherical_harmonics(2, dirs, coeffs), spherical_harmonics(2, dirs, coeffs))
    masks = torch.tensor([True, False] * 3)
    masked = spherical_harmonics(3, dirs, coeffs, masks)
    assert not masked[~masks].any()
    assert_exact("masked", masked[masks], reference.spherical_harmonics(3, dirs, coeffs)[masks])


def test_number_of_bases_is_checked():
    with pytest.raises(ArgumentError, match=r"basis_dim: expected one of \[1, 4, 9, 16, 25\], found 5"):
        _eval_sh_bases_fast(5, directions(2))
