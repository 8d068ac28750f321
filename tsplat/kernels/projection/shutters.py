"""Device functions of rolling shutters: the pose of a camera at a time, and when it exposes a point.

A rolling shutter exposes a row or column at a time, and the pose is interpolated; ``path`` is ``Cameras.shutter``, see
``kernels_torch/shutters.py``. Tuples are laid out as in ``device_math.py``.
"""

import triton
import triton.language as tl

from ...config import SHUTTER_STEPS
from ..device_math import add, dot, load_tuple, matvec3, normalize4, rotation
from .lens_pixels import lens_pixel, lens_pixel_vjp
from .windshield import sine

STEPS = tl.constexpr(SHUTTER_STEPS)


@triton.jit
def load_path(shutter, image):
    """Loads the path of the camera of an image; () if it has none."""
    path = ()
    if shutter is not None:
        path = load_tuple(shutter + image * 20, 1, 16)
    return path


@triton.jit
def to_camera(point, pose):
    w, t = pose
    return add(matvec3(w, point), t)


@triton.jit
def _weighted_sum(values, others, before, after):
    """Returns ``before`` times the entries of a tuple plus ``after`` times those of another."""
    total = ()
    for k in tl.static_range(len(values)):
        total = total + (before * values[k] + after * others[k],)
    return total


@triton.jit
def pose_at(path, time):
    """Returns rotation (nine entries) and translation at a time; quaternions are interpolated along the sphere."""
    rotates = path[15] > 0.0
    before = tl.where(rotates, sine((1.0 - time) * path[14]) * path[15], 1.0 - time)
    after = tl.where(rotates, sine(time * path[14]) * path[15], time)
    unit, _ = normalize4(_weighted_sum(path[:4], path[4:8], before, after))
    translation = _weighted_sum(path[8:11], path[11:14], 1.0 - time, time)
    return rotation(unit), translation


@triton.jit
def pose_at_vjp(path, time, rotated, v_p):
    """Gradient of the first 15 values of a path from that of a point in the frame of the camera at a time.

    A rotation w of the camera moves the point by w x ``rotated``, and the quaternion u by (0, w) u / 2. Between
    quaternions at an angle a, the derivative with respect to a has the direction of q1 cos(t a) - q0 cos((1 - t) a).
    There is no gradient of the inverse of its sine, which only scales u before it is normalized.
    """
    rotates = path[15] > 0.0
    angle_before = (1.0 - time) * path[14]
    angle_after = time * path[14]
    sine_before = sine(angle_before)
    sine_after = sine(angle_after)
    before = tl.where(rotates, sine_before * path[15], 1.0 - time)
    after = tl.where(rotates, sine_after * path[15], time)
    u, inverse_norm = normalize4(_weighted_sum(path[:4], path[4:8], before, after))
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
        v_angle += g[k] * (path[4 + k] * cosine_after - path[k] * cosine_before)
    return (
        before * g[0], before * g[1], before * g[2], before * g[3],
        after * g[0], after * g[1], after * g[2], after * g[3],
        (1.0 - time) * v_p[0], (1.0 - time) * v_p[1], (1.0 - time) * v_p[2],
        time * v_p[0], time * v_p[1], time * v_p[2],
        v_angle * along * path[15] * path[15],
    )  # fmt: skip


@triton.jit
def _readout(width, height, like, READOUT: tl.constexpr):
    """The time at pixel 0, 0, and its growth with u and v; 0 and 1 are the centers of the first and last line read."""
    zero = like * 0.0
    rows = 1.0 / (zero + tl.maximum(height - 1, 1))
    columns = 1.0 / (zero + tl.maximum(width - 1, 1))
    if READOUT == "ROLLING_TOP_TO_BOTTOM":
        return -0.5 * rows, zero, rows
    elif READOUT == "ROLLING_BOTTOM_TO_TOP":
        return (height - 0.5) * rows, zero, -rows
    elif READOUT == "ROLLING_LEFT_TO_RIGHT":
        return -0.5 * columns, columns, zero
    else:
        tl.static_assert(READOUT == "ROLLING_RIGHT_TO_LEFT")
        return (width - 0.5) * columns, -columns, zero


@triton.jit
def exposed_pixel(
    point, path, lens, intrinsics, width, height, LENS: tl.constexpr, READOUT: tl.constexpr, MARGIN: tl.constexpr
):  # fmt: skip
    """Returns the pixel of a point of the world when the shutter exposes it, whether it is seen, and that time."""
    first, per_column, per_row = _readout(width, height, point[0], READOUT)
    time = point[0] * 0.0
    u, v, at_start = lens_pixel(
        to_camera(point, pose_at(path, time)), lens, intrinsics, width, height, LENS, MARGIN
    )  # fmt: skip
    end_u, end_v, at_end = lens_pixel(
        to_camera(point, pose_at(path, time + 1.0)), lens, intrinsics, width, height, LENS, MARGIN
    )  # fmt: skip
    u = tl.where(at_start, u, end_u)
    v = tl.where(at_start, v, end_v)
    seen = at_start
    for _ in range(STEPS):
        time = first + per_column * u + per_row * v
        u, v, seen = lens_pixel(
            to_camera(point, pose_at(path, time)), lens, intrinsics, width, height, LENS, MARGIN
        )  # fmt: skip
    return u, v, seen & (at_start | at_end), time


@triton.jit
def exposure_time_vjp(
    p, translation, path, lens, intrinsics, width, height, v_u, v_v, LENS: tl.constexpr, READOUT: tl.constexpr
):  # fmt: skip
    """Adds to the gradient of a pixel (u, v) what it has through the time of the exposure, so that this can be fixed.

    The time s depends on the pixel, q = f(p(s(q))). With J = df / dp, the velocity w = J dp / ds of the pixel and the
    gradient d of s: dq = J dp + w (d J dp) / (1 - d w). So v acts like v + d (v w) / (1 - d w).
    """
    _, per_column, per_row = _readout(width, height, v_u, READOUT)
    velocity = _velocity(p, translation, path)
    # The products with w = J dp / ds are those of gradients of p with dp / ds.
    along = dot(lens_pixel_vjp(p, lens, intrinsics, per_column, per_row, LENS), velocity)
    v_time = dot(lens_pixel_vjp(p, lens, intrinsics, v_u, v_v, LENS), velocity) / (1.0 - along)
    return v_u + per_column * v_time, v_v + per_row * v_time


@triton.jit
def _velocity(p, translation, path):
    """Motion of a point of the camera frame per unit of time, as the camera rotates and moves at constant rates."""
    rate = 2.0 * tl.where(path[15] > 0.0, path[14] * path[15], 1.0)
    # The imaginary part of q1 times the conjugate of q0.
    x = rate * (path[0] * path[5] - path[4] * path[1] - path[6] * path[3] + path[7] * path[2])
    y = rate * (path[0] * path[6] - path[4] * path[2] - path[7] * path[1] + path[5] * path[3])
    z = rate * (path[0] * path[7] - path[4] * path[3] - path[5] * path[2] + path[6] * path[1])
    r = (p[0] - translation[0], p[1] - translation[1], p[2] - translation[2])
    return (
        y * r[2] - z * r[1] + path[11] - path[8],
        z * r[0] - x * r[2] + path[12] - path[9],
        x * r[1] - y * r[0] + path[13] - path[10],
    )
