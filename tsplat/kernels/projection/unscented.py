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

If the lens wraps, d_i is the shorter way around, and delta is 0: the mean of longitudes and latitudes around a pole is
that of no direction, and would move a Gaussian there by many standard deviations. Where the shutter is global, too, d_i
is computed without pixels, whose rounding errors grow with the width of the image.
"""

import math

import triton
import triton.language as tl

from ...config import BEHIND_POLE
from ..device_math import (
    add,
    constant,
    dot,
    load_rotated,
    matvec3,
    matvec3_transposed,
    quaternion_vjp,
    times,
)
from .covariances import blur, shape_of, shape_vjp
from .lens_pixels import coefficients_vjp, lens_pixel, lens_pixel_vjp, pixel_difference, u_period, whole_periods
from .lenses.equirectangular import atan2
from .projector import Projector
from .shutters import exposed_pixel, exposure_time_vjp, pose_at, pose_at_vjp, to_camera
from .windshield import sine

BEYOND = tl.constexpr(BEHIND_POLE)
PI = tl.constexpr(math.pi)


@triton.jit
def _sigma_point(axes, i, spread):
    """Offset of one of the six outer points from the mean, and the same in units of the axis i // 2."""
    step = tl.where(i % 2 == 0, spread, -spread)
    offset = ()
    for j in tl.static_range(3):
        along = tl.where(i < 2, axes[j], tl.where(i < 4, axes[3 + j], axes[6 + j]))
        offset = offset + (step * along,)
    return offset, step


@triton.jit
def _pose(camera, time):
    """The pose of a camera at a time of its exposure."""
    w, t, path = camera[0], camera[1], camera[4]
    if len(path) > 0:
        return pose_at(path, time)
    else:
        return w, t


@triton.jit
def _pixel(point, camera, plane, CONSTANTS: tl.constexpr):
    """Pixel of a point, whether it is seen, and when it is exposed: any value without a rolling shutter."""
    w, t, intrinsics, lens, path = camera
    width, height = plane[0], plane[1]
    MARGIN: tl.constexpr = CONSTANTS.UNSCENTED.margin
    LENS: tl.constexpr = CONSTANTS.LENS
    READOUT: tl.constexpr = CONSTANTS.READOUT
    if len(path) > 0:
        return exposed_pixel(point, path, lens, intrinsics, width, height, LENS, READOUT, MARGIN)
    else:
        u, v, seen = lens_pixel(to_camera(point, (w, t)), lens, intrinsics, width, height, LENS, MARGIN)
        return u, v, seen, u


@triton.jit
def _pixel_difference(mean, offset, pixel, camera, plane, CONSTANTS: tl.constexpr):
    """Pixel of a sigma point less that of the mean, whether it is seen, and when it is exposed."""
    if CONSTANTS.LENS.WRAPS and len(camera[4]) == 0:
        w = camera[0]
        dx, dy, seen = pixel_difference(
            to_camera(mean, (w, camera[1])), matvec3(w, offset), pixel, camera[2], plane[0], plane[1],
            CONSTANTS.LENS, CONSTANTS.UNSCENTED.margin,
        )  # fmt: skip
        return dx, dy, seen, dx
    else:
        u, v, seen, time = _pixel(add(mean, offset), camera, plane, CONSTANTS)
        dx = u - pixel[0]
        if CONSTANTS.LENS.WRAPS:
            dx -= whole_periods(dx, u_period(camera[2]))
        return dx, v - pixel[1], seen, time


@triton.jit
def _across(difference, camera, CONSTANTS: tl.constexpr):
    """What a difference of the u of two sigma points counts in its own variance, and the derivative of that.

    With a pole between the points, it counts far more: a Gaussian that holds a pole covers all columns.
    """
    if CONSTANTS.LENS.WRAPS:
        quarter = 0.25 * u_period(camera[2])
        beyond = tl.maximum(tl.abs(difference) - quarter, 0.0)
        steepness = BEYOND / quarter * beyond
        more = steepness * beyond
        return difference + tl.where(difference < 0.0, -more, more), 1.0 + 2.0 * steepness
    else:
        return difference, 1.0


