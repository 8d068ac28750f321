"""Real spherical harmonics of the dense reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sh_basis(degree: int, directions: Tensor) -> Tensor:
    """Evaluates real spherical harmonics at unit directions, in the order and signs of 3DGS. [..., 3] -> [..., K]

    Y_lm = sqrt((2l + 1)/(4 pi) (l - m)!/(l + m)!) P_lm(z) {cos, sin}(m phi). P_lm follows from the recurrences of the
    associated Legendre functions, to check the tabulated polynomials of the kernels.
    """
    x, y, z = directions.unbind(-1)
    one = torch.ones_like(x)
    # sin^m(theta) cos(m phi) and sin^m(theta) sin(m phi) as polynomials in x and y.
    cosine, sine = [one], [torch.zeros_like(x)]
    for _ in range(degree):
        cosine, sine = [*cosine, cosine[-1] * x - sine[-1] * y], [*sine, cosine[-1] * y + sine[-1] * x]
    # legendre[l][m] = P_lm(z) / sin^m(theta), with the Condon-Shortley phase (-1)^m.
    legendre = [[one * 0 for _ in range(degree + 1)] for _ in range(degree + 1)]
    legendre[0][0] = one
    for m in range(1, degree + 1):
        legendre[m][m] = -(2 * m - 1) * legendre[m - 1][m - 1]
    for m in range(degree):
        legendre[m + 1][m] = (2 * m + 1) * z * legendre[m][m]
    for m in range(degree + 1):
        for n in range(m + 2, degree + 1):
            legendre[n][m] = ((2 * n - 1) * z * legendre[n - 1][m] - (n + m - 1) * legendre[n - 2][m]) / (n - m)
    basis = []
    for n in range(degree + 1):
        for m in range(-n, n + 1):
            k = abs(m)
            factorials = math.prod(range(n - k + 1, n + k + 1))
            norm = ((2 * n + 1) / (4 * torch.pi) / factorials) ** 0.5 * (2**0.5 if k else 1.0)
            basis.append(norm * legendre[n][k] * (sine[k] if m < 0 else cosine[k]))
    return torch.stack(basis, -1)


def spherical_harmonics(degree: int, directions: Tensor, coeffs: Tensor) -> Tensor:
    """Evaluates spherical harmonics at directions of any norm. [..., 3], [..., K, 3] -> [..., 3]"""
    basis = sh_basis(degree, torch.nn.functional.normalize(directions, dim=-1))
    return (basis[..., None] * coeffs[..., : basis.shape[-1], :]).sum(-2)
