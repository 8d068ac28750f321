"""Stage: projection of 3D Gaussians to the image plane."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data import Cameras, Coefficients, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings
from ..precision import full_precision
from ..runtime.autograd import apply, once_differentiable
from ..runtime.backend import launchers
from ..runtime.bundles import regroup
from .inputs import NO_HARMONICS, Harmonics, contiguous

OUTPUTS = tuple(name for name in ProjectedGaussians._fields if name not in ("n_cameras", "n_gaussians"))
"""Names of the tensors that a projection returns."""


class _Project(torch.autograd.Function):
    """A projection and the colors of its rows in one node, as each takes tens of microseconds."""

    @staticmethod
    def forward(
        ctx: Any, settings: ProjectionSettings, cameras_type: type[Cameras], degree: int, *tensors: Any
    ) -> tuple[Tensor | None, ...]:
        centers, coeffs, higher, *rest = tensors
        gaussians, cameras = regroup(rest, Gaussians3D, cameras_type)
        device = gaussians.means.device
        colors = clamped = None
        with full_precision():
            kernels = launchers(device, settings.backend)
            projected: ProjectedGaussians = kernels.projection_fwd(gaussians, cameras, settings)
            dense_ids, radii = projected.dense_ids, projected.radii
            if coeffs is not None:
                colors, clamped = kernels.spherical_harmonics_fwd(
                    gaussians.means,
                    centers,
                    Coefficients(coeffs, higher),
                    dense_ids,
                    radii,
                    degree=degree,
                    as_colors=True,
                )
        ctx.save_for_backward(projected.row_of, radii, clamped, *tensors)
        ctx.settings, ctx.cameras_type, ctx.degree, ctx.kernels = settings, cameras_type, degree, kernels
        integers = (radii, dense_ids, projected.row_of, projected.needed)
        ctx.mark_non_differentiable(*[tensor for tensor in integers if tensor is not None])
        ctx.set_materialize_grads(False)
        return *[getattr(projected, name) for name in OUTPUTS], colors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], *v: Tensor | None) -> tuple[Tensor | None, ...]:
        settings: ProjectionSettings = ctx.settings
        row_of, radii, clamped, centers, coeffs, higher, *rest = saved
        gaussians, cameras = regroup(rest, Gaussians3D, ctx.cameras_type)
        _, _, _, needs_centers, needs_coeffs, needs_higher, *flags = ctx.needs_input_grad
        needs_gaussians, needs = regroup(flags, Gaussians3D, ctx.cameras_type)
        *v_rows, v_colors = v
        given = ProjectedGradients(**{f"v_{name}": t.contiguous() for name, t in zip(OUTPUTS, v_rows) if t is not None})
        v_centers, v_coeffs = None, (None, None)
        v_gaussians, v_cameras = ctx.kernels.projection_bwd(gaussians, cameras, row_of, radii, given, settings, needs)
        if v_colors is not None and (needs_gaussians.means or needs_centers or needs_coeffs or needs_higher):
            v_means, v_centers, v_coeffs = ctx.kernels.spherical_harmonics_bwd(
                gaussians.means, centers, Coefficients(coeffs, higher), row_of, radii, clamped, v_colors,
                degree=ctx.degree, needs_centers=needs_centers, v_means_before=v_gaussians.means,
            )  # fmt: skip
            v_gaussians = v_gaussians._replace(means=v_means)
        return None, None, None, v_centers, *v_coeffs, *v_gaussians, *v_cameras


def _without_flat(gaussians: Gaussians3D, scale_min: float) -> Gaussians3D:
    """Marks Gaussians with a scale below a magnitude as invalid."""
    assert gaussians.scales is not None
    valid = (gaussians.scales.detach().abs() >= scale_min).all(-1)
    return gaussians._replace(valid=valid if gaussians.valid is None else valid & gaussians.valid)


def project(
    gaussians: Gaussians3D,
    cameras: Cameras,
    settings: ProjectionSettings,
    batch: torch.Size,
    harmonics: Harmonics = NO_HARMONICS,
) -> tuple[ProjectedGaussians, Tensor | None]:
    """Projects B scenes of N Gaussians, or surfels, with C cameras each.

    Args:
        gaussians: Contiguous, with any batch dimensions. The last scale of surfels is not read.
        cameras: With flattened batch dimensions.
        settings: See :class:`ProjectionSettings`.
        batch: The caller's batch dimensions; ``means2d`` is [*batch, C, N, 2] unless packed.
        harmonics: To evaluate at the rows.

    Returns:
        The rows, and their colors [nnz, 3], None without harmonics.
    """
    n_cameras, n_gaussians = cameras.viewmats.shape[1], gaussians.means.shape[-2]
    if settings.unscented is not None and settings.numerics.scale_min > 0:
        gaussians = _without_flat(gaussians, settings.numerics.scale_min)
    tensors = (harmonics.centers, harmonics.coeffs, harmonics.higher, *gaussians, *contiguous(cameras))
    *rows, colors = apply(_Project, settings, type(cameras), harmonics.degree, *tensors)
    projected = ProjectedGaussians(n_cameras, n_gaussians, **dict(zip(OUTPUTS, rows)))
    if not settings.packed:
        projected = projected._replace(means2d=projected.means2d.view(*batch, n_cameras, n_gaussians, 2))
    return projected, colors
