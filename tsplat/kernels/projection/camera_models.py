"""Device functions of the camera models: the pixel of a point, the Jacobian there and the screen covariance, and their
gradients.

- Pinhole: perspective projection. In the Jacobian, x/z and y/z are clamped to the image plus a margin.
- Ortho: orthographic projection, u = fx x + cx.
- Fisheye: equidistant projection, u = fx x theta / r + cx, with r = |(x, y)| and the angle theta from the optical axis
  (Kannala and Brandt, "A Generic Camera Model", 2006, equation 2 without distortion).

Fisheye, with d = p / |p|, c = cos(theta) = d_z, s = sin(theta) and d' = (-d_y, d_x):

    K = theta / s,  M = (c - K) / s^2,  N = -(2 c + 3 M) / s^2
    u = fx K d_x + cx,  J = f / |p| [c I - M d' d'^T | -(d_x, d_y)],  and N is needed for the gradient of M

These quotients are smooth at the axis, but cancel there. In front of the camera, N is a polynomial in c, and
M = -(2 c + s^2 N) / 3 and K = c - s^2 M are sums of terms of one sign, where s^2 = (1 - c) (1 + c): K depends less on
the rounding of 1 / |p| if it is computed from c alone. Behind the camera, K, M and N follow from those of the mirrored
point, as theta = pi - theta'. So no angle loses precision, and there is no branch.

A camera model is a value of ``CAMERA``, with a case in each function below that takes it. The rows of a Jacobian are
tuples of the entries that are not always zero: with ``AXIS`` 0 for the row of u and 1 for that of v, pinhole has the
entries AXIS and 2, ortho has AXIS, and fisheye has all three.

The screen covariance is that of EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001, equations 24 to 31),
whatever the camera model. Tuples are laid out as in ``device_math.py``.
"""

import math

import triton
import triton.language as tl

from ...config import FISHEYE_SERIES
from ..device_math import constant, dot, symmetric_matvec3, times

HIGHEST = tl.constexpr(FISHEYE_SERIES[-1])
LOWER = tl.constexpr(FISHEYE_SERIES[-2::-1])
N_LOWER = tl.constexpr(len(FISHEYE_SERIES) - 1)
PI = tl.constexpr(math.pi)


