"""The unscented transform: a Gaussian projected by seven sigma points, by any lens and shutter.

(Julier and Uhlmann, "A New Extension of the Kalman Filter to Nonlinear Systems", 1997; as in 3DGUT, arXiv 2412.12507.)
Point 0 is the mean; two more are ``spread`` standard deviations along each axis on either side. With the pixels u_i,
d_i = u_i - u_0 and the weights of ``config.Unscented``:

    delta = weight (d_1 + ... + d_6),  mean = u_0 + delta
    covariance = center_weight delta delta^T + weight sum (d_i - delta) (d_i - delta)^T

Only differences are weighted, as the weights are large and of both signs. With the symmetric gradient G of the
covariance and the gradient v of the mean:

    v_delta = v + 2 (center_weight - 1 + 6 weight) G delta
    v_u_i = weight (2 G (d_i - delta) + v_delta),  v_u_0 = v - sum v_u_i
"""

import triton
import triton.language as tl

from ...data import ProjectionSettings
from ..device_math import (
    add,
    compensation,
    compensation_vjp,
    conic_vjp,
    constant,
    det2,
    dot,
    finite,
    load_tuple,
    matvec3,
    matvec3_transposed,
    normalize4,
    normalize_vjp,
    own_gaussians,
    rotation,
    rotation_vjp,
    size_of,
    store_tuple,
    times,
    where,
)
from ..launch import Int, kernel
from .camera_models import find_rows, load_camera
from .lens_models import coefficients_vjp, lens_pixel, lens_pixel_vjp, load_lens
from .shutters import at_exposure_vjp, exposed_pixel, load_path, pose_at, pose_at_vjp, to_camera


def constants(settings: ProjectionSettings, n_lens: int) -> dict[str, object]:
    """The arguments of all projections that follow from settings, and from the number of values of a lens."""
    camera, transform = settings.camera, () if settings.unscented is None else tuple(settings.unscented)
    own = {"width": camera.width, "height": camera.height, "eps2d": settings.eps2d, "COMPENSATE": settings.antialiased}
    return own | {"CAMERA": camera.model, "READOUT": camera.readout, "N_LENS": n_lens, "UNSCENTED": transform}


@triton.jit
def _sigma_point(mean, axes, i, spread):
    """One of the six outer points, and its distance from the mean in units of the axis i // 2."""
    step = tl.where(i % 2 == 0, spread, -spread)
    point = ()
    for j in tl.static_range(3):
        along = tl.where(i < 2, axes[j], tl.where(i < 4, axes[3 + j], axes[6 + j]))
        point = point + (mean[j] + step * along,)
    return point, step


@triton.jit
def _pixel(
    point, pose, path, lens, intrinsics, width, height, CAMERA: tl.constexpr, READOUT: tl.constexpr,
    MARGIN: tl.constexpr,
):  # fmt: skip
    """Pixel of a point, whether it is seen, and when it is exposed."""
    if len(path) > 0:
        return exposed_pixel(point, path, lens, intrinsics, width, height, CAMERA, READOUT, MARGIN)
    else:
        u, v, seen = lens_pixel(to_camera(point, pose), lens, intrinsics, width, height, CAMERA, MARGIN)
        return u, v, seen, u


@triton.jit
def distance_of(p):
    """Distance of a point from the origin; a tiny number at it."""
    return tl.sqrt(tl.maximum(dot(p, p), 1e-30))


@triton.jit
def depths_of(p, CAMERA: tl.constexpr, UNSCENTED: tl.constexpr):
    """Depth of a point of the camera frame, and that by which planes cull."""
    if len(UNSCENTED) == 0 or not UNSCENTED[5]:
        return p[2], p[2]
    elif CAMERA == "ftheta":
        return distance_of(p), distance_of(p)
    else:
        return distance_of(p), p[2]


