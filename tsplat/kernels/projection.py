"""Projection of 3D Gaussians to the image plane, forward and backward.

EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001) as used by 3D Gaussian Splatting (Kerbl et al., 2023):
Sigma2d = J W Sigma W^T J^T + eps2d I. The Jacobian J is taken at the camera-space mean with x/z and y/z held to the
image plus a margin; the projected mean itself is not held.

Forward: one lane per output row, which is a pair of image and Gaussian; no atomics. Packed output needs two passes,
`_projection_visible_kernel` to find the rows and `_projection_fwd_kernel` to write them.
Backward: one lane per Gaussian, which walks the cameras of its batch and recomputes the forward pass, so its gradients
are summed in registers in a fixed order. Gradients of the view matrices are summed over a block and written once per
block and image. A gradient that overflows although what comes in is finite is left out: an extreme Gaussian keeps it to
itself. What comes in infinite goes out, for gradient scaling to see.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, FOV_MARGIN, RADIUS_MAX, Numerics
from .device_math import (
    compensation,
    compensation_vjp,
    conic,
    conic_vjp,
    constant,
    covariance,
    covariance_vjp,
    det2,
    finite,
    image_jacobian,
    image_jacobian_vjp,
    load_tuple,
    matvec3,
    matvec3_transposed,
    normalize4,
    normalize4_vjp,
    rotation,
    rotation_vjp,
    screen_covariance,
    screen_covariance_vjp,
    screen_rows,
    size_of,
    store_tuple,
)
from .launch import guard, programs, rows_by_pair

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
def _load_camera(viewmats, Ks, image):
    v = viewmats + image * 16
    k = Ks + image * 9
    rotation_rows = load_tuple(v, 1, 3) + load_tuple(v + 4, 1, 3) + load_tuple(v + 8, 1, 3)
    return rotation_rows, load_tuple(v + 3, 4, 3), (tl.load(k), tl.load(k + 4), tl.load(k + 2), tl.load(k + 5))


@triton.jit
def _to_screen(mean, sigma, w, t, intrinsics, width, height, EPS2D: tl.constexpr, FOV_MARGIN: tl.constexpr):
    """Camera-space mean, pixel mean, rows of J W with what their gradient needs, and the screen covariance."""
    fx, fy, cx, cy = intrinsics[0], intrinsics[1], intrinsics[2], intrinsics[3]
    rotated = matvec3(w, mean)
    p = (rotated[0] + t[0], rotated[1] + t[1], rotated[2] + t[2])
    j0, j02, inside_x = image_jacobian(p[0], p[2], fx, cx, width, FOV_MARGIN)
    j1, j12, inside_y = image_jacobian(p[1], p[2], fy, cy, height, FOV_MARGIN)
    t0, t1 = screen_rows(j0, j02, j1, j12, w)
    sharp = screen_covariance(t0, t1, sigma)
    blurred = (sharp[0] + EPS2D, sharp[1], sharp[2] + EPS2D)
    mean2d = (fx * p[0] / p[2] + cx, fy * p[1] / p[2] + cy)
    return p, mean2d, (j0, j02, inside_x, j1, j12, inside_y), t0, t1, sharp, blurred


@triton.jit
def _bounds(blurred, det, opacity, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr):
    """Half widths, in whole pixels, of the rectangle outside which the Gaussian is not seen; opacity may be None."""
    if OPACITY_AWARE:
        extend = constant(EXTEND, det)
        if opacity is not None:
            extend = tl.minimum(tl.sqrt(2.0 * tl.log(tl.maximum(opacity / ALPHA_MIN, 1.0))), extend)
        return tl.ceil(extend * tl.sqrt(blurred[0])), tl.ceil(extend * tl.sqrt(blurred[2]))
    else:
        middle = 0.5 * (blurred[0] + blurred[2])
        radius = tl.ceil(EXTEND * tl.sqrt(middle + tl.sqrt(tl.maximum(middle * middle - det, constant(0.1, det)))))
        return radius, radius


@triton.jit
def _project(
    means, quats, scales, covars, opacities, viewmats, Ks, sound, image, gaussian, mask, width, height,
    EPS2D: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, RADIUS_CLIP: tl.constexpr,
    ALPHA_MIN: tl.constexpr, FOV_MARGIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr,
    COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, RADIUS_MAX: tl.constexpr,
):  # fmt: skip
    """One row: whether it is visible, radii, mean, depth, conic, compensation (or 1) and opacity (or 1) times that.

    Every test is written so that a NaN fails it.
    """
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    sigma = _load_covariance(quats, scales, covars, gaussian, mask)
    w, t, intrinsics = _load_camera(viewmats, Ks, image)
    p, mean2d, _, _, _, sharp, blurred = _to_screen(mean, sigma, w, t, intrinsics, width, height, EPS2D, FOV_MARGIN)
    det = det2(blurred)
    inverse = conic(blurred, det)
    visible = mask & (p[2] >= NEAR) & (p[2] <= FAR) & (det > 0.0) & finite(det) & finite(size_of(inverse))
    if sound is not None:
        visible = visible & (tl.load(sound + gaussian, mask=mask, other=0) != 0)
    rho = constant(1.0, det)
    if COMPENSATE:
        rho = compensation(det2(sharp), det, FLOOR)
    opacity = rho
    if opacities is not None:
        opacity = rho * tl.load(opacities + gaussian, mask=mask, other=0.0)
        if OPACITY_AWARE:
            visible = visible & (opacity >= ALPHA_MIN)
        radius_x, radius_y = _bounds(blurred, det, opacity, ALPHA_MIN, EXTEND, OPACITY_AWARE)
    else:
        radius_x, radius_y = _bounds(blurred, det, None, ALPHA_MIN, EXTEND, OPACITY_AWARE)
    radius_x = tl.minimum(radius_x, RADIUS_MAX)
    radius_y = tl.minimum(radius_y, RADIUS_MAX)
    visible = visible & ((radius_x > RADIUS_CLIP) | (radius_y > RADIUS_CLIP))
    visible = visible & (mean2d[0] + radius_x > 0.0) & (mean2d[0] - radius_x < width)
    visible = visible & (mean2d[1] + radius_y > 0.0) & (mean2d[1] - radius_y < height)
    return visible, radius_x, radius_y, mean2d, p[2], inverse, rho, opacity


@triton.jit
def _projection_visible_kernel(
    means, quats, scales, covars, opacities, viewmats, Ks, sound, visible_out,
    n_rows, n_gaussians, n_cameras, width, height,
    EPS2D: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, RADIUS_CLIP: tl.constexpr,
    ALPHA_MIN: tl.constexpr, FOV_MARGIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr,
    COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, RADIUS_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    image = row // n_gaussians
    gaussian = image // n_cameras * n_gaussians + row % n_gaussians
    image = tl.where(mask, image, 0)
    visible, _, _, _, _, _, _, _ = _project(
        means, quats, scales, covars, opacities, viewmats, Ks, sound, image, gaussian, mask, width, height,
        EPS2D, NEAR, FAR, RADIUS_CLIP, ALPHA_MIN, FOV_MARGIN, EXTEND, OPACITY_AWARE, COMPENSATE, FLOOR, RADIUS_MAX,
    )  # fmt: skip
    tl.store(visible_out + row, visible.to(tl.int8), mask=mask)


@triton.jit
def _projection_fwd_kernel(
    means, quats, scales, covars, opacities, viewmats, Ks, sound, row_ids,
    radii, means2d, depths, conics, compensations, opacities_out,
    n_rows, n_gaussians, n_cameras, width, height,
    EPS2D: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr, RADIUS_CLIP: tl.constexpr,
    ALPHA_MIN: tl.constexpr, FOV_MARGIN: tl.constexpr, EXTEND: tl.constexpr, OPACITY_AWARE: tl.constexpr,
    COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, RADIUS_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    pair = row
    if row_ids is not None:
        pair = tl.load(row_ids + row, mask=mask, other=0)
    image = pair // n_gaussians
    gaussian = image // n_cameras * n_gaussians + pair % n_gaussians
    image = tl.where(mask, image, 0)
    visible, radius_x, radius_y, mean2d, depth, conic_, rho, opacity = _project(
        means, quats, scales, covars, opacities, viewmats, Ks, sound, image, gaussian, mask, width, height,
        EPS2D, NEAR, FAR, RADIUS_CLIP, ALPHA_MIN, FOV_MARGIN, EXTEND, OPACITY_AWARE, COMPENSATE, FLOOR, RADIUS_MAX,
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


@triton.jit
def _projection_bwd_kernel(
    means, quats, scales, covars, opacities, viewmats, Ks, row_of, radii,
    v_means2d, v_depths, v_conics, v_compensations, v_opacities_out,
    v_means, v_quats, v_scales, v_covars, v_opacities, v_viewmats,
    n_gaussians, n_cameras, n_images, width, height,
    EPS2D: tl.constexpr, FOV_MARGIN: tl.constexpr, COMPENSATE: tl.constexpr, FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n_gaussians, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    n = block * BLOCK + tl.arange(0, BLOCK)
    mask = n < n_gaussians
    gaussian = batch * n_gaussians + n
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    sigma = _load_covariance(quats, scales, covars, gaussian, mask)

    zero = tl.zeros([BLOCK], mean[0].dtype)
    v_mean = (zero, zero, zero)
    v_sigma = (zero, zero, zero, zero, zero, zero)
    v_opacity = zero
    seen = tl.zeros([BLOCK], tl.int1)
    clean = mask
    for camera in range(n_cameras):
        image = batch * n_cameras + camera
        pair = image * n_gaussians + n
        if row_of is not None:
            row = tl.load(row_of + pair, mask=mask, other=-1).to(tl.int64)
            visible = row >= 0
        else:
            row = pair
            visible = tl.load(radii + row * 2, mask=mask, other=0) > 0
        seen = seen | visible
        w, t, intrinsics = _load_camera(viewmats, Ks, image)
        fx = intrinsics[0]
        fy = intrinsics[1]
        p, _, jacobian, t0, t1, sharp, blurred = _to_screen(
            mean, sigma, w, t, intrinsics, width, height, EPS2D, FOV_MARGIN
        )
        det = det2(blurred)

        v_conic = load_tuple(v_conics + row * 3, 1, 3, visible)
        v_mean2d = load_tuple(v_means2d + row * 2, 1, 2, visible)
        v_depth = tl.load(v_depths + row, mask=visible, other=0.0)
        incoming = size_of(v_conic) + size_of(v_mean2d) + tl.abs(v_depth)
        v_own_opacity = zero
        v_cov2d = conic_vjp(conic(blurred, det), v_conic)
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
            v_cov2d = (v_cov2d[0] + v_blur[0], v_cov2d[1] + v_blur[1], v_cov2d[2] + v_blur[2])
        else:
            if v_opacities_out is not None:
                v_own_opacity = tl.load(v_opacities_out + row, mask=visible, other=0.0)
                incoming += tl.abs(v_own_opacity)

        v_t0, v_t1, v_cov3d = screen_covariance_vjp(t0, t1, sigma, v_cov2d)
        v_j0 = v_t0[0] * w[0] + v_t0[1] * w[1] + v_t0[2] * w[2]
        v_j02 = v_t0[0] * w[6] + v_t0[1] * w[7] + v_t0[2] * w[8]
        v_j1 = v_t1[0] * w[3] + v_t1[1] * w[4] + v_t1[2] * w[5]
        v_j12 = v_t1[0] * w[6] + v_t1[1] * w[7] + v_t1[2] * w[8]
        j0, j02, inside_x, j1, j12, inside_y = (
            jacobian[0], jacobian[1], jacobian[2], jacobian[3], jacobian[4], jacobian[5],
        )  # fmt: skip
        v_x, v_zx = image_jacobian_vjp(p[0], p[2], fx, j0, j02, inside_x, v_j0, v_j02)
        v_y, v_zy = image_jacobian_vjp(p[1], p[2], fy, j1, j12, inside_y, v_j1, v_j12)
        v_p = (
            v_x + fx * v_mean2d[0] / p[2],
            v_y + fy * v_mean2d[1] / p[2],
            v_zx + v_zy
            - (fx * p[0] * v_mean2d[0] + fy * p[1] * v_mean2d[1]) / (p[2] * p[2])
            + v_depth,
        )  # fmt: skip
        v_world = matvec3_transposed(w, v_p)
        clean = clean & finite(incoming)
        outgoing = size_of(v_world) + size_of(v_cov3d) + tl.abs(v_own_opacity)
        visible = visible & (finite(outgoing) | (finite(incoming) == 0))
        v_opacity += tl.where(visible, v_own_opacity, 0.0)
        v_mean = (
            v_mean[0] + tl.where(visible, v_world[0], 0.0),
            v_mean[1] + tl.where(visible, v_world[1], 0.0),
            v_mean[2] + tl.where(visible, v_world[2], 0.0),
        )
        v_sigma = (
            v_sigma[0] + tl.where(visible, v_cov3d[0], 0.0),
            v_sigma[1] + tl.where(visible, v_cov3d[1], 0.0),
            v_sigma[2] + tl.where(visible, v_cov3d[2], 0.0),
            v_sigma[3] + tl.where(visible, v_cov3d[3], 0.0),
            v_sigma[4] + tl.where(visible, v_cov3d[4], 0.0),
            v_sigma[5] + tl.where(visible, v_cov3d[5], 0.0),
        )
        if v_viewmats is not None:
            out = v_viewmats + (block.to(tl.int64) * n_images + image) * 12
            for k in tl.static_range(3):
                v_w0 = v_p[0] * mean[k] + j0 * v_t0[k]
                v_w1 = v_p[1] * mean[k] + j1 * v_t1[k]
                v_w2 = v_p[2] * mean[k] + j02 * v_t0[k] + j12 * v_t1[k]
                tl.store(out + k, tl.sum(tl.where(visible, v_w0, 0.0)))
                tl.store(out + 4 + k, tl.sum(tl.where(visible, v_w1, 0.0)))
                tl.store(out + 8 + k, tl.sum(tl.where(visible, v_w2, 0.0)))
                tl.store(out + 4 * k + 3, tl.sum(tl.where(visible, v_p[k], 0.0)))

    outgoing = size_of(v_mean) + size_of(v_sigma) + tl.abs(v_opacity)
    if covars is None:
        unit, inverse_norm = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
        scale = load_tuple(scales + gaussian * 3, 1, 3, mask)
        v_rotation, v_scale = covariance_vjp(rotation(unit), scale, v_sigma)
        v_quat = normalize4_vjp(unit, inverse_norm, rotation_vjp(unit, v_rotation))
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


def projection_fwd(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    sound: Tensor | None,
    *,
    width: int,
    height: int,
    eps2d: float,
    near_plane: float,
    far_plane: float,
    radius_clip: float,
    compensate: bool,
    packed: bool,
    numerics: Numerics,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Rows of projected Gaussians.

    Args:
        means, quats, scales, covars, opacities: [B, N, 3], [B, N, 4], [B, N, 3], [B, N, 6], [B, N].
        viewmats, Ks: [B, C, 4, 4], [B, C, 3, 3].
        sound: [B, N] bool, false for Gaussians to cull, or None.

    Returns:
        `row_ids` [R] int64, ascending, the flat index into [B, C, N] of each row, or None when not packed, where
        R = B C N; then `radii` [R, 2] int32, `means2d` [R, 2], `depths` [R], `conics` [R, 3], `compensations` [R] or
        None, and the compensated `opacities` [R] or None. Rows of culled Gaussians are zero.
    """
    n_batches, n_gaussians, _ = means.shape
    n_cameras = viewmats.shape[1]
    n_rows = n_batches * n_cameras * n_gaussians
    inputs = (means, quats, scales, covars, opacities, viewmats, Ks, sound)
    sizes = (n_gaussians, n_cameras, width, height)
    constants = dict(
        EPS2D=eps2d,
        NEAR=near_plane,
        FAR=far_plane,
        RADIUS_CLIP=radius_clip,
        ALPHA_MIN=ALPHA_MIN,
        FOV_MARGIN=FOV_MARGIN,
        EXTEND=numerics.extend,
        OPACITY_AWARE=numerics.opacity_aware,
        COMPENSATE=compensate,
        FLOOR=numerics.compensation_floor,
        RADIUS_MAX=float(RADIUS_MAX),
        BLOCK=BLOCK,
    )
    row_ids = None
    with guard(means):
        if packed:
            visible = torch.empty(n_rows, dtype=torch.int8, device=means.device)
            if n_rows > 0:
                _projection_visible_kernel[(programs(n_rows, BLOCK),)](*inputs, visible, n_rows, *sizes, **constants)
            row_ids = visible.nonzero().squeeze(1)
            n_rows = row_ids.numel()
        radii = torch.empty(n_rows, 2, dtype=torch.int32, device=means.device)
        means2d = means.new_empty(n_rows, 2)
        depths = means.new_empty(n_rows)
        conics = means.new_empty(n_rows, 3)
        compensations = means.new_empty(n_rows) if compensate else None
        opacities_out = means.new_empty(n_rows) if opacities is not None else None
        if n_rows > 0:
            _projection_fwd_kernel[(programs(n_rows, BLOCK),)](
                *inputs, row_ids, radii, means2d, depths, conics, compensations, opacities_out,
                n_rows, *sizes, **constants,
            )  # fmt: skip
    return row_ids, radii, means2d, depths, conics, compensations, opacities_out


