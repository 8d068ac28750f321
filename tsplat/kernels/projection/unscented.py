"""Projection by the unscented transform: seven sigma points, projected by any lens and shutter.

(Julier and Uhlmann, "A New Extension of the Kalman Filter to Nonlinear Systems", 1997; as in 3DGUT, arXiv 2412.12507.)
Point 0 is the mean. The others are at +-``spread`` standard deviations along each axis. With their pixels u_i, d_i =
u_i - u_0 and the weights of ``config.Unscented``:

    delta = weight (d_1 + ... + d_6),  mean = u_0 + delta
    covariance = center_weight delta delta^T + weight sum (d_i - delta) (d_i - delta)^T

Weights apply to differences only, as they are large and have both signs. With the symmetric gradient G of the
covariance and the gradient v of the mean:

    v_delta = v + 2 (center_weight - 1 + 6 weight) G delta
    v_u_i = weight (2 G (d_i - delta) + v_delta),  v_u_0 = v - sum v_u_i

If the lens wraps, d_i is the shorter way around, and delta is 0: near a pole, the mean of longitudes and latitudes is
not the longitude and latitude of the mean direction, and would move a Gaussian by many standard deviations. If the
shutter is also global, d_i is computed without pixels, whose rounding errors grow with the width of the image.
"""

import math
from typing import Any, NamedTuple

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
from .covariances import blur, visible_ellipse, visible_ellipse_vjp
from .lens_pixels import coefficients_vjp, lens_pixel, lens_pixel_vjp, pixel_difference, u_period, whole_periods
from .lenses.angles import atan2, sine
from .loaded_cameras import N_COEFFICIENTS, PATH_GRADIENTS
from .projector import InputGradients, Projection, Projector
from .shutters import exposed_pixel, exposure_time_vjp, pose_at, pose_at_vjp, to_camera

BEYOND = tl.constexpr(BEHIND_POLE)
PI = tl.constexpr(math.pi)


class SigmaPoints(NamedTuple):
    """Values saved for the gradient.

    Attributes:
        axes: One standard deviation along each axis of the Gaussian in the world frame, three values each.
        u0, v0, time: The pixel of the mean, and its exposure time.
        delta_x, delta_y: The shift delta of the projected mean from this pixel.
    """

    axes: Any
    u0: Any
    v0: Any
    time: Any
    delta_x: Any
    delta_y: Any


@triton.jit
def _sigma_point(axes, i, spread):
    """Returns the offset of outer sigma point i from the mean, step * axis[i // 2], and the step +-``spread``."""
    step = tl.where(i % 2 == 0, spread, -spread)
    offset = ()
    for j in tl.static_range(3):
        along = tl.where(i < 2, axes[j], tl.where(i < 4, axes[3 + j], axes[6 + j]))
        offset = offset + (step * along,)
    return offset, step


@triton.jit
def _pose(camera, time):
    """Returns the pose of a camera at a time of its exposure."""
    if len(camera.path) > 0:
        return pose_at(camera.path, time)
    else:
        return camera.pose


@triton.jit
def _pixel(point, camera, screen, CONSTANTS: tl.constexpr):
    """Returns the pixel of a world point, whether it is seen, and its exposure time (unused for a global shutter)."""
    TRANSFORM: tl.constexpr = CONSTANTS.UNSCENTED
    MARGIN: tl.constexpr = TRANSFORM.margin
    LENS: tl.constexpr = CONSTANTS.LENS
    READOUT: tl.constexpr = CONSTANTS.READOUT
    if len(camera.path) > 0:
        return exposed_pixel(point, camera, screen, LENS, READOUT, TRANSFORM)
    else:
        u, v, seen = lens_pixel(to_camera(point, camera.pose), camera, screen, LENS, MARGIN)
        return u, v, seen, u


@triton.jit
def _pixel_difference(mean, offset, pixel, camera, screen, CONSTANTS: tl.constexpr):
    """Returns pixel(mean + offset) - pixel(mean), whether the sigma point is seen, and its exposure time."""
    if CONSTANTS.LENS.WRAPS and len(camera.path) == 0:
        dx, dy, seen = pixel_difference(
            to_camera(mean, camera.pose), matvec3(camera.pose.rotation, offset), pixel, camera, screen,
            CONSTANTS.LENS, CONSTANTS.UNSCENTED.margin,
        )  # fmt: skip
        return dx, dy, seen, dx
    else:
        u, v, seen, time = _pixel(add(mean, offset), camera, screen, CONSTANTS)
        dx = u - pixel[0]
        if CONSTANTS.LENS.WRAPS:
            dx -= whole_periods(dx, u_period(camera.intrinsics))
        return dx, v - pixel[1], seen, time