@triton.jit
def _radii_on_sphere(radii, v, distance, scale, intrinsics, CONSTANTS: tl.constexpr):
    """Radii in whole pixels, at most half a turn, and of wide Gaussians at least those of a cap of directions.

    The cap's radius is the angle of a sphere of the Gaussian's largest extent. Where caps are narrow against the
    distance from the pole, the ellipse bounds a Gaussian by itself.
    """
    largest = tl.maximum(tl.maximum(tl.abs(scale[0]), tl.abs(scale[1])), tl.abs(scale[2]))
    s = tl.minimum(constant(CONSTANTS.EXTEND, v) * largest / distance, 1.0)
    fx, fy, cy = tl.abs(intrinsics[0]), tl.abs(intrinsics[1]), intrinsics[3]
    cosine = sine(0.5 * PI - tl.abs(v - cy) / fy)
    holds_pole = s >= cosine
    ratio = tl.where(holds_pole, 1.0, s / tl.where(holds_pole, 1.0, cosine))
    longitude = tl.where(holds_pole, PI, atan2(ratio, tl.sqrt((1.0 - ratio) * (1.0 + ratio))))
    latitude = atan2(s, tl.sqrt((1.0 - s) * (1.0 + s)))
    is_wide = s > 0.1 * cosine
    least_x = tl.where(is_wide, tl.ceil(fx * longitude), 0.0)
    least_y = tl.where(is_wide, tl.ceil(fy * latitude), 0.0)
    return (
        tl.minimum(tl.maximum(radii[0], least_x), tl.ceil(PI * fx)),
        tl.minimum(tl.maximum(radii[1], least_y), tl.ceil(PI * fy)),
    )


@triton.jit
def _distance(p):
    """Distance of a point from the origin; a tiny number at it."""
    return tl.sqrt(tl.maximum(dot(p, p), 1e-30))


@triton.jit
def _depths(p, CONSTANTS: tl.constexpr):
    """Depth of a point of the camera frame, and that by which planes cull."""
    if not CONSTANTS.UNSCENTED.radial:
        return p[2], p[2]
    elif CONSTANTS.LENS.CULLS_BY_DISTANCE:
        return _distance(p), _distance(p)
    else:
        return _distance(p), p[2]


@triton.jit
def _unscented(gaussian, camera, plane, CONSTANTS: tl.constexpr):
    """Projects a Gaussian.

    Returns:
        Mean in pixels, and in the frame of the camera; screen covariance; whether the camera sees it; and what the
        gradient needs: the axes (three values each), the pixel of the mean and its time, and delta.
    """
    mean, r, scale = gaussian[0], gaussian[1], gaussian[2]
    axes = ()
    for k in tl.static_range(3):
        axes = axes + times(r[k::3], scale[k])
    u0, v0, seen, time = _pixel(mean, camera, plane, CONSTANTS)
    zero = u0 * 0.0
    spread = constant(CONSTANTS.UNSCENTED.spread, u0)
    delta_x, delta_y, xx, xy, yy = zero, zero, zero, zero, zero
    # A loop, as code for each point would take minutes to compile.
    for i in range(6):
        offset, _ = _sigma_point(axes, i, spread)
        dx, dy, also, _ = _pixel_difference(mean, offset, (u0, v0), camera, plane, CONSTANTS)
        if CONSTANTS.UNSCENTED.all_valid:
            seen = seen & also
        else:
            seen = seen | also
        wide, _ = _across(dx, camera, CONSTANTS)
        delta_x += dx
        delta_y += dy
        xx += wide * wide
        xy += dx * dy
        yy += dy * dy
    weight = constant(CONSTANTS.UNSCENTED.weight, u0)
    if CONSTANTS.LENS.WRAPS:
        delta_x, delta_y = zero, zero
    else:
        delta_x = weight * delta_x
        delta_y = weight * delta_y
    # Of sum (d_i - delta) (d_i - delta)^T, only d_i d_i^T is large.
    rest = constant(CONSTANTS.UNSCENTED.center_weight - 2.0 + 6.0 * CONSTANTS.UNSCENTED.weight, u0)
    covariance = (
        weight * xx + rest * delta_x * delta_x,
        weight * xy + rest * delta_x * delta_y,
        weight * yy + rest * delta_y * delta_y,
    )
    pose = _pose(camera, constant(0.5, u0) + zero)
    return (u0 + delta_x, v0 + delta_y), to_camera(mean, pose), covariance, seen, (axes, u0, v0, time, delta_x, delta_y)


