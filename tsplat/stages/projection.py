"""Stage: projection of 3D Gaussians to the image plane."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import (
    check_bool,
    check_culling,
    check_numerics,
    check_rolling_shutter,
    check_size,
    check_tensor,
    compute_dtype,
)
from ..config import (
    Backend,
    CameraModel,
    CameraSettings,
    NumericsName,
    RollingShutterType,
    UnscentedTransformParameters,
)
from ..data import Cameras, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings
from ..errors import ArgumentError
from ..formulas.rotations import rotation_matrices
from ..kernels_torch.camera_models import project_points
from ..precision import full_precision, in_full_precision, matrix_product
from .autograd import apply, once_differentiable
from .backend import launchers
from .bundles import regroup
from .compilation import eager, with_plain_tensors
from .inputs import NO_HARMONICS, Harmonics, check_scene, contiguous, flatten_batches, in_dtype
from .lens_models import Lens, add_lens, check_camera_model, check_unscented, name_of
from .sparse_gradients import SparseGradients

OUTPUTS = tuple(name for name in ProjectedGaussians._fields if name not in ("n_cameras", "n_gaussians"))
"""What a projection returns as tensors."""
OWN_SHAPES = ((2,), (2,), (), (3,), ())
"""Trailing dimensions of radii, means2d, depths, conics and compensations."""


class _Project(torch.autograd.Function):
    """A projection and the colors of its rows in one node, as each takes tens of microseconds."""

    @staticmethod
    def forward(
        ctx: Any, settings: ProjectionSettings, cameras_type: type[Cameras], degree: int, *tensors: Any
    ) -> tuple[Tensor | None, ...]:
        centers, coeffs, *rest = tensors
        gaussians, cameras = regroup(rest, Gaussians3D, cameras_type)
        device = gaussians.means.device
        colors = clamped = None
        with full_precision():
            launch = launchers(device, settings.backend)
            projected: ProjectedGaussians = launch.projection_fwd(gaussians, cameras, settings)
            dense_ids, radii = projected.dense_ids, projected.radii
            if coeffs is not None:
                colors, clamped = launch.spherical_harmonics_fwd(
                    gaussians.means, centers, coeffs, dense_ids, radii, degree=degree, clamp=True
                )
        ctx.save_for_backward(projected.row_of, radii, clamped, *tensors)
        ctx.settings, ctx.cameras_type, ctx.degree, ctx.launch = settings, cameras_type, degree, launch
        if dense_ids is None:
            ctx.mark_non_differentiable(radii)
        else:
            ctx.mark_non_differentiable(radii, dense_ids, projected.row_of)
        ctx.set_materialize_grads(False)
        return *[getattr(projected, name) for name in OUTPUTS], colors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], *v: Tensor | None) -> tuple[Tensor | None, ...]:
        settings: ProjectionSettings = ctx.settings
        row_of, radii, clamped, centers, coeffs, *rest = saved
        gaussians, cameras = regroup(rest, Gaussians3D, ctx.cameras_type)
        _, _, _, needs_centers, needs_coeffs, *flags = ctx.needs_input_grad
        needs_gaussians, needs = regroup(flags, Gaussians3D, ctx.cameras_type)
        *v_rows, v_colors = v
        given = ProjectedGradients(**{f"v_{name}": t.contiguous() for name, t in zip(OUTPUTS, v_rows) if t is not None})
        v_centers = v_coeffs = None
        v_gaussians, v_cameras = ctx.launch.projection_bwd(gaussians, cameras, row_of, radii, given, settings, needs)
        if v_colors is not None and (needs_gaussians.means or needs_centers or needs_coeffs):
            v_means, v_centers, v_coeffs = ctx.launch.spherical_harmonics_bwd(
                gaussians.means, centers, coeffs, row_of, radii, clamped, v_colors,
                degree=ctx.degree, needs_centers=needs_centers, others=v_gaussians.means,
            )  # fmt: skip
            v_gaussians = v_gaussians._replace(means=v_means)
        return None, None, None, v_centers, v_coeffs, *v_gaussians, *v_cameras


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
    *rows, colors = apply(_Project, settings, type(cameras), *harmonics, *gaussians, *contiguous(cameras))
    projected = ProjectedGaussians(n_cameras, n_gaussians, **dict(zip(OUTPUTS, rows)))
    if not settings.packed:
        projected = projected._replace(means2d=projected.means2d.view(*batch, n_cameras, n_gaussians, 2))
    return projected, colors


@eager
@with_plain_tensors
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
    camera_model: CameraModel = "pinhole",
    opacities: Tensor | None = None,
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:
    """Projects 3D Gaussians to the image plane (EWA splatting, Zwicker et al., 2001). Same as gsplat 1.5.3.

    Args:
        means: [..., N, 3], world frame.
        covars: [..., N, 6], upper triangles of the world-space covariances; or None with quats and scales.
        quats: [..., N, 4] wxyz, any nonzero norm.
        scales: [..., N, 3] standard deviations, after exp.
        viewmats: [..., C, 4, 4] world to camera.
        Ks: [..., C, 3, 3] intrinsics in pixels.
        width, height: Image size in pixels.
        eps2d: Added to the diagonal of the screen covariance, pixels^2.
        near_plane, far_plane: Gaussians outside these camera-space depths are culled.
        radius_clip: Gaussians whose radii are both at most this, in pixels, are culled.
        packed: Whether to return visible Gaussians only, as packed tensors.
        sparse_grad: As in :func:`tsplat.rasterization`, for means, covars, quats and scales.
        calc_compensations: Whether to return antialiasing factors (Mip-Splatting, arXiv 2311.16493).
        camera_model: As in :func:`tsplat.rasterization`.
        opacities: [..., N] after sigmoid; they tighten the radii. Not differentiable here.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``(radii, means2d, depths, conics, compensations)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3], and [..., C, N] or None. Culled Gaussians are zero. Packed, ``(batch_ids, camera_ids,
        gaussian_ids, radii, means2d, depths, conics, compensations)`` with [nnz] in place of [..., C, N]. All but
        radii (int32) and ids (int64) are differentiable with respect to means, covars, quats, scales and viewmats.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: ``camera_model="ftheta"``, or ``Ks`` that require a gradient.

    Example::

        import torch
        from tsplat import fully_fused_projection

        means, quats = torch.tensor([[0.0, 0, 4]]), torch.tensor([[1.0, 0, 0, 0]])
        Ks = torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]])
        radii, means2d, depths, conics, _ = fully_fused_projection(
            means, None, quats, torch.full((1, 3), 0.1), torch.eye(4)[None], Ks, width=80, height=60
        )
        assert means2d[0, 0].tolist() == [40, 30] and depths.item() == 4
    """
    check_camera_model(camera_model)
    width, height = check_size("width", width), check_size("height", height)
    preset = check_numerics(numerics)
    near, far, radius_clip, eps2d = check_culling(near_plane, far_plane, radius_clip, eps2d, preset, camera_model)
    packed, sparse_grad = check_bool("packed", packed), check_bool("sparse_grad", sparse_grad)
    cameras = Cameras(viewmats, Ks)
    batch, _, _ = check_scene(means, quats, scales, covars, (6,), opacities, cameras)
    if sparse_grad and (not packed or batch):
        raise ArgumentError(f"sparse_grad: requires packed=True and no batch dimensions, found {packed}, {list(batch)}")
    sparse_gradients = SparseGradients() if sparse_grad else None
    if covars is not None:
        quats = scales = None
    if sparse_gradients is not None:
        means, covars, quats, scales = map(sparse_gradients.attach, (means, covars, quats, scales))  # type: ignore[assignment]
    dtype = compute_dtype(means, quats, scales, covars, opacities, *cameras)
    if opacities is not None:
        opacities = opacities.detach()
    settings = ProjectionSettings(
        camera=CameraSettings.of(width, height, camera_model, near, far, preset),
        eps2d=eps2d,
        radius_clip=radius_clip,
        antialiased=check_bool("calc_compensations", calc_compensations),
        packed=packed,
        numerics=preset,
        backend=backend,
    )
    gaussians = in_dtype(Gaussians3D(means, quats, scales, covars, opacities), dtype)
    projected, _ = project(gaussians, flatten_batches(cameras, len(batch), dtype), settings, batch)
    if sparse_gradients is not None:
        sparse_gradients.set_visible(projected)
    if packed:
        outputs = (projected.radii, projected.means2d, projected.depths, projected.conics, projected.compensations)
        return *projected.ids(), *outputs
    return _unpacked(projected, batch)


@eager
@with_plain_tensors
def fully_fused_projection_with_ut(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    calc_compensations: bool = False,
    camera_model: CameraModel = "pinhole",
    ut_params: UnscentedTransformParameters | None = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL,
    viewmats_rs: Tensor | None = None,
    *,
    global_z_order: bool = True,
    external_distortion_coeffs: object | None = None,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:
    """Projects 3D Gaussians to the image plane by the unscented transform. Same as gsplat 1.5.3, and differentiable.

    Args:
        means, quats, scales, opacities, viewmats, Ks: As :func:`fully_fused_projection`.
        width, height, eps2d, near_plane, far_plane, radius_clip: As :func:`fully_fused_projection`.
        calc_compensations, camera_model, backend, numerics: As :func:`fully_fused_projection`.
        ut_params, radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, rolling_shutter, viewmats_rs: As
            :func:`tsplat.rasterization`.
        external_distortion_coeffs: As :func:`tsplat.rasterization`.
        global_z_order: As :func:`tsplat.rasterization`; of depths and culling.

    Returns:
        ``(radii, means2d, depths, conics, compensations)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3], and [..., C, N] or None. Culled Gaussians are zero. All but radii (int32) are differentiable
        with respect to means, quats, scales, viewmats, viewmats_rs, radial_coeffs, tangential_coeffs and
        thin_prism_coeffs.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options do not fit each other.

    Example::

        import torch
        from tsplat import fully_fused_projection_with_ut

        means, quats = torch.tensor([[1.0, 0, 4]]), torch.tensor([[1.0, 0, 0, 0]])
        Ks = torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]])
        barrel = torch.tensor([[-0.3, 0, 0, 0, 0, 0]])  # k1 to k6
        _, means2d, _, _, _ = fully_fused_projection_with_ut(
            means, quats, torch.full((1, 3), 1e-3), None, torch.eye(4)[None], Ks, 80, 60, radial_coeffs=barrel
        )
        assert abs(means2d[0, 0, 0] - (40 + 25 * (1 - 0.3 / 16))) < 1e-3
    """
    check_camera_model(camera_model, with_ut=True)
    readout = name_of(rolling_shutter)
    check_rolling_shutter(readout)
    width, height = check_size("width", width), check_size("height", height)
    preset = check_numerics(numerics)
    near, far, radius_clip, eps2d = check_culling(near_plane, far_plane, radius_clip, eps2d, preset, camera_model)
    settings = ProjectionSettings(
        camera=CameraSettings.of(width, height, camera_model, near, far, preset, readout),
        eps2d=eps2d,
        radius_clip=radius_clip,
        antialiased=check_bool("calc_compensations", calc_compensations),
        numerics=preset,
        backend=backend,
        unscented=check_unscented(True, ut_params, preset, global_z_order),
    )
    cameras = Cameras(viewmats, Ks)
    batch, _, n_cameras = check_scene(means, quats, scales, None, (6,), opacities, cameras)
    lens = Lens(
        radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, external_distortion_coeffs, viewmats_rs
    )
    cameras = add_lens(cameras, lens, settings, batch, n_cameras)
    opacities = None if opacities is None else opacities.detach()
    dtype = compute_dtype(means, quats, scales, opacities, *cameras)
    gaussians = in_dtype(Gaussians3D(means, quats, scales, None, opacities), dtype)
    projected, _ = project(gaussians, flatten_batches(cameras, len(batch), dtype), settings, batch)
    return _unpacked(projected, batch)


def _unpacked(projected: ProjectedGaussians, batch: torch.Size) -> tuple[Tensor | None, ...]:
    """Radii, means2d, depths, conics and compensations, [*batch, C, N, ...]."""
    outputs = (projected.radii, projected.means2d, projected.depths, projected.conics, projected.compensations)
    shape = (*batch, projected.n_cameras, projected.n_gaussians)
    return tuple(None if t is None else t.view(*shape, *own) for t, own in zip(outputs, OWN_SHAPES))


@in_full_precision
def project_covariances(
    means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int, camera_model: CameraModel
) -> tuple[Tensor, Tensor]:
    """Projects Gaussians of the camera frame, without blur and culling, in PyTorch.

    Args:
        means, covars: [..., C, N, 3] and [..., C, N, 3, 3], camera frame.
        Ks: [..., C, 3, 3]. Not differentiable.
        width, height, camera_model: As in :func:`tsplat.rasterization`.

    Returns:
        Means [..., C, N, 2] in pixels and covariances [..., C, N, 2, 2] in pixels^2, in at least fp32. Differentiable
        with respect to means and covars.
    """
    dtype = compute_dtype(means, covars, Ks)
    means, covars, Ks = means.to(dtype), covars.to(dtype), Ks.to(dtype)
    fx, fy, cx, cy = (Ks[..., i, j, None].detach() for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    x, y, z = means.unbind(-1)
    *mean2d, row0, row1 = project_points((x, y, z), (fx, fy, cx, cy), width, height, camera_model)
    zero = torch.zeros_like(x)
    rows = (torch.stack([zero if entry is None else entry + zero for entry in row], -1) for row in (row0, row1))
    jacobian = torch.stack(list(rows), -2)  # [..., C, N, 2, 3]
    return torch.stack(mean2d, -1), matrix_product(matrix_product(jacobian, covars), jacobian.mT)


@in_full_precision
def quat_scale_to_covar_preci(
    quats: Tensor, scales: Tensor, compute_covar: bool = True, compute_preci: bool = True, triu: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Computes covariances R diag(s)^2 R^T and precisions R diag(s)^-2 R^T. Same as gsplat 1.5.3.

    Args:
        quats: [..., 4] wxyz, any nonzero norm.
        scales: [..., 3] standard deviations, after exp.
        compute_covar, compute_preci: Which of the two to compute; the other is None.
        triu: Whether to return upper triangles [..., 6] (00 01 02 11 12 22) instead of [..., 3, 3].

    Returns:
        ``(covars, precis)``, in at least fp32 whatever the autocast state. Differentiable.

    Raises:
        ArgumentError: A shape or dtype is invalid.

    Example::

        import torch
        from tsplat import quat_scale_to_covar_preci

        quats = torch.tensor([[1.0, 0, 0, 0]])  # no rotation
        covars, precis = quat_scale_to_covar_preci(quats, torch.tensor([[1.0, 2, 4]]))
        assert torch.equal(covars[0].diag(), torch.tensor([1.0, 4, 16]))
    """
    check_tensor("quats", quats, [..., 4], "[..., 4]")
    check_tensor("scales", scales, [*quats.shape[:-1], 3], "[..., 3] as quats")
    dtype = compute_dtype(quats, scales)
    rotation = rotation_matrices(torch.nn.functional.normalize(quats.to(dtype), dim=-1))

    def squared(factors: Tensor) -> Tensor:
        m = rotation * factors[..., None, :]
        if triu:
            return torch.stack([(m[..., i, :] * m[..., j, :]).sum(-1) for i in range(3) for j in range(i, 3)], -1)
        return (m[..., :, None, :] * m[..., None, :, :]).sum(-1)

    return (
        squared(scales.to(dtype)) if compute_covar else None,
        squared(1 / scales.to(dtype)) if compute_preci else None,
    )