@triton.jit
def clamped_slope(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """p / z clamped to the image plus a margin, and whether it was inside (bounds included)."""
    margin = extent / focal * (0.5 * FOV_MARGIN)
    low = -(center / focal + margin)
    high = (extent - center) / focal + margin
    slope = p / z
    return tl.minimum(tl.maximum(slope, low), high), (slope >= low) & (slope <= high)


@triton.jit
def pinhole_row(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """Row of the perspective Jacobian for one image axis: d pixel / d p and d pixel / d z."""
    slope, inside = clamped_slope(p, z, focal, center, extent, FOV_MARGIN)
    return focal / z, -focal * slope / z, inside


@triton.jit
def pinhole_row_vjp(p, z, focal, j_p, j_z, inside, v_p, v_z):
    """Gradients of p and z from those of the row of the Jacobian."""
    v_slope = -v_z * focal / z
    grad_z = -(v_p * j_p + v_z * j_z) / z - tl.where(inside, v_slope * p / (z * z), 0.0)
    return tl.where(inside, v_slope / z, 0.0), grad_z


@triton.jit
def fisheye_direction(p):
    """p / |p|, 1 / |p|, and K, M, N."""
    inverse_norm = 1.0 / tl.sqrt(dot(p, p))
    d = times(p, inverse_norm)
    square = d[0] * d[0] + d[1] * d[1]
    c = tl.abs(d[2])
    x = 1.0 - 2.0 * c
    n = constant(HIGHEST, x)
    for i in tl.static_range(N_LOWER):
        n = n * x + LOWER[i]
    squared_sine = (1.0 - c) * (1.0 + c)
    m = (2.0 * c + squared_sine * n) * (-1.0 / 3.0)
    k = c - squared_sine * m
    behind = p[2] < 0.0
    # On the axis behind the camera, K is infinite.
    inverse = 1.0 / tl.sqrt(tl.where(behind, square, 1.0))
    turn = PI * inverse
    around = inverse * inverse
    k = tl.where(behind, turn - k, k)
    m = tl.where(behind, -turn * around - m, m)
    n = tl.where(behind, 3.0 * turn * around * around - n, n)
    return d, inverse_norm, k, m, n


@triton.jit
def fisheye_rows(d, m):
    """|p| J for focal lengths of 1: entries 00, 01 and 11. The third column is -(d_x, d_y)."""
    return d[2] - m * d[1] * d[1], m * d[0] * d[1], d[2] - m * d[0] * d[0]


@triton.jit
def fisheye_vjp(d, inverse_norm, m, n, v_u, v_0, v_1):
    """Gradient of p from those of the pixel and of |p| J, all times the focal lengths."""
    j00, j01, j11 = fisheye_rows(d, m)
    trace = 2.0 * (v_0[0] + v_1[1])
    mixed = v_0[1] + v_1[0]
    column = v_0[2] * d[0] + v_1[2] * d[1]
    bent = v_0[0] * d[1] * d[1] - mixed * d[0] * d[1] + v_1[1] * d[0] * d[0]
    along = 2.0 * column - trace * d[2] - bent * n
    return (
        inverse_norm * (v_u[0] * j00 + v_u[1] * j01 + along * d[0] - m * (2.0 * v_1[1] * d[0] - mixed * d[1]) - v_0[2]),
        inverse_norm * (v_u[0] * j01 + v_u[1] * j11 + along * d[1] - m * (2.0 * v_0[0] * d[1] - mixed * d[0]) - v_1[2]),
        inverse_norm
        * (
            (0.5 * trace) * (d[0] * d[0] + d[1] * d[1] - d[2] * d[2])
            - (v_u[0] * d[0] + v_u[1] * d[1])
            - 2.0 * bent
            + 2.0 * column * d[2]
        ),
    )


@triton.jit
def project_point(p, intrinsics, width, height, CAMERA: tl.constexpr, FOV_MARGIN: tl.constexpr):
    """Projects a point of the camera frame.

    Returns:
        Pixel; the two rows of the Jacobian; what ``project_point_vjp`` needs.
    """
    fx, fy, cx, cy = intrinsics
    if CAMERA == "pinhole":
        j0, j02, inside_x = pinhole_row(p[0], p[2], fx, cx, width, FOV_MARGIN)
        j1, j12, inside_y = pinhole_row(p[1], p[2], fy, cy, height, FOV_MARGIN)
        pixel = (fx * p[0] / p[2] + cx, fy * p[1] / p[2] + cy)
        return pixel, (j0, j02), (j1, j12), (inside_x, inside_y)
    elif CAMERA == "ortho":
        zero = p[0] * 0.0
        return (fx * p[0] + cx, fy * p[1] + cy), (fx + zero,), (fy + zero,), (zero,)
    else:
        tl.static_assert(CAMERA == "fisheye")
        d, inverse_norm, k, m, n = fisheye_direction(p)
        j00, j01, j11 = fisheye_rows(d, m)
        sx = fx * inverse_norm
        sy = fy * inverse_norm
        pixel = (fx * (k * d[0]) + cx, fy * (k * d[1]) + cy)
        return pixel, (sx * j00, sx * j01, -sx * d[0]), (sy * j01, sy * j11, -sy * d[1]), (d, inverse_norm, m, n)


@triton.jit
def project_point_vjp(p, intrinsics, row0, row1, saved, v_pixel, v_row0, v_row1, CAMERA: tl.constexpr):
    """Gradient of the point from those of its pixel and of the rows of the Jacobian."""
    fx, fy = intrinsics[0], intrinsics[1]
    if CAMERA == "pinhole":
        v_x, v_zx = pinhole_row_vjp(p[0], p[2], fx, row0[0], row0[1], saved[0], v_row0[0], v_row0[2])
        v_y, v_zy = pinhole_row_vjp(p[1], p[2], fy, row1[0], row1[1], saved[1], v_row1[1], v_row1[2])
        return (
            v_x + fx * v_pixel[0] / p[2],
            v_y + fy * v_pixel[1] / p[2],
            v_zx + v_zy - (fx * p[0] * v_pixel[0] + fy * p[1] * v_pixel[1]) / (p[2] * p[2]),
        )
    elif CAMERA == "ortho":
        return fx * v_pixel[0], fy * v_pixel[1], p[2] * 0.0
    else:
        tl.static_assert(CAMERA == "fisheye")
        d, inverse_norm, m, n = saved
        sx = fx * inverse_norm
        sy = fy * inverse_norm
        v_0 = (sx * v_row0[0], sx * v_row0[1], sx * v_row0[2])
        v_1 = (sy * v_row1[0], sy * v_row1[1], sy * v_row1[2])
        return fisheye_vjp(d, inverse_norm, m, n, (fx * v_pixel[0], fy * v_pixel[1]), v_0, v_1)


@triton.jit
def row_times(row, w, K: tl.constexpr, AXIS: tl.constexpr, CAMERA: tl.constexpr):
    """Entry K of the row of a Jacobian times the world-to-camera rotation W."""
    if CAMERA == "pinhole":
        return row[0] * w[3 * AXIS + K] + row[1] * w[6 + K]
    elif CAMERA == "ortho":
        return row[0] * w[3 * AXIS + K]
    else:
        tl.static_assert(CAMERA == "fisheye")
        return row[0] * w[K] + row[1] * w[3 + K] + row[2] * w[6 + K]


@triton.jit
def row_times_vjp(w, v):
    """Gradient of the row, all three entries, from that of row W."""
    return dot(v, w[:3]), dot(v, w[3:6]), dot(v, w[6:])


@triton.jit
def add_entry_times(total, row, K: tl.constexpr, v, AXIS: tl.constexpr, CAMERA: tl.constexpr):
    """total + entry K of the row of a Jacobian times v."""
    if CAMERA == "fisheye":
        return total + row[K] * v
    elif K == AXIS:
        return total + row[0] * v
    elif CAMERA == "pinhole" and K == 2:
        return total + row[1] * v
    else:
        return total


@triton.jit
def screen_covariance(t0, t1, s):
    """T S T^T, upper triangle, for the rows t0 and t1 of T = J W."""
    s0 = symmetric_matvec3(s, t0)
    s1 = symmetric_matvec3(s, t1)
    return dot(t0, s0), dot(t0, s1), dot(t1, s1)


@triton.jit
def screen_covariance_vjp(t0, t1, s, v):
    """Gradients of t0, t1 and s. With G the symmetric 2×2 gradient: v_T = 2 G T S, v_S = T^T G T."""
    s0 = symmetric_matvec3(s, t0)
    s1 = symmetric_matvec3(s, t1)
    v_t0 = (
        2.0 * v[0] * s0[0] + v[1] * s1[0],
        2.0 * v[0] * s0[1] + v[1] * s1[1],
        2.0 * v[0] * s0[2] + v[1] * s1[2],
    )
    v_t1 = (
        v[1] * s0[0] + 2.0 * v[2] * s1[0],
        v[1] * s0[1] + 2.0 * v[2] * s1[1],
        v[1] * s0[2] + 2.0 * v[2] * s1[2],
    )
    v_s = (
        v[0] * t0[0] * t0[0] + v[1] * t0[0] * t1[0] + v[2] * t1[0] * t1[0],
        2.0 * (v[0] * t0[0] * t0[1] + v[2] * t1[0] * t1[1]) + v[1] * (t0[0] * t1[1] + t0[1] * t1[0]),
        2.0 * (v[0] * t0[0] * t0[2] + v[2] * t1[0] * t1[2]) + v[1] * (t0[0] * t1[2] + t0[2] * t1[0]),
        v[0] * t0[1] * t0[1] + v[1] * t0[1] * t1[1] + v[2] * t1[1] * t1[1],
        2.0 * (v[0] * t0[1] * t0[2] + v[2] * t1[1] * t1[2]) + v[1] * (t0[1] * t1[2] + t0[2] * t1[1]),
        v[0] * t0[2] * t0[2] + v[1] * t0[2] * t1[2] + v[2] * t1[2] * t1[2],
    )
    return v_t0, v_t1, v_s
