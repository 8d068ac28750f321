"""Stage: projection of 3D and 2D Gaussians to the image plane."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Cameras, Coefficients, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings
from ..precision import full_precision
from ..runtime.autograd import apply, memory_of_gradient, once_differentiable, release_until_backward
from ..runtime.backend import launchers
from ..runtime.bundles import flatten, restore, split
from .inputs import NO_HARMONICS, Harmonics, contiguous

OUTPUTS = tuple(name for name in ProjectedGaussians._fields if name not in ("n_cameras", "n_gaussians"))
"""Names of the tensors that a projection returns."""


class _Inputs(NamedTuple):
    """Tensor arguments of :func:`project`."""

    gaussians: Gaussians3D
    cameras: Cameras
    harmonics: Harmonics


N_ARGUMENTS = 2
"""Number of arguments of ``_Project`` before the tensors."""


class _Project(torch.autograd.Function):
    """Projects Gaussians and evaluates the colors of rows in one node, as each node takes tens of microseconds."""

    @staticmethod
    def forward(
        ctx: Any, inputs_structure: _Inputs, settings: ProjectionSettings, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        inputs: _Inputs = restore(inputs_structure, tensors)
        gaussians, harmonics = inputs.gaussians, inputs.harmonics
        device = gaussians.means.device
        colors = clamped = None
        with full_precision():
            kernels = launchers(device, settings.backend)
            projected: ProjectedGaussians = kernels.projection_fwd(gaussians, inputs.cameras, settings)
            dense_ids, radii = projected.dense_ids, projected.radii
            if harmonics.coeffs is not None:
                colors, clamped = kernels.spherical_harmonics_fwd(
                    gaussians.means,
                    harmonics.centers,
                    Coefficients(harmonics.coeffs, harmonics.higher),
                    dense_ids,
                    radii,
                    degree=harmonics.degree,
                    as_colors=True,
                )
                release_until_backward(harmonics.higher)
        ctx.save_for_backward(projected.row_of, radii, clamped, *tensors)
        ctx.inputs_structure, ctx.settings, ctx.kernels = inputs_structure, settings, kernels
        integers = (radii, dense_ids, projected.row_of, projected.needed)
        ctx.mark_non_differentiable(*[tensor for tensor in integers if tensor is not None])
        ctx.set_materialize_grads(False)
        return *[getattr(projected, name) for name in OUTPUTS], colors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], *v: Tensor | None) -> tuple[Tensor | None, ...]:
        settings: ProjectionSettings = ctx.settings
        row_of, radii, clamped, *tensors = saved
        gaussians, cameras, harmonics = restore(ctx.inputs_structure, tensors)
        needs: _Inputs = restore(ctx.inputs_structure, ctx.needs_input_grad[N_ARGUMENTS:])  # booleans
        v_harmonics = NO_HARMONICS
        *v_rows, v_colors = v
        given = ProjectedGradients(**{f"v_{name}": t.contiguous() for name, t in zip(OUTPUTS, v_rows) if t is not None})
        v_gaussians, v_cameras = ctx.kernels.projection_bwd(
            gaussians, cameras, row_of, radii, given, settings, needs.cameras
        )
        needs_centers, needs_coeffs = needs.harmonics.centers, needs.harmonics.coeffs or needs.harmonics.higher
        if v_colors is not None and (needs.gaussians.means or needs_centers or needs_coeffs):
            v_means, v_centers, v_coeffs = ctx.kernels.spherical_harmonics_bwd(
                gaussians.means, harmonics.centers, Coefficients(harmonics.coeffs, harmonics.higher), row_of, radii,
                clamped, v_colors,
                degree=harmonics.degree, needs_centers=needs_centers, v_means_before=v_gaussians.means,
                v_higher=memory_of_gradient(harmonics.higher),
            )  # fmt: skip
            v_gaussians = v_gaussians._replace(means=v_means)
            v_harmonics = Harmonics(harmonics.degree, v_centers, *v_coeffs)
        return *(None,) * N_ARGUMENTS, *flatten(_Inputs(v_gaussians, v_cameras, v_harmonics))


def _without_flat(gaussians: Gaussians3D, scale_min: float) -> Gaussians3D:
    """Marks Gaussians with a scale below `scale_min` in magnitude as invalid."""
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
    """Projects B scenes of N Gaussians or surfels with C cameras each.

    Args:
        gaussians: Contiguous tensors with any batch dimensions. The last scale of surfels is not read.
        cameras: Cameras with flattened batch dimensions.
        settings: See :class:`ProjectionSettings`.
        batch: The caller's batch dimensions; ``means2d`` is [*batch, C, N, 2] unless packed.
        harmonics: Spherical harmonics to evaluate for each row.

    Returns:
        The projected Gaussians, and their colors [nnz, 3], or None without harmonics.
    """
    n_cameras, n_gaussians = cameras.viewmats.shape[1], gaussians.means.shape[-2]
    if settings.unscented is not None and settings.numerics.scale_min > 0:
        gaussians = _without_flat(gaussians, settings.numerics.scale_min)
    inputs_structure, tensors = split(_Inputs(gaussians, contiguous(cameras), harmonics))
    *rows, colors = apply(_Project, inputs_structure, settings, *tensors)
    projected = ProjectedGaussians(n_cameras, n_gaussians, **dict(zip(OUTPUTS, rows)))
    if not settings.packed:
        projected = projected._replace(means2d=projected.means2d.view(*batch, n_cameras, n_gaussians, 2))
    return projected, colors
