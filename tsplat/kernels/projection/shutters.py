"""Device functions of rolling shutters: the pose of a camera at a time, and the time at which it exposes a point.

A rolling shutter exposes one row or column at a time. The pose is interpolated along a ``path``, see :class:`Path`.
Tuples are laid out as in ``device_math.py``.
"""

import triton
import triton.language as tl

from ...config import SHUTTER_STEPS
from ..device_math import add, dot, matvec3, normalize4, rotation
from .lens_pixels import lens_pixel, lens_pixel_vjp
from .lenses.angles import sine
from .loaded_cameras import Pose

STEPS = tl.constexpr(SHUTTER_STEPS)


@triton.jit
def to_camera(point, pose):
    """Transforms a point from the world to the camera frame."""
    return add(matvec3(pose.rotation, point), pose.translation)


@triton.jit
def _weighted_sum(values, others, before, after):
    """Returns before * values + after * others, entry by entry."""
    total = ()
    for k in tl.static_range(len(values)):
        total = total + (before * values[k] + after * others[k],)
    return total


@triton.jit
def pose_at(path, time):
    """Returns the pose at a time from 0 (start) to 1 (end): slerp of the quaternions, and lerp of the translations.

    Slerp: q(s) = (sin((1 - s) a) q0 + sin(s a) q1) / sin(a), normalized.
    """
    rotates = path.inverse_sine > 0.0
    before = tl.where(rotates, sine((1.0 - time) * path.angle) * path.inverse_sine, 1.0 - time)
    after = tl.where(rotates, sine(time * path.angle) * path.inverse_sine, time)
    unit, _ = normalize4(_weighted_sum(path.q0, path.q1, before, after))
    translation = _weighted_sum(path.t0, path.t1, 1.0 - time, time)
    return Pose(rotation=rotation(unit), translation=translation)


@triton.jit
def pose_at_vjp(path, time, rotated, v_p):
    """Returns the gradient of a path from the gradient v_p of a point in the camera frame at a time.

    The 15 values are the gradients of q0, q1, t0, t1 and the angle a. ``rotated`` is R(time) times the world point. A
    small rotation w of the camera moves the point by w x ``rotated``, and the quaternion u by (0, w) u / 2. The
    derivative of the interpolated quaternion by a has the direction of q1 cos(t a) - q0 cos((1 - t) a). The inverse
    sine has no gradient: it scales u before it is normalized.
    """
    q0, q1 = path.q0, path.q1
    rotates = path.inverse_sine > 0.0
    angle_before = (1.0 - time) * path.angle
    angle_after = time * path.angle
    sine_before = sine(angle_before)
    sine_after = sine(angle_after)
    before = tl.where(rotates, sine_before * path.inverse_sine, 1.0 - time)
    after = tl.where(rotates, sine_after * path.inverse_sine, time)
    u, inverse_norm = normalize4(_weighted_sum(q0, q1, before, after))
    scale = 2.0 * inverse_norm
    x = scale * (rotated[1] * v_p[2] - rotated[2] * v_p[1])
    y = scale * (rotated[2] * v_p[0] - rotated[0] * v_p[2])
    z = scale * (rotated[0] * v_p[1] - rotated[1] * v_p[0])
    g = (
        -(x * u[1] + y * u[2] + z * u[3]),
        x * u[0] + y * u[3] - z * u[2],
        y * u[0] + z * u[1] - x * u[3],
        z * u[0] + x * u[2] - y * u[1],
    )
    half_before = sine(0.5 * angle_before)
    half_after = sine(0.5 * angle_after)
    cosine_before = 1.0 - 2.0 * half_before * half_before
    cosine_after = 1.0 - 2.0 * half_after * half_after
    along = time * cosine_after * sine_before - (1.0 - time) * cosine_before * sine_after
    v_angle = time * 0.0
    for k in tl.static_range(4):
        v_angle += g[k] * (q1[k] * cosine_after - q0[k] * cosine_before)
    return (
        before * g[0], before * g[1], before * g[2], before * g[3],
        after * g[0], after * g[1], after * g[2], after * g[3],
        (1.0 - time) * v_p[0], (1.0 - time) * v_p[1], (1.0 - time) * v_p[2],
        time * v_p[0], time * v_p[1], time * v_p[2],
        v_angle * along * path.inverse_sine * path.inverse_sine,
    )  # fmt: skip


