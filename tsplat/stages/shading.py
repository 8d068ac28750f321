"""Stage: features of projected Gaussians: colors, from spherical harmonics or as given, and extra signals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import compute_dtype, is_per_camera
from ..config import Backend
from ..data import Coefficients, Features, ProjectedGaussians
from ..precision import full_precision
from ..runtime.autograd import apply, once_differentiable
from ..runtime.backend import launchers
from .call import Call
from .inputs import gather_features


class _SphericalHarmonics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        centers: Tensor,
        coeffs: Tensor,
        dense_ids: Tensor | None,
        row_of: Tensor | None,
        radii: Tensor | None,
        degree: int,
        as_colors: bool,
        backend: Backend,
    ) -> Tensor:
        with full_precision():
            colors: Tensor
            colors, clamped = launchers(means.device, backend).spherical_harmonics_fwd(
                means, centers, Coefficients(coeffs), dense_ids, radii, degree=degree, as_colors=as_colors
            )
        ctx.save_for_backward(means, centers, coeffs, row_of, radii, clamped)
        ctx.degree, ctx.backend = degree, backend
        return colors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v_colors: Tensor) -> tuple[Tensor | None, ...]:
        means, centers, coeffs, *rest = saved
        v_means, v_centers, v_coeffs = launchers(v_colors.device, ctx.backend).spherical_harmonics_bwd(
            means, centers, Coefficients(coeffs), *rest, v_colors,
            degree=ctx.degree, needs_centers=ctx.needs_input_grad[1],
        )  # fmt: skip
        return v_means, v_centers, v_coeffs.first, None, None, None, None, None, None


def evaluate_harmonics(
    means: Tensor,
    centers: Tensor,
    coeffs: Tensor,
    dense_ids: Tensor | None,
    row_of: Tensor | None,
    radii: Tensor | None,
    degree: int,
    backend: Backend,
    *,
    as_colors: bool,
) -> Tensor:
    """Evaluates spherical harmonics in the directions from camera centers to means. [nnz, D], zero for culled rows.

    Args:
        means, centers: [..., N, 3] with B N means in total, and [B, C, 3].
        coeffs: [..., N, K, D] of any float dtype.
        dense_ids, row_of: [nnz] int64 index into [B, C, N], and its inverse; or None if not packed.
        radii: [nnz, 2] int32, zero for culled rows; None if no row is culled.
        as_colors: Whether to return max(value + 0.5, 0); otherwise, returns the value.
    """
    n_channels = coeffs.shape[-1]
    means, centers = means.contiguous(), centers.contiguous()
    rest = dense_ids, row_of, radii, degree, as_colors, backend
    colors: Tensor
    if n_channels == 3:
        colors = apply(_SphericalHarmonics, means, centers, coeffs.contiguous(), *rest)
        return colors
    # Kernels evaluate three channels. Slices instead of split, whose gradient is cat, which autocast changes.
    padded = torch.nn.functional.pad(coeffs, (0, -n_channels % 3))
    chunks = [padded[..., first : first + 3].contiguous() for first in range(0, n_channels, 3)]
    colors = torch.cat([apply(_SphericalHarmonics, means, centers, chunk, *rest) for chunk in chunks], -1)
    return colors[:, :n_channels]


def shade(
    call: Call, means: Tensor, centers: Tensor | None, projected: ProjectedGaussians, evaluated: Tensor | None
) -> Features:
    """Computes the features of projected Gaussians: colors if they are rendered, then extra signals.

    Args:
        means, centers: [..., N, 3], and camera centers [B, C, 3], None without spherical harmonics.
        evaluated: Colors [nnz, 3] that the projection has evaluated, or None.
    """
    o, colors = call.options, Features(evaluated, None)
    if o.renders_color and evaluated is None:
        colors = find_features(means, call.all_colors(), centers, projected, o.sh_degree, o.backend)
    if call.extra_signals is None:
        return colors
    degree = o.extra_signals_sh_degree
    extra = find_features(means, call.extra_signals, centers, projected, degree, o.backend, clamp=False)
    return _concatenate(colors, extra, o.backend)


def find_features(
    means: Tensor,
    colors: Tensor,
    centers: Tensor | None,
    projected: ProjectedGaussians,
    sh_degree: int | None,
    backend: Backend,
    *,
    clamp: bool = True,
) -> Features:
    """Computes features from colors, or with ``sh_degree`` max(spherical harmonics + 0.5, 0) from coefficients.

    Args:
        means, centers: [..., N, 3], and camera centers [B, C, 3], None without ``sh_degree``.
        colors: [..., N, D] or per camera [..., C, N, D] of any float dtype; with ``sh_degree``, coefficients
            [..., N, K, D] or [..., C, N, K, D].
        clamp: Whether to clamp spherical harmonics + 0.5 to at least 0.
    """
    per_camera = is_per_camera(colors, sh_degree, means.dim() - 2)
    if sh_degree is None:
        return Features(colors.flatten(0, -2), projected.feature_ids(per_camera=per_camera))
    assert centers is not None
    if per_camera:
        # Treat each camera as a scene with one camera.
        means = means[..., None, :, :].expand(*colors.shape[:-2], 3)
        centers = centers.flatten(0, 1)[:, None]
    rows = projected.dense_ids, projected.row_of, projected.radii
    values = evaluate_harmonics(means, centers, colors, *rows, sh_degree, backend, as_colors=clamp)
    return Features(values if clamp else values + 0.5, None)


def _concatenate(features: Features, extra: Features, backend: Backend) -> Features:
    """Concatenates the channels of two sets of features."""
    if features.values is None:
        return extra
    assert extra.values is not None
    dtype = compute_dtype(features.values, extra.values)
    # Convert first, so that the gradients of rows are summed in the compute dtype.
    colors = gather_features(features.values.to(dtype), features.ids, backend)
    extra_signals = gather_features(extra.values.to(dtype), extra.ids, backend)
    return Features(torch.cat([colors, extra_signals], -1), None)