@triton.jit
def _over_poles(difference, camera, CONSTANTS: tl.constexpr):
    """Returns the difference of u that enters the variance of u, and its derivative.

    If the lens wraps, a difference of more than 90 degrees, with a pole between the points, is enlarged: a Gaussian
    that contains a pole covers all columns.
    """
    if CONSTANTS.LENS.WRAPS:
        quarter = 0.25 * u_period(camera.intrinsics)
        beyond = tl.maximum(tl.abs(difference) - quarter, 0.0)
        steepness = BEYOND / quarter * beyond
        more = steepness * beyond
        return difference + tl.where(difference < 0.0, -more, more), 1.0 + 2.0 * steepness
    else:
        return difference, 1.0


@triton.jit
def _radii_on_sphere(radii, v, distance, scale, intrinsics, CONSTANTS: tl.constexpr):
    """Bounds the radii of a panorama, in whole pixels: at most half a period, and for wide Gaussians at least the cap.

    The cap contains the directions of a sphere with the largest extent of the Gaussian. If it is narrow compared with
    its distance from the pole, the ellipse suffices as a bound.
    """
    largest = tl.maximum(tl.maximum(tl.abs(scale[0]), tl.abs(scale[1])), tl.abs(scale[2]))
    s = tl.minimum(constant(CONSTANTS.EXTEND, v) * largest / distance, 1.0)
    fx, fy, cy = tl.abs(intrinsics.fx), tl.abs(intrinsics.fy), intrinsics.cy
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
    """Returns max(|p|, 1e-15)."""
    return tl.sqrt(tl.maximum(dot(p, p), 1e-30))


@triton.jit
def _depths(p, CONSTANTS: tl.constexpr):
    """Returns the depth of a point of the camera frame, and the depth that the near and far planes compare."""
    if not CONSTANTS.UNSCENTED.radial:
        return p[2], p[2]
    elif CONSTANTS.LENS.CULLS_BY_DISTANCE:
        return _distance(p), _distance(p)
    else:
        return _distance(p), p[2]


@triton.jit
def _unscented(gaussian, camera, screen, CONSTANTS: tl.constexpr):
    """Projects a Gaussian by its sigma points.

    Returns:
        The mean in pixels; the mean in the camera frame; the screen covariance; whether the camera sees the Gaussian;
        the :class:`SigmaPoints`.
    """
    mean = gaussian.mean
    axes = ()
    for k in tl.static_range(3):
        axes = axes + times(gaussian.rotation[k::3], gaussian.scale[k])
    u0, v0, seen, time = _pixel(mean, camera, screen, CONSTANTS)
    zero = u0 * 0.0
    spread = constant(CONSTANTS.UNSCENTED.spread, u0)
    delta_x, delta_y, xx, xy, yy = zero, zero, zero, zero, zero
    # A loop at run time: unrolled code would take minutes to compile.
    for i in range(6):
        offset, _ = _sigma_point(axes, i, spread)
        dx, dy, also, _ = _pixel_difference(mean, offset, (u0, v0), camera, screen, CONSTANTS)
        if CONSTANTS.UNSCENTED.all_valid:
            seen = seen & also
        else:
            seen = seen | also
        wide, _ = _over_poles(dx, camera, CONSTANTS)
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
    # covariance = weight sum d_i d_i^T + (center_weight - 2 + 6 weight) delta delta^T
    rest = constant(CONSTANTS.UNSCENTED.center_weight - 2.0 + 6.0 * CONSTANTS.UNSCENTED.weight, u0)
    covariance = (
        weight * xx + rest * delta_x * delta_x,
        weight * xy + rest * delta_x * delta_y,
        weight * yy + rest * delta_y * delta_y,
    )
    pose = _pose(camera, constant(0.5, u0) + zero)
    points = SigmaPoints(axes=axes, u0=u0, v0=v0, time=time, delta_x=delta_x, delta_y=delta_y)
    return (u0 + delta_x, v0 + delta_y), to_camera(mean, pose), covariance, seen, points


