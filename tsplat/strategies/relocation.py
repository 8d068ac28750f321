"""Opacities and scales of copies of a Gaussian ("3D Gaussian Splatting as Markov Chain Monte Carlo", 2024)."""

import math

import torch
from torch import Tensor

from ..arguments import FLOATS, INTEGERS, check_tensor
from ..runtime.compilation import with_plain_tensors
from .gaussian_parameters import check_floats, check_min_opacity

BLOCK = 2**14
"""Number of Gaussians of which all coefficients are in memory at a time."""


def binomial_table(n_max: int = 51) -> Tensor:
    """Returns the binomial coefficients C(n, k) in row n and column k; 0 where k > n. [n_max, n_max] fp64"""
    return torch.tensor(
        [[math.comb(n, k) for k in range(n_max)] for n in range(n_max)], dtype=torch.float64, device="cpu"
    )


def check_binoms(binoms: Tensor) -> None:
    """Raises `ArgumentError` unless a table of binomial coefficients is square."""
    check_tensor("binoms", binoms, [None, None], "[n_max, n_max]")
    check_floats("binoms", binoms, (len(binoms),) * 2)


@with_plain_tensors
def compute_relocation(
    opacities: Tensor, scales: Tensor, ratios: Tensor, binoms: Tensor, min_opacity: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Computes the opacity and scales with which n copies of a Gaussian look like the original (equation 9).

    Args:
        opacities: [N] or [N, 1] after sigmoid.
        scales: [N, 3] after exp, in world units.
        ratios: [N] numbers of copies n: integers, or floats that are rounded down. They are clamped to [1, n_max].
        binoms: [n_max, n_max] binomial coefficients, see :func:`binomial_table`, on the device of the Gaussians.
        min_opacity: Minimum opacity o' of a copy; if it is above 0, o' is also limited to less than 1. Scales are
            computed from the limited o'.

    Returns:
        Opacities of the shape of `opacities`, o' = 1 - (1 - o)^(1/n); and scales [N, 3], multiplied by o and divided by
        the sum over i = 1..n, k = 0..i-1 of (-1)^k C(i-1, k) / sqrt(k + 1) o'^(k+1). Without gradient.

    Raises:
        ArgumentError: A shape or dtype is invalid, or ``min_opacity`` is not in [0, 1).
    """
    check_tensor("opacities", opacities, [...], "[N] or [N, 1]")
    n_gaussians = opacities.shape[0] if opacities.dim() else 0
    flat = opacities.detach().flatten()
    check_floats("opacities", opacities, (n_gaussians,), (n_gaussians, 1))
    check_tensor("scales", scales, [n_gaussians, 3], "[N, 3] as opacities")
    check_binoms(binoms)
    dtypes = FLOATS if isinstance(ratios, Tensor) and ratios.is_floating_point() else INTEGERS
    check_tensor("ratios", ratios, [n_gaussians], "[N] as opacities", dtypes=dtypes)
    check_min_opacity(min_opacity)
    n_max = len(binoms)
    copies = ratios.double().nan_to_num(1).clamp(1, n_max).long()
    # The coefficients of the powers of o', summed over i.
    k = torch.arange(n_max, device=flat.device)
    signs = 1.0 - 2.0 * (k % 2)
    coefficients = binoms.double().cumsum(0) * signs / (k + 1).double().sqrt()
    new, new_scales = torch.empty_like(flat), torch.empty_like(scales)
    for begin in range(0, n_gaussians, BLOCK):
        block = slice(begin, begin + BLOCK)
        o = flat[block].double()
        opacity = 1 - (1 - o) ** (1 / copies[block].double())
        if min_opacity > 0:
            opacity = opacity.clamp(min_opacity, 1 - torch.finfo(opacities.dtype).eps)
        total = (coefficients[copies[block] - 1] * opacity[:, None] ** (k + 1)).sum(-1)
        # Scales do not change if o is so small that o' is rounded to 0.
        factor = torch.where(total > 0, o / total, 1.0)
        new[block] = opacity
        new_scales[block] = scales.detach()[block].double() * factor[:, None]
    return new.view_as(opacities), new_scales
