"""Spherical harmonics."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..arguments import BOOLS, check_devices, check_sh_degree, check_tensor, compute_dtype
from ..config import Backend
from ..errors import ShapeError
from ..runtime.compilation import eager, with_plain_tensors
from ..stages.shading import evaluate_harmonics


@eager
@with_plain_tensors
def spherical_harmonics(
    degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None, *, backend: Backend = "auto"
) -> Tensor:
    """Evaluates real spherical harmonics (Sloan, JCGT 2013). Same as gsplat 1.5.3: 0.5 is not added.

    Args:
        degrees_to_use: Highest degree, 0 to 4.
        dirs: [..., 3] directions from camera to Gaussian, any norm.
        coeffs: [..., K, D] with K >= (degrees_to_use + 1)^2 and any D >= 1.
        masks: [...] bool; where false, colors and gradients are zero.
        backend: As in :func:`tsplat.rasterization`.

    Returns:
        Colors [..., D] in at least fp32. Differentiable with respect to ``dirs`` and ``coeffs``.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.

    Example::

        import torch
        from tsplat import spherical_harmonics

        dirs, coeffs = torch.randn(100, 3), torch.randn(100, 16, 3)
        colors = (spherical_harmonics(3, dirs, coeffs) + 0.5).clamp_min(0)  # [100, 3]
    """
    check_tensor("dirs", dirs, [..., 3], "[..., 3]")
    check_tensor("coeffs", coeffs, [*dirs.shape[:-1], None, None], "[..., K, D] with the leading dimensions of dirs")
    if coeffs.shape[-1] == 0:
        raise ShapeError(f"coeffs: expected at least one channel, found {list(coeffs.shape)}")
    degrees_to_use = check_sh_degree(degrees_to_use, coeffs.shape[-2], "degrees_to_use")
    if masks is not None:
        check_tensor("masks", masks, dirs.shape[:-1], "[...] with the leading dimensions of dirs", dtypes=BOOLS)
    check_devices(dict(dirs=dirs, coeffs=coeffs, masks=masks))
    dtype = compute_dtype(dirs, coeffs)
    radii = None
    if masks is not None:
        radii = masks.reshape(-1, 1).to(torch.int32).expand(-1, 2).contiguous()
    n = math.prod(dirs.shape[:-1])
    colors = evaluate_harmonics(
        dirs.to(dtype).reshape(1, n, 3),
        torch.zeros(1, 1, 3, dtype=dtype, device=dirs.device),
        coeffs.reshape(1, n, *coeffs.shape[-2:]),
        None,
        None,
        radii,
        degrees_to_use,
        backend,
        as_colors=False,
    )
    return colors.view(*dirs.shape[:-1], coeffs.shape[-1])