@triton.jit
def _unscented_vjp(
    mean, camera, plane, saved, v_mean2d, v_depth, v_cov,
    OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr,
):  # fmt: skip
    """Gradients of the mean (three values) and of the axes (nine); and of the camera.

    They are in the frame of the camera if its shutter is global, and otherwise in the world frame. Those of the camera
    are the 12 values of its lens if OF_LENS, and the first 15 of its path if OF_PATH.
    """
    axes, u0, v0, time0, delta_x, delta_y = saved
    path = camera[4]
    weight = constant(CONSTANTS.UNSCENTED.weight, v_depth)
    spread = constant(CONSTANTS.UNSCENTED.spread, v_depth)
    rest = constant(2.0 * (CONSTANTS.UNSCENTED.center_weight - 1.0 + 6.0 * CONSTANTS.UNSCENTED.weight), v_depth)
    v_delta_x = v_mean2d[0] + rest * (v_cov[0] * delta_x + 0.5 * v_cov[1] * delta_y)
    v_delta_y = v_mean2d[1] + rest * (0.5 * v_cov[1] * delta_x + v_cov[2] * delta_y)
    if CONSTANTS.LENS.WRAPS:
        v_delta_x, v_delta_y = v_delta_x * 0.0, v_delta_y * 0.0
    zero = v_depth * 0.0
    total = (zero,) * (3 + 12 * OF_LENS + 15 * OF_PATH)
    v_axes = (zero,) * 9
    v_u0 = v_mean2d[0] + zero
    v_v0 = v_mean2d[1] + zero
    for i in range(6):
        offset, step = _sigma_point(axes, i, spread)
        dx, dy, _, time = _pixel_difference(mean, offset, (u0, v0), camera, plane, CONSTANTS)
        wide, slope = _across(dx, camera, CONSTANTS)
        dx, dy = dx - delta_x, dy - delta_y
        if CONSTANTS.LENS.WRAPS:
            v_u = weight * (2.0 * v_cov[0] * wide * slope + v_cov[1] * dy)
        else:
            v_u = weight * (2.0 * v_cov[0] * dx + v_cov[1] * dy + v_delta_x)
        v_v = weight * (v_cov[1] * dx + 2.0 * v_cov[2] * dy + v_delta_y)
        v_u0 -= v_u
        v_v0 -= v_v
        v_point = _point_vjp(add(mean, offset), time, camera, plane, v_u, v_v, OF_LENS, OF_PATH, CONSTANTS)
        total = add(total, v_point)
        added = ()
        for k in tl.static_range(9):
            added = added + (v_axes[k] + tl.where(i // 2 == k // 3, step * v_point[k % 3], 0.0),)
        v_axes = added
    total = add(total, _point_vjp(mean, time0, camera, plane, v_u0, v_v0, OF_LENS, OF_PATH, CONSTANTS))
    along = (zero, zero, v_depth)
    v_path = ()
    half = constant(0.5, v_depth) + zero
    pose = _pose(camera, half)
    if CONSTANTS.UNSCENTED.radial:
        p = to_camera(mean, pose)
        scale = v_depth / _distance(p)
        along = (scale * p[0], scale * p[1], scale * p[2])
    if len(path) > 0:
        if OF_PATH:
            v_path = pose_at_vjp(path, half, matvec3(pose[0], mean), along)
        along = matvec3_transposed(pose[0], along)
    v_camera = total[3 : 3 + 12 * OF_LENS] + add(total[3 + 12 * OF_LENS :], v_path)
    return add(total[:3], along), v_axes, v_camera


@triton.jit
def _point_vjp(
    point, time, camera, plane, v_u, v_v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr
):
    """Gradient of a sigma point from that of its pixel; then those of the lens and of the path if asked for."""
    intrinsics, lens, path = camera[2], camera[3], camera[4]
    LENS: tl.constexpr = CONSTANTS.LENS
    READOUT: tl.constexpr = CONSTANTS.READOUT
    pose = _pose(camera, time)
    p = to_camera(point, pose)
    if len(path) > 0:
        v_u, v_v = exposure_time_vjp(
            p, pose[1], path, lens, intrinsics, plane[0], plane[1], v_u, v_v, LENS, READOUT
        )  # fmt: skip
    v_p = lens_pixel_vjp(p, lens, intrinsics, v_u, v_v, LENS)
    gradients = v_p
    if len(path) > 0:
        gradients = matvec3_transposed(pose[0], v_p)
    if OF_LENS:
        gradients = gradients + coefficients_vjp(p, lens, intrinsics, v_u, v_v, LENS)
    if OF_PATH:
        gradients = gradients + pose_at_vjp(path, time, matvec3(pose[0], point), v_p)
    return gradients


@triton.jit
def _project(gaussian, camera, opacity, plane, CONSTANTS: tl.constexpr):
    mean2d, p, sharp, visible, _ = _unscented(gaussian, camera, plane, CONSTANTS)
    seen, radii, shape, rho, shown = shape_of(sharp, blur(sharp, plane[2]), opacity, CONSTANTS)
    depth, z = _depths(p, CONSTANTS)
    if CONSTANTS.LENS.WRAPS:
        radii = _radii_on_sphere(radii, mean2d[1], depth, gaussian[2], camera[2], CONSTANTS)
    return visible & seen, depth, z, mean2d, radii, shape, (), rho, shown


@triton.jit
def _vjp(gaussian, camera, opacity, plane, v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr):
    v_mean2d, v_depth, v_conic, _, v_opacity, v_compensation = v
    _, _, sharp, _, saved = _unscented(gaussian, camera, plane, CONSTANTS)
    v_cov, v_gaussian_opacity = shape_vjp(
        sharp, blur(sharp, plane[2]), opacity, v_conic, v_opacity, v_compensation, CONSTANTS
    )
    zero = tl.zeros_like(sharp[0])
    if v_mean2d is None:
        v_mean2d = (zero, zero)
    if v_depth is None:
        v_depth = sharp[0] * 0.0  # no constant, so that products are fused with sums as if it were given
    v_mean, v_axes, v_camera = _unscented_vjp(
        gaussian[0], camera, plane, saved, v_mean2d, v_depth, v_cov, OF_LENS, OF_PATH, CONSTANTS
    )
    v_gaussian = v_mean + v_axes
    v_world = ()
    for k in tl.static_range(4):
        v_vector = v_gaussian[3 * k : 3 * k + 3]
        if len(camera[4]) == 0:
            v_vector = matvec3_transposed(camera[0], v_vector)
        v_world = v_world + v_vector
    return v_world, v_gaussian_opacity, v_camera, (v_gaussian, saved[0])


@triton.jit
def _pose_gradient(gaussian, saved, ROW: tl.constexpr, COLUMN: tl.constexpr, CONSTANTS: tl.constexpr):
    """The gradients of the mean and of the axes in the frame of the camera, times these in the world frame."""
    v, axes = saved
    v_w = v[ROW]
    if COLUMN < 3:
        v_w = v[ROW] * gaussian[0][COLUMN]
        for k in tl.static_range(3):
            v_w += v[3 + 3 * k + ROW] * axes[3 * k + COLUMN]
    return v_w


@triton.jit
def _finish(gaussians, i, mask, gaussian, sums):
    """The axes are the columns of the rotation times the scales."""
    _, r, scale, unit, inverse_norm = gaussian
    v_rotation = ()
    for row in tl.static_range(3):
        for k in tl.static_range(3):
            v_rotation = v_rotation + (sums[3 + 3 * k + row] * scale[k],)
    v_scale = ()
    for k in tl.static_range(3):
        v_scale = v_scale + (dot(r[k::3], sums[3 + 3 * k : 6 + 3 * k]),)
    return quaternion_vjp(unit, inverse_norm, v_rotation), v_scale, ()


UNSCENTED = Projector(3, 12, load_rotated, _project, _vjp, _pose_gradient, _finish)
