"""Projection of 3D and 2D Gaussians, and covariances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import check_bool, check_culling, check_numerics, check_rolling_shutter, check_tensor, compute_dtype
from ..config import (
    Backend,
    CameraModel,
    CameraSettings,
    NumericsName,
    RollingShutterType,
    UnscentedTransformParameters,
)
from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..errors import ArgumentError
from ..formulas.rotations import rotation_matrices
from ..precision import in_full_precision
from ..runtime.compilation import eager, with_plain_tensors
from ..scalars import check_size, enum_name
from ..stages.inputs import check_scene, flatten_batches, in_dtype
from ..stages.lens_models import LensArguments, add_lens, check_camera_model, check_unscented, given_intrinsics
from ..stages.projection import project
from ..stages.sparse_gradients import SparseGradients


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
        opacities: [..., N] after sigmoid; low opacities reduce the radii. Not differentiable here.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``(radii, means2d, depths, conics, compensations)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3], and [..., C, N] or None. Culled Gaussians are zero. Packed, ``(batch_ids, camera_ids,
        gaussian_ids, radii, means2d, depths, conics, compensations)`` with [nnz] instead of [..., C, N]. All but
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
    if covars is not None:
        quats = scales = None
    settings = ProjectionSettings(
        camera=CameraSettings.of(width, height, camera_model, near, far, preset),
        eps2d=eps2d,
        radius_clip=radius_clip,
        antialiased=check_bool("calc_compensations", calc_compensations),
        packed=packed,
        numerics=preset,
        backend=backend,
    )
    return _project(Gaussians3D(means, quats, scales, covars, opacities), cameras, settings, batch, sparse_grad)


@eager
@with_plain_tensors
def fully_fused_projection_with_ut(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor | None,
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
        means, quats, scales, opacities, viewmats, Ks: As in :func:`fully_fused_projection`. Ks may be None for full
            panoramas.
        width, height, eps2d, near_plane, far_plane, radius_clip: As in :func:`fully_fused_projection`.
        calc_compensations, camera_model, backend, numerics: As in :func:`fully_fused_projection`.
        ut_params, radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, rolling_shutter, viewmats_rs: As
            in :func:`tsplat.rasterization`.
        external_distortion_coeffs: As in :func:`tsplat.rasterization`.
        global_z_order: As in :func:`tsplat.rasterization`. Affects depths and culling.

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
    readout = enum_name(rolling_shutter)
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
        unscented=check_unscented(True, ut_params, preset, global_z_order, camera_model),
    )
    cameras = Cameras(viewmats, given_intrinsics(Ks, camera_model, viewmats, (width, height)))
    batch, _, n_cameras = check_scene(means, quats, scales, None, (6,), opacities, cameras)
    lens = LensArguments(
        radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, external_distortion_coeffs, viewmats_rs
    )
    cameras = add_lens(cameras, lens, settings, batch, n_cameras)
    return _project(Gaussians3D(means, quats, scales, None, opacities), cameras, settings, batch)


@eager
@with_plain_tensors
def fully_fused_projection_2dgs(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
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
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:
    """Projects 2D Gaussians (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888). Same as gsplat 1.5.3.

    Args:
        means, quats: [..., N, 3] centers, world frame, and [..., N, 4] rotations wxyz, any nonzero norm. A disc lies in
            the plane of the first two rotated axes.
        scales: [..., N, 3] standard deviations along these axes, after exp; the third is not read.
        viewmats, Ks, width, height: As in :func:`fully_fused_projection`, for pinhole cameras.
        eps2d: Must be a finite number. It has no effect, as in gsplat: compositing applies a circular low-pass filter.
        near_plane, far_plane, radius_clip: As in :func:`fully_fused_projection`.
        packed: Whether to return visible Gaussians only, as packed tensors.
        sparse_grad: As in :func:`tsplat.rasterization`, for means, quats and scales.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``(radii, means2d, depths, ray_transforms, normals)`` of shapes [..., C, N, 2], [..., C, N, 2], [..., C, N],
        [..., C, N, 3, 3] and [..., C, N, 3]. Culled Gaussians are zero. Packed, ``(batch_ids, camera_ids,
        gaussian_ids, radii, means2d, depths, ray_transforms, normals)`` with [nnz] instead of [..., C, N]. A ray
        transform maps coordinates (u, v, 1) on the disc, in standard deviations, to z (x, y, 1) of the pixel (x, y).
        ``means2d`` are the centers of the bounding boxes of the projected unit circles, not the projected means.
        Normals are in the camera frame and face the camera. All but radii (int32) and ids (int64) are differentiable
        with respect to means, quats, scales and viewmats.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: ``Ks`` that require a gradient.

    Example::

        import torch
        from tsplat import fully_fused_projection_2dgs

        means, quats = torch.tensor([[0.0, 0, 4]]), torch.tensor([[1.0, 0, 0, 0]])
        Ks = torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]])
        radii, means2d, depths, transforms, normals = fully_fused_projection_2dgs(
            means, quats, torch.full((1, 3), 0.1), torch.eye(4)[None], Ks, width=80, height=60
        )
        assert means2d[0, 0].tolist() == [40, 30] and normals[0, 0].tolist() == [0, 0, -1]
    """
    width, height = check_size("width", width), check_size("height", height)
    preset = check_numerics(numerics)
    near, far, radius_clip, _ = check_culling(near_plane, far_plane, radius_clip, eps2d, preset, "pinhole")
    packed, sparse_grad = check_bool("packed", packed), check_bool("sparse_grad", sparse_grad)
    cameras = Cameras(viewmats, Ks)
    batch, _, _ = check_scene(means, quats, scales, None, (6,), None, cameras)
    camera = CameraSettings.of(width, height, "pinhole", near, far, preset)
    settings = ProjectionSettings(
        camera, radius_clip=radius_clip, packed=packed, numerics=preset, backend=backend, surfels=True
    )
    return _project(Gaussians3D(means, quats, scales, None, None), cameras, settings, batch, sparse_grad)


def _project(
    gaussians: Gaussians3D,
    cameras: Cameras,
    settings: ProjectionSettings,
    batch: torch.Size,
    sparse_grad: bool = False,
) -> tuple[Tensor | None, ...]:
    """Projects checked Gaussians.

    Returns:
        Radii, means2d, depths, shapes, and compensations or, for surfels, normals, [*batch, C, N, ...]. If packed,
        they are [nnz, ...] and follow the ids.
    """
    sparse_gradients = SparseGradients() if sparse_grad else None
    if sparse_gradients is not None:
        if batch or not settings.packed:
            found = f"{settings.packed}, {list(batch)}"
            raise ArgumentError(f"sparse_grad: requires packed=True and no batch dimensions, found {found}")
        attached: dict[str, Any] = {
            name: sparse_gradients.attach(getattr(gaussians, name)) for name in ("means", "quats", "scales", "covars")
        }
        gaussians = gaussians._replace(**attached)
    if gaussians.opacities is not None:
        gaussians = gaussians._replace(opacities=gaussians.opacities.detach())
    dtype = compute_dtype(*gaussians, *cameras)
    flat = flatten_batches(cameras, len(batch), dtype)
    projected, _ = project(in_dtype(gaussians, dtype), flat, settings, batch)
    if sparse_gradients is not None:
        sparse_gradients.set_visible(projected)
    shape = (3, 3) if settings.surfels else (3,)
    last, own = (projected.normals, (3,)) if settings.surfels else (projected.compensations, ())
    ids = projected.ids() if settings.packed else ()
    leading = (-1,) if settings.packed else (*batch, projected.n_cameras, projected.n_gaussians)
    outputs = (projected.radii, projected.means2d, projected.depths, projected.shapes, last)
    shapes: tuple[tuple[int, ...], ...] = ((2,), (2,), (), shape, own)
    return *ids, *(None if t is None else t.view(*leading, *own) for t, own in zip(outputs, shapes))


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
        ``(covars, precis)``, in at least fp32, regardless of autocast. Differentiable.

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
