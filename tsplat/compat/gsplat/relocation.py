"""The names of ``gsplat.relocation``: opacities and scales of Gaussians that are copied."""

from __future__ import annotations

from torch import Tensor

from ... import ShapeError, UnsupportedError
from ...strategies.mcmc import COPIES_MAX, share_appearance

__all__ = ["compute_relocation"]


def compute_relocation(opacities: Tensor, scales: Tensor, ratios: Tensor, binoms: Tensor) -> tuple[Tensor, Tensor]:
    """Computes opacities and scales with which copies of a Gaussian look as it did alone.

    Equation 9 of "3D Gaussian Splatting as Markov Chain Monte Carlo" (Kheradmand et al., 2024), in fp64.

    Args:
        opacities: [N] or [N, 1] after sigmoid.
        scales: [N, 3] after exp.
        ratios: [N] integers, the number of copies. They are limited to 1 to ``n_max``.
        binoms: [n_max, n_max] binomial coefficients. Only ``n_max`` is read, at most 51.

    Returns:
        Opacities of the shape of ``opacities``, and scales [N, 3]. Not differentiable.

    Raises:
        ArgumentError: A shape is invalid.
        NotImplementedError: ``n_max`` is above 51.
    """
    n = opacities.numel()
    if scales.shape != (n, 3) or ratios.shape != (n,):
        raise ShapeError(
            f"scales, ratios: expected [{n}, 3] and [{n}] as opacities, found {list(scales.shape)} and "
            f"{list(ratios.shape)}"
        )
    n_max = binoms.shape[0]
    if binoms.shape != (n_max, n_max) or n_max == 0:
        raise ShapeError(f"binoms: expected [n_max, n_max], found {list(binoms.shape)}")
    if n_max > COPIES_MAX:
        raise UnsupportedError(f"binoms: n_max {n_max} is not implemented; use at most {COPIES_MAX}")
    copies = ratios.detach().long().clamp(1, n_max)
    new_opacities, new_scales = share_appearance(opacities.detach().reshape(n), scales.detach(), copies)
    return new_opacities.view(opacities.shape), new_scales