@triton.jit
def _unscented_vjp(
    mean, camera, screen, points, v_mean2d, v_depth, v_cov,
    OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr,
):  # fmt: skip
    """Returns the gradients of the mean (3 values), of the axes (9 values), of the lens and of the path.

    The first two are in the camera frame for a global shutter, otherwise in the world frame. The gradients of lens and
    path are () unless OF_LENS and OF_PATH.
    """
    axes, delta_x, delta_y = points.axes, points.delta_x, points.delta_y
    weight = constant(CONSTANTS.UNSCENTED.weight, v_depth)
    spread = constant(CONSTANTS.UNSCENTED.spread, v_depth)
    rest = constant(2.0 * (CONSTANTS.UNSCENTED.center_weight - 1.0 + 6.0 * CONSTANTS.UNSCENTED.weight), v_depth)
    v_delta_x = v_mean2d[0] + rest * (v_cov[0] * delta_x + 0.5 * v_cov[1] * delta_y)
    v_delta_y = v_mean2d[1] + rest * (0.5 * v_cov[1] * delta_x + v_cov[2] * delta_y)
    if CONSTANTS.LENS.WRAPS:
        v_delta_x, v_delta_y = v_delta_x * 0.0, v_delta_y * 0.0
    zero = v_depth * 0.0
    total = (zero,) * (3 + N_COEFFICIENTS * OF_LENS + PATH_GRADIENTS * OF_PATH)
    v_axes = (zero,) * 9
    v_u0 = v_mean2d[0] + zero
    v_v0 = v_mean2d[1] + zero
    for i in range(6):
        offset, step = _sigma_point(axes, i, spread)
        dx, dy, _, time = _pixel_difference(mean, offset, (points.u0, points.v0), camera, screen, CONSTANTS)
        wide, slope = _over_poles(dx, camera, CONSTANTS)
        dx, dy = dx - delta_x, dy - delta_y
        if CONSTANTS.LENS.WRAPS:
            v_u = weight * (2.0 * v_cov[0] * wide * slope + v_cov[1] * dy)
        else:
            v_u = weight * (2.0 * v_cov[0] * dx + v_cov[1] * dy + v_delta_x)
        v_v = weight * (v_cov[1] * dx + 2.0 * v_cov[2] * dy + v_delta_y)
        v_u0 -= v_u
        v_v0 -= v_v
        v_point = _point_vjp(add(mean, offset), time, camera, screen, v_u, v_v, OF_LENS, OF_PATH, CONSTANTS)
        total = add(total, v_point)
        added = ()
        for k in tl.static_range(9):
            added = added + (v_axes[k] + tl.where(i // 2 == k // 3, step * v_point[k % 3], 0.0),)
        v_axes = added
    total = add(total, _point_vjp(mean, points.time, camera, screen, v_u0, v_v0, OF_LENS, OF_PATH, CONSTANTS))
    along = (zero, zero, v_depth)
    v_path = ()
    half = constant(0.5, v_depth) + zero
    pose = _pose(camera, half)
    if CONSTANTS.UNSCENTED.radial:
        p = to_camera(mean, pose)
        scale = v_depth / _distance(p)
        along = (scale * p[0], scale * p[1], scale * p[2])
    if len(camera.path) > 0:
        if OF_PATH:
            v_path = pose_at_vjp(camera.path, half, matvec3(pose.rotation, mean), along)
        along = matvec3_transposed(pose.rotation, along)
    END_OF_LENS: tl.constexpr = 3 + N_COEFFICIENTS * OF_LENS
    return add(total[:3], along), v_axes, total[3:END_OF_LENS], add(total[END_OF_LENS:], v_path)


@triton.jit
def _point_vjp(
    point, time, camera, screen, v_u, v_v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr
):
    """Returns the gradients of a sigma point, and with OF_LENS and OF_PATH of lens and path, from that of its pixel."""
    path = camera.path
    LENS: tl.constexpr = CONSTANTS.LENS
    READOUT: tl.constexpr = CONSTANTS.READOUT
    pose = _pose(camera, time)
    p = to_camera(point, pose)
    if len(path) > 0 and not CONSTANTS.UNSCENTED.whole_lines:
        v_u, v_v = exposure_time_vjp(p, pose.translation, camera, screen, v_u, v_v, LENS, READOUT)
    v_p = lens_pixel_vjp(p, camera, v_u, v_v, LENS)
    gradients = v_p
    if len(path) > 0:
        gradients = matvec3_transposed(pose.rotation, v_p)
    if OF_LENS:
        gradients = gradients + coefficients_vjp(p, camera, v_u, v_v, LENS)
    if OF_PATH:
        gradients = gradients + pose_at_vjp(path, time, matvec3(pose.rotation, point), v_p)
    return gradients


@triton.jit
def _project(gaussian, camera, opacity, screen, CONSTANTS: tl.constexpr):
    mean2d, p, sharp, seen, _ = _unscented(gaussian, camera, screen, CONSTANTS)
    ellipse = visible_ellipse(sharp, blur(sharp, screen.eps2d), opacity, CONSTANTS)
    depth, z = _depths(p, CONSTANTS)
    radii = ellipse.radii
    if CONSTANTS.LENS.WRAPS:
        radii = _radii_on_sphere(radii, mean2d[1], depth, gaussian.scale, camera.intrinsics, CONSTANTS)
    return Projection(
        seen=seen & ellipse.seen, depth=depth, z=z, mean2d=mean2d, radii=radii, shape=ellipse.conic, normal=(),
        compensation=ellipse.compensation, opacity=ellipse.opacity,
    )  # fmt: skip


@triton.jit
def _vjp(gaussian, camera, opacity, screen, v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr):
    v_mean2d, v_depth = v.v_mean2d, v.v_depth
    _, _, sharp, _, points = _unscented(gaussian, camera, screen, CONSTANTS)
    v_cov, v_opacity = visible_ellipse_vjp(
        sharp, blur(sharp, screen.eps2d), opacity, v.v_shape, v.v_opacity, v.v_compensation, CONSTANTS
    )
    zero = tl.zeros_like(sharp[0])
    if v_mean2d is None:
        v_mean2d = (zero, zero)
    if v_depth is None:
        v_depth = sharp[0] * 0.0  # not a constant, so that contraction is the same as with a given v_depth
    v_mean, v_axes, v_lens, v_path = _unscented_vjp(
        gaussian.mean, camera, screen, points, v_mean2d, v_depth, v_cov, OF_LENS, OF_PATH, CONSTANTS
    )
    v_gaussian = v_mean + v_axes
    v_world = ()
    for k in tl.static_range(4):
        v_vector = v_gaussian[3 * k : 3 * k + 3]
        if len(camera.path) == 0:
            v_vector = matvec3_transposed(camera.pose.rotation, v_vector)
        v_world = v_world + v_vector
    saved = (v_gaussian, points.axes)
    return InputGradients(v_gaussian=v_world, v_opacity=v_opacity, v_lens=v_lens, v_path=v_path, saved=saved)


@triton.jit
def _pose_gradient(gaussian, saved, ROW: tl.constexpr, COLUMN: tl.constexpr, CONSTANTS: tl.constexpr):
    """Returns entry (ROW, COLUMN) of the gradient of [W | t]: v_mean (mean, 1)^T + [sum of v_axis axis^T | 0]."""
    v, axes = saved
    v_w = v[ROW]
    if COLUMN < 3:
        v_w = v[ROW] * gaussian.mean[COLUMN]
        for k in tl.static_range(3):
            v_w += v[3 + 3 * k + ROW] * axes[3 * k + COLUMN]
    return v_w


@triton.jit
def _finish(gaussians, i, mask, gaussian, sums):
    """Returns the gradients of quaternion and scales from the gradients of the axes s_k R[:, k]."""
    r, scale = gaussian.rotation, gaussian.scale
    v_rotation = ()
    for row in tl.static_range(3):
        for k in tl.static_range(3):
            v_rotation = v_rotation + (sums[3 + 3 * k + row] * scale[k],)
    v_scale = ()
    for k in tl.static_range(3):
        v_scale = v_scale + (dot(r[k::3], sums[3 + 3 * k : 6 + 3 * k]),)
    return quaternion_vjp(gaussian.unit, gaussian.inverse_norm, v_rotation), v_scale, ()


UNSCENTED = Projector(
    SHAPE=3,
    GRADIENTS=12,
    load=load_rotated,
    project=_project,
    vjp=_vjp,
    pose_gradient=_pose_gradient,
    finish=_finish,
)