def projection_bwd(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    row_ids: Tensor | None,
    radii: Tensor,
    v_means2d: Tensor,
    v_depths: Tensor,
    v_conics: Tensor,
    v_compensations: Tensor | None,
    v_opacities_out: Tensor | None,
    *,
    width: int,
    height: int,
    eps2d: float,
    compensate: bool,
    numerics: Numerics,
    needs_viewmats: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of means, quats, scales, covars, opacities and viewmats, None for what was not given or asked."""
    n_batches, n_gaussians, _ = means.shape
    n_cameras = viewmats.shape[1]
    n_images = n_batches * n_cameras
    v_means = torch.empty_like(means)
    v_quats = None if quats is None else torch.empty_like(quats)
    v_scales = None if scales is None else torch.empty_like(scales)
    v_covars = None if covars is None else torch.empty_like(covars)
    v_opacities = None if opacities is None else torch.empty_like(opacities)
    blocks = triton.cdiv(n_gaussians, BLOCK)
    partial = means.new_empty(blocks, n_images, 12) if needs_viewmats else None
    with guard(means):
        row_of = None if row_ids is None else rows_by_pair(row_ids, n_images * n_gaussians)
        if n_batches * n_gaussians > 0:
            _projection_bwd_kernel[(programs(n_batches * blocks, 1),)](
                means, quats, scales, covars, opacities, viewmats, Ks, row_of, radii,
                v_means2d, v_depths, v_conics, v_compensations, v_opacities_out,
                v_means, v_quats, v_scales, v_covars, v_opacities, partial,
                n_gaussians, n_cameras, n_images, width, height,
                EPS2D=eps2d,
                FOV_MARGIN=FOV_MARGIN,
                COMPENSATE=compensate,
                FLOOR=numerics.compensation_floor,
                BLOCK=BLOCK,
            )  # fmt: skip
    v_viewmats = None
    if partial is not None:
        v_viewmats = torch.nn.functional.pad(partial.sum(0).view(n_batches, n_cameras, 3, 4), (0, 0, 0, 1))
    return v_means, v_quats, v_scales, v_covars, v_opacities, v_viewmats