@triton.jit
def unscented(
    mean, r, scale, pose, path, lens, intrinsics, width, height,
    CAMERA: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr,
):  # fmt: skip
    """Projects a Gaussian with rotation r.

    Returns:
        Mean in pixels, and in the frame of the camera; screen covariance; whether the camera sees it; and what the
        gradient needs: the axes (three values each), the pixel of the mean and its time, and delta.
    """
    axes = ()
    for k in tl.static_range(3):
        axes = axes + times(r[k::3], scale[k])
    u0, v0, seen, time = _pixel(mean, pose, path, lens, intrinsics, width, height, CAMERA, READOUT, UNSCENTED[3])
    zero = u0 * 0.0
    spread = constant(UNSCENTED[0], u0)
    delta_x, delta_y, xx, xy, yy = zero, zero, zero, zero, zero
    # A loop, as code for each point would take minutes to compile.
    for i in range(6):
        point, _ = _sigma_point(mean, axes, i, spread)
        u, v, also, _ = _pixel(point, pose, path, lens, intrinsics, width, height, CAMERA, READOUT, UNSCENTED[3])
        if UNSCENTED[4]:
            seen = seen & also
        else:
            seen = seen | also
        dx = u - u0
        dy = v - v0
        delta_x += dx
        delta_y += dy
        xx += dx * dx
        xy += dx * dy
        yy += dy * dy
    weight = constant(UNSCENTED[1], u0)
    delta_x = weight * delta_x
    delta_y = weight * delta_y
    # Of sum (d_i - delta) (d_i - delta)^T, only d_i d_i^T is large.
    rest = constant(UNSCENTED[2] - 2.0 + 6.0 * UNSCENTED[1], u0)
    covariance = (
        weight * xx + rest * delta_x * delta_x,
        weight * xy + rest * delta_x * delta_y,
        weight * yy + rest * delta_y * delta_y,
    )
    if len(path) > 0:
        pose = pose_at(path, constant(0.5, u0) + zero)
    return (u0 + delta_x, v0 + delta_y), to_camera(mean, pose), covariance, seen, (axes, u0, v0, time, delta_x, delta_y)


