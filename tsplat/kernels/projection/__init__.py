"""Projection of 3D Gaussians to the image plane, forward and backward.

EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001) as used by 3D Gaussian Splatting (Kerbl et al., 2023):
Sigma2d = J W Sigma W^T J^T + eps2d I. The Jacobian J is taken at the camera-space mean. Pinhole cameras clamp x/z and
y/z in it to the image plus a margin, but not in the projected mean. Or the unscented transform, see `unscented.py`.

Forward: one lane per output row. Packed output takes two passes, `_projection_visible_kernel` to find visible rows and
`_projection_fwd_kernel` to write them.
Backward: one lane per Gaussian, which loops over the cameras of its scene and recomputes the forward pass, so that
gradients are summed in registers in a fixed order. Gradients of view matrices are summed over a block and written once
per block and image. Gradients that overflow although the incoming ones are finite are zeroed, for that Gaussian only.
Incoming infinities are passed on, so that gradient scaling sees them. There are no atomics.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...config import ALPHA_MIN, FOV_MARGIN, RADIUS_MAX
from ...data import Cameras, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings
from ..device_math import (
    add,
    add_where,
    bounds,
    compensation,
    compensation_vjp,
    conic,
    conic_vjp,
    constant,
    covariance,
    covariance_vjp,
    det2,
    finite,
    load_tuple,
    matvec3_transposed,
    normalize4,
    normalize_vjp,
    own_gaussians,
    rotation,
    rotation_vjp,
    size_of,
    store_tuple,
)
from ..launch import Int, block_size, indices_of, kernel, programs
from .camera_models import (
    add_entry_times,
    find_rows,
    load_camera,
    project_point_vjp,
    row_times_vjp,
    screen_covariance_vjp,
    to_screen,
)
from .camera_sums import CameraSums
from .lens_models import load_lens
from .shutters import load_path
from .unscented import _projection_unscented_bwd_kernel, constants, depths_of, unscented

BLOCK = 128


@triton.jit
def _load_covariance(quats, scales, covars, gaussian, mask):
    """Upper triangle of the world-space covariance."""
    if covars is not None:
        return load_tuple(covars + gaussian * 6, 1, 6, mask)
    else:
        unit, _ = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
        return covariance(rotation(unit), load_tuple(scales + gaussian * 3, 1, 3, mask))


@triton.jit
def _project(
    means, quats, scales, covars, opacities, viewmats, Ks, lens, shutter, valid, image, gaussian, mask, width, height,
    eps2d, near, far, radius_clip,
    CAMERA: tl.constexpr, N_LENS: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr,
    ALPHA_MIN: tl.constexpr, FOV_MARGIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr,
    COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, RADIUS_MAX: tl.constexpr,
):  # fmt: skip
    """Projects one row per lane.

    Every comparison is written so that NaN fails it.

    Returns:
        Whether the row is visible; radii along x and y; mean; depth; conic; compensation (or 1); opacity (or 1) times
        compensation.
    """
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    if len(UNSCENTED) == 0:
        sigma = _load_covariance(quats, scales, covars, gaussian, mask)
        w, t, intrinsics = load_camera(viewmats, Ks, image)
        p, mean2d, _, _, _, sharp, blurred = to_screen(
            mean, sigma, w, t, intrinsics, width, height, eps2d, CAMERA, FOV_MARGIN
        )
        visible = mask
    else:
        unit, _ = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
        scale = load_tuple(scales + gaussian * 3, 1, 3, mask)
        w, t, intrinsics = load_camera(viewmats, Ks, image)
        coefficients = load_lens(lens, image, N_LENS)
        path = load_path(shutter, image)
        mean2d, p, sharp, seen, _ = unscented(
            mean, rotation(unit), scale, (w, t), path, coefficients, intrinsics, width, height, CAMERA, READOUT,
            UNSCENTED,
        )  # fmt: skip
        blur = constant(eps2d, sharp[0])
        blurred = (sharp[0] + blur, sharp[1], sharp[2] + blur)
        visible = mask & seen
    depth, z = depths_of(p, CAMERA, UNSCENTED)
    det = det2(blurred)
    inverse = conic(blurred, det)
    visible = (
        visible
        & (z >= constant(near, det))
        & (z <= constant(far, det))
        & (det > 0.0)
        & finite(det)
        & finite(size_of(inverse))
    )
    if valid is not None:
        visible = visible & (tl.load(valid + gaussian, mask=mask, other=0) != 0)
    rho = constant(1.0, det)
    if COMPENSATE:
        rho = compensation(det2(sharp), det, FLOOR)
    opacity = rho
    if opacities is not None:
        given = tl.load(opacities + gaussian, mask=mask, other=0.0)
        opacity = rho * given
        # The unscented transform always culls by the compensated opacity.
        bounded = opacity
        if not COMPENSATE and len(UNSCENTED) > 0:
            bounded = given * compensation(det2(sharp), det, FLOOR)
        if OPACITY_AWARE:
            visible = visible & (bounded >= constant(ALPHA_MIN, bounded))
        radius_x, radius_y = bounds(blurred, det, bounded, ALPHA_MIN, EXTEND, OPACITY_AWARE)
    else:
        radius_x, radius_y = bounds(blurred, det, None, ALPHA_MIN, EXTEND, OPACITY_AWARE)
    radius_min = constant(radius_clip, det)
    visible = visible & ((radius_x > radius_min) | (radius_y > radius_min))
    # NaN, of negative definite covariances, would become the bound.
    radius_x = tl.minimum(radius_x, RADIUS_MAX)
    radius_y = tl.minimum(radius_y, RADIUS_MAX)
    visible = visible & (mean2d[0] + radius_x > 0.0) & (mean2d[0] - radius_x < width)
    visible = visible & (mean2d[1] + radius_y > 0.0) & (mean2d[1] - radius_y < height)
    return visible, radius_x, radius_y, mean2d, depth, inverse, rho, opacity


@kernel
def _projection_visible_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4] or None
    scales,  # [B, N, 3] or None
    covars,  # [B, N, 6] or None
    opacities,  # [B, N] or None
    viewmats,  # [B, C, 4, 4]
    Ks,  # [B, C, 3, 3]
    lens,  # [B, C, N_LENS] or None
    shutter,  # [B, C, 20] or None
    valid,  # [B, N] bool or None
    visible_out,  # [B, C, N] int8, output
    row_of,  # [B, C, N] int32, output: -1; the next kernel writes the visible ones
    n_rows: "Int", n_gaussians: "Int", n_cameras: "Int", width: "Int", height: "Int",
    eps2d: tl.float64, near: tl.float64, far: tl.float64, radius_clip: tl.float64,
    CAMERA: tl.constexpr, N_LENS: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr,
    ALPHA_MIN: tl.constexpr, FOV_MARGIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr,
    COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, RADIUS_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    image = row // n_gaussians
    gaussian = image // n_cameras * n_gaussians + row % n_gaussians
    image = tl.where(mask, image, 0)
    visible, _, _, _, _, _, _, _ = _project(
        means, quats, scales, covars, opacities, viewmats, Ks, lens, shutter, valid, image, gaussian, mask, width,
        height, eps2d, near, far, radius_clip, CAMERA, N_LENS, READOUT, UNSCENTED, ALPHA_MIN, FOV_MARGIN, EXTEND,
        OPACITY_AWARE, COMPENSATE, FLOOR, RADIUS_MAX,
    )  # fmt: skip
    tl.store(visible_out + row, visible.to(tl.int8), mask=mask)
    tl.store(row_of + row, tl.full([BLOCK], -1, tl.int32), mask=mask)


@kernel
def _projection_fwd_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4] or None
    scales,  # [B, N, 3] or None
    covars,  # [B, N, 6] or None
    opacities,  # [B, N] or None
    viewmats,  # [B, C, 4, 4]
    Ks,  # [B, C, 3, 3]
    lens,  # [B, C, N_LENS] or None
    shutter,  # [B, C, 20] or None
    valid,  # [B, N] bool or None
    dense_ids,  # [nnz] int64, or None if not packed
    row_of,  # [B, C, N] int32, output: packed row of each entry; None if not packed
    radii,  # [nnz, 2] int32, output
    means2d,  # [nnz, 2], output
    depths,  # [nnz], output
    conics,  # [nnz, 3], output
    compensations,  # [nnz], output, or None
    opacities_out,  # [nnz], output, or None
    n_rows: "Int", n_gaussians: "Int", n_cameras: "Int", width: "Int", height: "Int",
    eps2d: tl.float64, near: tl.float64, far: tl.float64, radius_clip: tl.float64,
    CAMERA: tl.constexpr, N_LENS: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr,
    ALPHA_MIN: tl.constexpr, FOV_MARGIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr,
    COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, RADIUS_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    dense_id = row
    if dense_ids is not None:
        dense_id = tl.load(dense_ids + row, mask=mask, other=0)
        tl.store(row_of + dense_id, row.to(tl.int32), mask=mask)
    image = dense_id // n_gaussians
    gaussian = image // n_cameras * n_gaussians + dense_id % n_gaussians
    image = tl.where(mask, image, 0)
    visible, radius_x, radius_y, mean2d, depth, conic_, rho, opacity = _project(
        means, quats, scales, covars, opacities, viewmats, Ks, lens, shutter, valid, image, gaussian, mask, width,
        height, eps2d, near, far, radius_clip, CAMERA, N_LENS, READOUT, UNSCENTED, ALPHA_MIN, FOV_MARGIN, EXTEND,
        OPACITY_AWARE, COMPENSATE, FLOOR, RADIUS_MAX,
    )  # fmt: skip
    tl.store(radii + row * 2, tl.where(visible, radius_x, 0.0).to(tl.int32), mask=mask)
    tl.store(radii + row * 2 + 1, tl.where(visible, radius_y, 0.0).to(tl.int32), mask=mask)
    store_tuple(means2d + row * 2, 1, mean2d, mask, visible)
    store_tuple(conics + row * 3, 1, conic_, mask, visible)
    tl.store(depths + row, tl.where(visible, depth, 0.0), mask=mask)
    if compensations is not None:
        tl.store(compensations + row, tl.where(visible, rho, 0.0), mask=mask)
    if opacities_out is not None:
        tl.store(opacities_out + row, tl.where(visible, opacity, 0.0), mask=mask)


@kernel
def _projection_bwd_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4] or None
    scales,  # [B, N, 3] or None
    covars,  # [B, N, 6] or None
    opacities,  # [B, N] or None
    viewmats,  # [B, C, 4, 4]
    Ks,  # [B, C, 3, 3]
    lens,  # None, as the shutter
    shutter,
    row_of,  # [B, C, N] int32, packed row of each entry; None if not packed
    radii,  # [nnz, 2] int32
    v_means2d,  # [nnz, 2] or None
    v_depths,  # [nnz] or None
    v_conics,  # [nnz, 3] or None
    v_compensations,  # [nnz] or None
    v_opacities_out,  # [nnz] or None
    v_means,  # [B, N, 3], output
    v_quats,  # [B, N, 4], output, or None
    v_scales,  # [B, N, 3], output, or None
    v_covars,  # [B, N, 6], output, or None
    v_opacities,  # [B, N], output, or None
    v_viewmats,  # [blocks, I, 12], output, or None
    v_lens,  # None, as v_shutter
    v_shutter,
    n_gaussians: "Int", n_cameras: "Int", n_images: "Int", width: "Int", height: "Int",
    eps2d: tl.float64,
    CAMERA: tl.constexpr, N_LENS: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr,
    FOV_MARGIN: tl.constexpr, COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, block, n, gaussian, mask = own_gaussians(n_gaussians, BLOCK)
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    sigma = _load_covariance(quats, scales, covars, gaussian, mask)

    zero = tl.zeros([BLOCK], mean[0].dtype)
    v_mean, v_sigma = (zero,) * 3, (zero,) * 6
    v_opacity = zero
    seen = tl.zeros([BLOCK], tl.int1)
    clean = mask
    for camera in range(n_cameras):
        image = batch * n_cameras + camera
        row, visible = find_rows(row_of, radii, image * n_gaussians + n, mask)
        seen = seen | visible
        w, t, intrinsics = load_camera(viewmats, Ks, image)
        p, _, jacobian, t0, t1, sharp, blurred = to_screen(
            mean, sigma, w, t, intrinsics, width, height, eps2d, CAMERA, FOV_MARGIN
        )
        det = det2(blurred)

        v_conic, v_mean2d, v_depth = (zero,) * 3, (zero,) * 2, zero
        if v_conics is not None:
            v_conic = load_tuple(v_conics + row * 3, 1, 3, visible)
        if v_means2d is not None:
            v_mean2d = load_tuple(v_means2d + row * 2, 1, 2, visible)
        if v_depths is not None:
            v_depth = tl.load(v_depths + row, mask=visible, other=0.0)
        incoming = size_of(v_conic) + size_of(v_mean2d) + tl.abs(v_depth)
        v_own_opacity = zero
        v_cov2d = conic_vjp(blurred, det, v_conic)
        if COMPENSATE:
            rho = compensation(det2(sharp), det, FLOOR)
            v_rho = zero
            if v_compensations is not None:
                v_rho += tl.load(v_compensations + row, mask=visible, other=0.0)
            if v_opacities_out is not None:
                v_row = tl.load(v_opacities_out + row, mask=visible, other=0.0)
                v_rho += v_row * tl.load(opacities + gaussian, mask=mask, other=0.0)
                v_own_opacity = v_row * rho
                incoming += tl.abs(v_row)
            incoming += tl.abs(v_rho)
            v_blur = compensation_vjp(sharp, blurred, det2(sharp), det, rho, FLOOR, v_rho)
            v_cov2d = add(v_cov2d, v_blur)
        else:
            if v_opacities_out is not None:
                v_own_opacity = tl.load(v_opacities_out + row, mask=visible, other=0.0)
                incoming += tl.abs(v_own_opacity)

        v_t0, v_t1, v_cov3d = screen_covariance_vjp(t0, t1, sigma, v_cov2d)
        row0, row1, saved = jacobian
        v_row0 = row_times_vjp(w, v_t0)
        v_row1 = row_times_vjp(w, v_t1)
        v_p = project_point_vjp(p, intrinsics, row0, row1, saved, v_mean2d, v_row0, v_row1, CAMERA)
        v_p = (v_p[0], v_p[1], v_p[2] + v_depth)
        v_world = matvec3_transposed(w, v_p)
        clean = clean & finite(incoming)
        outgoing = size_of(v_world) + size_of(v_cov3d) + tl.abs(v_own_opacity)
        visible = visible & (finite(outgoing) | (finite(incoming) == 0))
        v_opacity += tl.where(visible, v_own_opacity, 0.0)
        v_mean = add_where(v_mean, visible, v_world)
        v_sigma = add_where(v_sigma, visible, v_cov3d)
        if v_viewmats is not None:
            out = v_viewmats + (block.to(tl.int64) * n_images + image) * 12
            for k in tl.static_range(3):
                v_w0 = add_entry_times(v_p[0] * mean[k], row0, 0, v_t0[k], 0, CAMERA)
                v_w0 = add_entry_times(v_w0, row1, 0, v_t1[k], 1, CAMERA)
                v_w1 = add_entry_times(v_p[1] * mean[k], row0, 1, v_t0[k], 0, CAMERA)
                v_w1 = add_entry_times(v_w1, row1, 1, v_t1[k], 1, CAMERA)
                v_w2 = add_entry_times(v_p[2] * mean[k], row0, 2, v_t0[k], 0, CAMERA)
                v_w2 = add_entry_times(v_w2, row1, 2, v_t1[k], 1, CAMERA)
                tl.store(out + k, tl.sum(tl.where(visible, v_w0, 0.0)))
                tl.store(out + 4 + k, tl.sum(tl.where(visible, v_w1, 0.0)))
                tl.store(out + 8 + k, tl.sum(tl.where(visible, v_w2, 0.0)))
                tl.store(out + 4 * k + 3, tl.sum(tl.where(visible, v_p[k], 0.0)))

    outgoing = size_of(v_mean) + size_of(v_sigma) + tl.abs(v_opacity)
    if covars is None:
        unit, inverse_norm = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
        scale = load_tuple(scales + gaussian * 3, 1, 3, mask)
        v_rotation, v_scale = covariance_vjp(rotation(unit), scale, v_sigma)
        v_quat = normalize_vjp(unit, inverse_norm, rotation_vjp(unit, v_rotation))
        outgoing += size_of(v_quat) + size_of(v_scale)
    kept = seen & (finite(outgoing) | (clean == 0))
    store_tuple(v_means + gaussian * 3, 1, v_mean, mask, kept)
    if v_opacities is not None:
        tl.store(v_opacities + gaussian, tl.where(kept, v_opacity, 0.0), mask=mask)
    if covars is not None:
        store_tuple(v_covars + gaussian * 6, 1, v_sigma, mask, kept)
    else:
        store_tuple(v_quats + gaussian * 4, 1, v_quat, mask, kept)
        store_tuple(v_scales + gaussian * 3, 1, v_scale, mask, kept)


def projection_fwd(gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings) -> ProjectedGaussians:
    """Projects every Gaussian of a scene by every camera; see :class:`ProjectedGaussians`."""
    means = gaussians.means
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = means.shape[-2]
    n_rows = n_batches * n_cameras * n_gaussians
    arguments: dict[str, Any] = {
        **gaussians._asdict(),
        **cameras._asdict(),
        **constants(settings, 0 if cameras.lens is None else cameras.lens.shape[-1]),
        "n_gaussians": n_gaussians,
        "n_cameras": n_cameras,
        "near": settings.camera.near,
        "far": settings.camera.far,
        "radius_clip": settings.radius_clip,
        "ALPHA_MIN": ALPHA_MIN,
        "FOV_MARGIN": FOV_MARGIN,
        "FLOOR": settings.numerics.compensation_floor,
        "EXTEND": settings.numerics.extend,
        "OPACITY_AWARE": settings.numerics.opacity_aware,
        "RADIUS_MAX": float(RADIUS_MAX),
    }
    dense_ids = row_of = None
    if settings.packed:
        visible = torch.empty(n_rows, dtype=torch.int8, device=means.device)
        row_of = torch.empty(n_rows, dtype=torch.int32, device=means.device)
        _projection_visible_kernel.launch_elementwise(
            n_rows,
            BLOCK,
            visible_out=visible,
            row_of=row_of,
            n_rows=n_rows,
            **arguments,
        )
        dense_ids = indices_of(visible)
        n_rows = dense_ids.numel()
    projected = ProjectedGaussians(
        n_cameras=n_cameras,
        n_gaussians=n_gaussians,
        dense_ids=dense_ids,
        radii=torch.empty(n_rows, 2, dtype=torch.int32, device=means.device),
        means2d=means.new_empty(n_rows, 2),
        depths=means.new_empty(n_rows),
        conics=means.new_empty(n_rows, 3),
        compensations=means.new_empty(n_rows) if settings.antialiased else None,
        opacities=means.new_empty(n_rows) if gaussians.opacities is not None else None,
        row_of=row_of,
    )
    _projection_fwd_kernel.launch_elementwise(
        n_rows,
        BLOCK,
        dense_ids=dense_ids,
        row_of=row_of,
        radii=projected.radii,
        means2d=projected.means2d,
        depths=projected.depths,
        conics=projected.conics,
        compensations=projected.compensations,
        opacities_out=projected.opacities,
        n_rows=n_rows,
        **arguments,
    )
    return projected


def projection_bwd(
    gaussians: Gaussians3D,
    cameras: Cameras,
    row_of: Tensor | None,
    radii: Tensor,
    v_projected: ProjectedGradients,
    settings: ProjectionSettings,
    needs: Cameras,
) -> tuple[Gaussians3D, Cameras]:
    """Computes the gradients of Gaussians, None where not given, and of cameras, None where not needed.

    Args:
        gaussians, cameras, settings: As for :func:`projection_fwd`.
        row_of, radii: Of its result.
        v_projected: Gradients of its result.
        needs: Whether each tensor of the cameras needs a gradient.
    """
    means = gaussians.means
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = means.shape[-2]
    given = gaussians._asdict()
    del given["valid"]
    v_gaussians = {name: None if t is None else torch.empty_like(t) for name, t in given.items()}
    blocks = programs(n_gaussians, block_size(means, BLOCK))
    sums = CameraSums.allocate(means, blocks, cameras, needs, settings.camera.model)
    arguments: dict[str, object] = {**given, **cameras._asdict()}
    arguments |= {f"v_{name}": tensor for name, tensor in v_gaussians.items()}
    backward = _projection_bwd_kernel if settings.unscented is None else _projection_unscented_bwd_kernel
    backward.launch(
        programs(n_batches * blocks, 1),
        **constants(settings, 0 if cameras.lens is None else cameras.lens.shape[-1]),
        FOV_MARGIN=FOV_MARGIN,
        FLOOR=settings.numerics.compensation_floor,
        BLOCK=block_size(means, BLOCK),
        **arguments,
        row_of=row_of,
        radii=radii,
        v_means2d=v_projected.v_means2d,
        v_depths=v_projected.v_depths,
        v_conics=v_projected.v_conics,
        v_compensations=v_projected.v_compensations,
        v_opacities_out=v_projected.v_opacities,
        v_viewmats=sums.poses,
        v_lens=sums.lens,
        v_shutter=sums.shutter,
        n_gaussians=n_gaussians,
        n_cameras=n_cameras,
        n_images=n_batches * n_cameras,
    )
    return Gaussians3D(**v_gaussians), sums.gradients(cameras)
