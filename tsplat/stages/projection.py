"""Stage: 3D Gaussians to the image plane."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..arguments import (
    check_absent,
    check_camera_model,
    check_numerics,
    check_scene,
    check_size,
    check_tensor,
    compute_dtype,
)
from ..config import Numerics
from ..data import Rows, flatten_batch
from .autograd import once_differentiable
from .backend import full_precision, launchers


@dataclasses.dataclass(frozen=True)
class ProjectionSettings:
    """Everything about a projection that is not a tensor; lengths in pixels and world units."""

    width: int
    height: int
    eps2d: float
    near_plane: float
    far_plane: float
    radius_clip: float
    compensate: bool
    packed: bool
    numerics: Numerics
    backend: str


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        quats: Tensor | None,
        scales: Tensor | None,
        covars: Tensor | None,
        opacities: Tensor | None,
        viewmats: Tensor,
        Ks: Tensor,
        sound: Tensor | None,
        settings: ProjectionSettings,
    ) -> tuple[Tensor | None, ...]:
        with full_precision(means.device):
            rows = launchers(means.device, settings.backend).projection_fwd(
                means,
                quats,
                scales,
                covars,
                opacities,
                viewmats,
                Ks,
                sound,
                width=settings.width,
                height=settings.height,
                eps2d=settings.eps2d,
                near_plane=settings.near_plane,
                far_plane=settings.far_plane,
                radius_clip=settings.radius_clip,
                compensate=settings.compensate,
                packed=settings.packed,
                numerics=settings.numerics,
            )
        row_ids, radii = rows[:2]
        ctx.save_for_backward(means, quats, scales, covars, opacities, viewmats, Ks, row_ids, radii)
        ctx.settings = settings
        ctx.mark_non_differentiable(*(t for t in (row_ids, radii) if t is not None))
        return tuple(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v_rows: Tensor | None) -> tuple[Tensor | None, ...]:
        settings: ProjectionSettings = ctx.settings
        v_means2d, v_depths, v_conics, v_compensations, v_opacities = (
            None if v is None else v.contiguous() for v in v_rows[2:]
        )
        with full_precision(saved[0].device):
            grads = launchers(saved[0].device, settings.backend).projection_bwd(
                *saved,
                v_means2d,
                v_depths,
                v_conics,
                v_compensations,
                v_opacities,
                width=settings.width,
                height=settings.height,
                eps2d=settings.eps2d,
                compensate=settings.compensate,
                numerics=settings.numerics,
                needs_viewmats=ctx.needs_input_grad[5],
            )
        return (*grads, None, None, None)


def project(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    sound: Tensor | None,
    settings: ProjectionSettings,
) -> Rows:
    """Projects B scenes of N Gaussians by C cameras each.

    Args:
        means, quats, scales, covars, opacities: [B, N, 3], [B, N, 4], [B, N, 3], [B, N, 6], [B, N], world frame, after
            activation; either quats and scales or covars.
        viewmats, Ks: [B, C, 4, 4], [B, C, 3, 3].
        sound: [B, N] bool, false for Gaussians to cull, or None.
    """
    inputs = (means, quats, scales, covars, opacities, viewmats, Ks, sound)
    contiguous = (None if t is None else t.contiguous() for t in inputs)
    rows = _Project.apply(*contiguous, settings)  # type: ignore[no-untyped-call]
    return Rows(viewmats.shape[1], means.shape[1], *rows)


def fully_fused_projection(
    means: Tensor,
    covars: Tensor | None,
    quats: Tensor | None,
    scales: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    packed: bool = False,
    sparse_grad: bool = False,
    calc_compensations: bool = False,
    camera_model: str = "pinhole",
    opacities: Tensor | None = None,
    *,
    backend: str = "auto",
    numerics: str = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:
    """Projects 3D Gaussians to the image plane (EWA splatting, Zwicker et al. 2001); same as gsplat 1.5.3's.

    Args:
        means: [..., N, 3], world frame.
        covars: [..., N, 6], upper triangles of the world-space covariances; or None with quats and scales.
        quats: [..., N, 4] wxyz, any norm but zero.
        scales: [..., N, 3] standard deviations, after exp.
        viewmats: [..., C, 4, 4] world to camera.
        Ks: [..., C, 3, 3] intrinsics in pixels.
        width, height: Image size in pixels.
        eps2d: Added to the diagonal of the screen covariance, pixels^2.
        near_plane, far_plane: Gaussians outside these camera-space depths are culled.
        radius_clip: Gaussians whose half width and height are both at most this, in pixels, are culled.
        packed: Whether to return visible pairs only.
        calc_compensations: Whether to return the antialiasing factor (Mip-Splatting, arXiv 2311.16493).
        opacities: [..., N] after sigmoid, which tighten the radii; not differentiable here.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``(radii, means2d, depths, conics, compensations)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3], [..., C, N] or None. Culled Gaussians have zeros everywhere. When packed, ``(batch_ids,
        camera_ids, gaussian_ids, radii, means2d, depths, conics, compensations)``, with [nnz] in place of [..., C, N].
        All but radii (int32) and ids (int64) are differentiable with respect to means, covars, quats, scales, viewmats.

    Raises:
        ArgumentError: A shape, element type or value that has no meaning.
        NotImplementedError: ``sparse_grad=True``, another camera model than pinhole, or ``Ks`` that require a gradient.
    """
    check_absent({"sparse_grad": (sparse_grad, False)})
    check_camera_model(camera_model)
    check_size("width", width)
    check_size("height", height)
    batch, n_gaussians, n_cameras = check_scene(means, quats, scales, covars, (6,), opacities, viewmats, Ks)
    preset = check_numerics(numerics)
    if covars is not None:
        quats = scales = None
    dtype = compute_dtype(means, quats, scales, covars, opacities, viewmats, Ks)

    rows = project(
        flatten_batch(means, len(batch), dtype),
        flatten_batch(quats, len(batch), dtype),
        flatten_batch(scales, len(batch), dtype),
        flatten_batch(covars, len(batch), dtype),
        None if opacities is None else flatten_batch(opacities.detach(), len(batch), dtype),
        flatten_batch(viewmats, len(batch), dtype),
        flatten_batch(Ks, len(batch), dtype),
        None,
        ProjectionSettings(
            width=width,
            height=height,
            eps2d=eps2d,
            near_plane=max(near_plane, preset.near_min),
            far_plane=far_plane,
            radius_clip=radius_clip,
            compensate=calc_compensations,
            packed=packed,
            numerics=preset,
            backend=backend,
        ),
    )
    if packed:
        return *rows.indices(), rows.radii, rows.means2d, rows.depths, rows.conics, rows.compensations
    grid = (*batch, n_cameras, n_gaussians)
    return (
        rows.radii.view(*grid, 2),
        rows.means2d.view(*grid, 2),
        rows.depths.view(grid),
        rows.conics.view(*grid, 3),
        None if rows.compensations is None else rows.compensations.view(grid),
    )


def quat_scale_to_covar_preci(
    quats: Tensor,
    scales: Tensor,
    compute_covar: bool = True,
    compute_preci: bool = True,
    triu: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Covariance R diag(s)^2 R^T and precision R diag(s)^-2 R^T; same as gsplat 1.5.3's.

    Args:
        quats: [..., 4] wxyz, any norm but zero.
        scales: [..., 3] standard deviations, after exp.
        compute_covar, compute_preci: Which of the two to compute; the other is None.
        triu: Whether to return upper triangles [..., 6] (00 01 02 11 12 22) in place of [..., 3, 3].

    Returns:
        ``(covars, precis)``, in at least fp32 whatever the autocast state. Differentiable.

    Raises:
        ArgumentError: A shape or element type that has no meaning.
    """
    check_tensor("quats", quats, [*quats.shape[:-1], 4], "[..., 4]")
    check_tensor("scales", scales, [*quats.shape[:-1], 3], "[..., 3] as quats")
    dtype = compute_dtype(quats, scales)
    w, x, y, z = torch.nn.functional.normalize(quats.to(dtype), dim=-1).unbind(-1)
    rotation = torch.stack(
        [
            torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
            torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
            torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
        ],
        -2,
    )

    def squared(factors: Tensor) -> Tensor:
        m = rotation * factors[..., None, :]
        if triu:
            return torch.stack([(m[..., i, :] * m[..., j, :]).sum(-1) for i in range(3) for j in range(i, 3)], -1)
        return (m[..., :, None, :] * m[..., None, :, :]).sum(-1)

    return (
        squared(scales.to(dtype)) if compute_covar else None,
        squared(1 / scales.to(dtype)) if compute_preci else None,
    )