@triton.jit
def unscented_vjp(
    mean, pose, path, lens, intrinsics, width, height, saved, v_mean2d, v_depth, v_cov,
    CAMERA: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr, LENS: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    """Gradients of the mean (three values) and of the axes (nine); and of the camera.

    They are in the frame of the camera if its shutter is global, and otherwise in the world frame. Those of the camera
    are the 12 values of its lens if LENS, and the first 15 of its path if PATH.
    """
    axes, u0, v0, time0, delta_x, delta_y = saved
    weight = constant(UNSCENTED[1], v_depth)
    spread = constant(UNSCENTED[0], v_depth)
    rest = constant(2.0 * (UNSCENTED[2] - 1.0 + 6.0 * UNSCENTED[1]), v_depth)
    v_delta_x = v_mean2d[0] + rest * (v_cov[0] * delta_x + 0.5 * v_cov[1] * delta_y)
    v_delta_y = v_mean2d[1] + rest * (0.5 * v_cov[1] * delta_x + v_cov[2] * delta_y)
    zero = v_depth * 0.0
    total = (zero,) * (3 + 12 * LENS + 15 * PATH)
    v_axes = (zero,) * 9
    v_u0 = v_mean2d[0] + zero
    v_v0 = v_mean2d[1] + zero
    for i in range(6):
        point, step = _sigma_point(mean, axes, i, spread)
        u, v, _, time = _pixel(point, pose, path, lens, intrinsics, width, height, CAMERA, READOUT, UNSCENTED[3])
        dx = u - u0 - delta_x
        dy = v - v0 - delta_y
        v_u = weight * (2.0 * v_cov[0] * dx + v_cov[1] * dy + v_delta_x)
        v_v = weight * (v_cov[1] * dx + 2.0 * v_cov[2] * dy + v_delta_y)
        v_u0 -= v_u
        v_v0 -= v_v
        own = _point_vjp(
            point, time, pose, path, lens, intrinsics, width, height, v_u, v_v, CAMERA, READOUT, LENS, PATH
        )  # fmt: skip
        total = add(total, own)
        added = ()
        for k in tl.static_range(9):
            added = added + (v_axes[k] + tl.where(i // 2 == k // 3, step * own[k % 3], 0.0),)
        v_axes = added
    own = _point_vjp(
        mean, time0, pose, path, lens, intrinsics, width, height, v_u0, v_v0, CAMERA, READOUT, LENS, PATH
    )  # fmt: skip
    total = add(total, own)
    along = (zero, zero, v_depth)
    v_path = ()
    half = constant(0.5, v_depth) + zero
    if len(path) > 0:
        pose = pose_at(path, half)
    if UNSCENTED[5]:
        p = to_camera(mean, pose)
        scale = v_depth / distance_of(p)
        along = (scale * p[0], scale * p[1], scale * p[2])
    if len(path) > 0:
        if PATH:
            v_path = pose_at_vjp(path, half, matvec3(pose[0], mean), along)
        along = matvec3_transposed(pose[0], along)
    v_camera = total[3 : 3 + 12 * LENS] + add(total[3 + 12 * LENS :], v_path)
    return add(total[:3], along), v_axes, v_camera


@triton.jit
def _point_vjp(
    point, time, pose, path, lens, intrinsics, width, height, v_u, v_v,
    CAMERA: tl.constexpr, READOUT: tl.constexpr, LENS: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    """Gradient of a sigma point from that of its pixel; then those of the lens and of the path if asked for."""
    if len(path) > 0:
        pose = pose_at(path, time)
    p = to_camera(point, pose)
    if len(path) > 0:
        v_u, v_v = at_exposure_vjp(p, pose[1], path, lens, intrinsics, width, height, v_u, v_v, CAMERA, READOUT)
    v_p = lens_pixel_vjp(p, lens, intrinsics, v_u, v_v, CAMERA)
    gradients = v_p
    if len(path) > 0:
        gradients = matvec3_transposed(pose[0], v_p)
    if LENS:
        gradients = gradients + coefficients_vjp(p, lens, intrinsics, v_u, v_v, CAMERA)
    if PATH:
        gradients = gradients + pose_at_vjp(path, time, matvec3(pose[0], point), v_p)
    return gradients


@kernel
def _projection_unscented_bwd_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4]
    scales,  # [B, N, 3]
    covars,  # None
    opacities,  # [B, N] or None
    viewmats,  # [B, C, 4, 4]
    Ks,  # [B, C, 3, 3]
    lens,  # [B, C, N_LENS] or None
    shutter,  # [B, C, 20] or None
    row_of,  # [B, C, N] int32, packed row of each entry; None if not packed
    radii,  # [nnz, 2] int32
    v_means2d,  # [nnz, 2] or None
    v_depths,  # [nnz] or None
    v_conics,  # [nnz, 3] or None
    v_compensations,  # [nnz] or None
    v_opacities_out,  # [nnz] or None
    v_means,  # [B, N, 3], output
    v_quats,  # [B, N, 4], output
    v_scales,  # [B, N, 3], output
    v_covars,  # None
    v_opacities,  # [B, N], output, or None
    v_viewmats,  # [blocks, I, 12], output, or None
    v_lens,  # [blocks, I, 12], output, or None
    v_shutter,  # [blocks, I, 20], output, or None
    n_gaussians: "Int", n_cameras: "Int", n_images: "Int", width: "Int", height: "Int",
    eps2d: tl.float64,
    CAMERA: tl.constexpr, N_LENS: tl.constexpr, READOUT: tl.constexpr, UNSCENTED: tl.constexpr,
    FOV_MARGIN: tl.constexpr, COMPENSATE: tl.constexpr, FLOOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `_projection_bwd_kernel`."""
    batch, block, n, gaussian, mask = own_gaussians(n_gaussians, BLOCK)
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    unit, inverse_norm = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
    scale = load_tuple(scales + gaussian * 3, 1, 3, mask)
    r = rotation(unit)

    zero = tl.zeros([BLOCK], mean[0].dtype)
    v_mean, v_axes = (zero,) * 3, (zero,) * 9
    v_opacity = zero
    seen = tl.zeros([BLOCK], tl.int1)
    clean = mask
    for camera in range(n_cameras):
        image = batch * n_cameras + camera
        row, visible = find_rows(row_of, radii, image * n_gaussians + n, mask)
        seen = seen | visible
        w, t, intrinsics = load_camera(viewmats, Ks, image)
        coefficients = load_lens(lens, image, N_LENS)
        path = load_path(shutter, image)
        _, _, sharp, _, saved = unscented(
            mean, r, scale, (w, t), path, coefficients, intrinsics, width, height, CAMERA, READOUT, UNSCENTED
        )  # fmt: skip
        blur = constant(eps2d, sharp[0])
        blurred = (sharp[0] + blur, sharp[1], sharp[2] + blur)
        det = det2(blurred)

        v_conic, v_mean2d, v_depth, v_row, v_rho = (zero,) * 3, (zero,) * 2, zero, zero, zero
        if v_conics is not None:
            v_conic = load_tuple(v_conics + row * 3, 1, 3, visible)
        if v_means2d is not None:
            v_mean2d = load_tuple(v_means2d + row * 2, 1, 2, visible)
        if v_depths is not None:
            v_depth = tl.load(v_depths + row, mask=visible, other=0.0)
        if v_opacities_out is not None:
            v_row = tl.load(v_opacities_out + row, mask=visible, other=0.0)
        v_cov = conic_vjp(blurred, det, v_conic)
        if COMPENSATE:
            rho = compensation(det2(sharp), det, FLOOR)
            if v_compensations is not None:
                v_rho = tl.load(v_compensations + row, mask=visible, other=0.0)
            if v_opacities_out is not None:
                v_rho += v_row * tl.load(opacities + gaussian, mask=mask, other=0.0)
            v_blur = compensation_vjp(sharp, blurred, det2(sharp), det, rho, FLOOR, v_rho)
            v_cov = add(v_cov, v_blur)
            v_own_opacity = v_row * rho
        else:
            v_own_opacity = v_row
        incoming = size_of(v_conic) + size_of(v_mean2d) + tl.abs(v_depth) + tl.abs(v_row) + tl.abs(v_rho)
        v_own, v_own_axes, v_camera = unscented_vjp(
            mean, (w, t), path, coefficients, intrinsics, width, height, saved, v_mean2d, v_depth, v_cov, CAMERA,
            READOUT, UNSCENTED, v_lens is not None, v_shutter is not None,
        )  # fmt: skip
        clean = clean & finite(incoming)
        outgoing = size_of(v_own) + size_of(v_own_axes) + tl.abs(v_own_opacity)
        if len(v_camera) > 0:
            outgoing += size_of(v_camera)
        visible = visible & (finite(outgoing) | (finite(incoming) == 0))
        v_opacity += tl.where(visible, v_own_opacity, 0.0)
        kept = where(visible, v_own + v_own_axes)
        place = block.to(tl.int64) * n_images + image
        if v_viewmats is not None:
            axes = saved[0]
            out = v_viewmats + place * 12
            for i in tl.static_range(3):
                tl.store(out + 4 * i + 3, tl.sum(kept[i]))
                for j in tl.static_range(3):
                    v_w = kept[i] * mean[j]
                    for k in tl.static_range(3):
                        v_w += kept[3 + 3 * k + i] * axes[3 * k + j]
                    tl.store(out + 4 * i + j, tl.sum(tl.where(visible, v_w, 0.0)))
        if v_lens is not None:
            for k in tl.static_range(12):
                tl.store(v_lens + place * 12 + k, tl.sum(tl.where(visible, v_camera[k], 0.0)))
        if v_shutter is not None:
            for k in tl.static_range(15):
                tl.store(v_shutter + place * 20 + k, tl.sum(tl.where(visible, v_camera[len(v_camera) - 15 + k], 0.0)))
        v_world = ()
        for k in tl.static_range(4):
            v_vector = kept[3 * k : 3 * k + 3]
            if shutter is None:
                v_vector = matvec3_transposed(w, v_vector)
            v_world = v_world + v_vector
        v_mean, v_axes = add(v_mean, v_world[:3]), add(v_axes, v_world[3:])

    v_rotation = ()
    for i in tl.static_range(3):
        for k in tl.static_range(3):
            v_rotation = v_rotation + (v_axes[3 * k + i] * scale[k],)
    v_scale = ()
    for k in tl.static_range(3):
        v_scale = v_scale + (dot(r[k::3], v_axes[3 * k : 3 * k + 3]),)
    v_quat = normalize_vjp(unit, inverse_norm, rotation_vjp(unit, v_rotation))
    outgoing = size_of(v_mean) + size_of(v_quat) + size_of(v_scale) + tl.abs(v_opacity)
    kept_row = seen & (finite(outgoing) | (clean == 0))
    store_tuple(v_means + gaussian * 3, 1, v_mean, mask, kept_row)
    if v_opacities is not None:
        tl.store(v_opacities + gaussian, tl.where(kept_row, v_opacity, 0.0), mask=mask)
    store_tuple(v_quats + gaussian * 4, 1, v_quat, mask, kept_row)
    store_tuple(v_scales + gaussian * 3, 1, v_scale, mask, kept_row)