@triton.jit
def _readout(screen, like, READOUT: tl.constexpr):
    """Returns the time at pixel (0, 0), and its derivatives by u and v.

    The times of the first and the last row or column that is read, at its center, are 0 and 1.
    """
    zero = like * 0.0
    rows = 1.0 / (zero + tl.maximum(screen.height - 1, 1))
    columns = 1.0 / (zero + tl.maximum(screen.width - 1, 1))
    if READOUT == "ROLLING_TOP_TO_BOTTOM":
        return -0.5 * rows, zero, rows
    elif READOUT == "ROLLING_BOTTOM_TO_TOP":
        return (screen.height - 0.5) * rows, zero, -rows
    elif READOUT == "ROLLING_LEFT_TO_RIGHT":
        return -0.5 * columns, columns, zero
    else:
        tl.static_assert(READOUT == "ROLLING_RIGHT_TO_LEFT")
        return (screen.width - 0.5) * columns, -columns, zero


@triton.jit
def exposed_pixel(point, camera, screen, LENS: tl.constexpr, READOUT: tl.constexpr, TRANSFORM: tl.constexpr):
    """Returns the pixel (u, v) of a world point when the shutter exposes it, whether it is seen, and the time.

    The time s solves s = time(pixel(R(s) point + t(s))), by fixed-point iteration. TRANSFORM is an ``Unscented``. With
    ``whole_lines``, the time is that of the center of the pixel row or column; a border belongs to the one that is read
    later. Points that are seen neither at the start nor at the end are exposed at the end.
    """
    MARGIN: tl.constexpr = TRANSFORM.margin
    path = camera.path
    first, per_column, per_row = _readout(screen, point[0], READOUT)
    time = point[0] * 0.0
    u, v, at_start = lens_pixel(to_camera(point, pose_at(path, time)), camera, screen, LENS, MARGIN)
    end_u, end_v, at_end = lens_pixel(to_camera(point, pose_at(path, time + 1.0)), camera, screen, LENS, MARGIN)
    u = tl.where(at_start, u, end_u)
    v = tl.where(at_start, v, end_v)
    seen = at_start
    for _ in range(STEPS):
        if TRANSFORM.whole_lines:
            sign = tl.where(per_column + per_row > 0.0, 1.0, -1.0)
            u = sign * (tl.floor(sign * u) + 0.5)
            v = sign * (tl.floor(sign * v) + 0.5)
        time = first + per_column * u + per_row * v
        if TRANSFORM.whole_lines:
            time = tl.where(at_start | at_end, time, 1.0)
        u, v, seen = lens_pixel(to_camera(point, pose_at(path, time)), camera, screen, LENS, MARGIN)
    return u, v, seen & (at_start | at_end), time


@triton.jit
def exposure_time_vjp(p, translation, camera, screen, v_u, v_v, LENS: tl.constexpr, READOUT: tl.constexpr):
    """Adds the gradient through the exposure time to the gradient v of a pixel. The time then counts as a constant.

    The pixel q satisfies q = f(p(s(q))), with the time s. With J = df / dp, the velocity w = J dp / ds of the pixel and
    d = ds / dq: dq = J dp + w (d J dp) / (1 - d w). So v becomes v + d (v w) / (1 - d w).
    """
    _, per_column, per_row = _readout(screen, v_u, READOUT)
    velocity = _velocity(p, translation, camera.path)
    # d w and v w are products of gradients of p, d J and v J, with dp / ds.
    along = dot(lens_pixel_vjp(p, camera, per_column, per_row, LENS), velocity)
    v_time = dot(lens_pixel_vjp(p, camera, v_u, v_v, LENS), velocity) / (1.0 - along)
    return v_u + per_column * v_time, v_v + per_row * v_time


@triton.jit
def _velocity(p, translation, path):
    """Returns the velocity dp / ds of a point of the camera frame: w x (p - t) + t1 - t0, w the angular velocity."""
    q0, q1, t0, t1 = path.q0, path.q1, path.t0, path.t1
    rate = 2.0 * tl.where(path.inverse_sine > 0.0, path.angle * path.inverse_sine, 1.0)
    # The angular velocity: 2 a / sin(a) times the imaginary part of q1 conj(q0).
    x = rate * (q0[0] * q1[1] - q1[0] * q0[1] - q1[2] * q0[3] + q1[3] * q0[2])
    y = rate * (q0[0] * q1[2] - q1[0] * q0[2] - q1[3] * q0[1] + q1[1] * q0[3])
    z = rate * (q0[0] * q1[3] - q1[0] * q0[3] - q1[1] * q0[2] + q1[2] * q0[1])
    r = (p[0] - translation[0], p[1] - translation[1], p[2] - translation[2])
    return (
        y * r[2] - z * r[1] + t1[0] - t0[0],
        z * r[0] - x * r[2] + t1[1] - t0[1],
        x * r[1] - y * r[0] + t1[2] - t0[2],
    )
