"""Equidistant projection, u = fx x theta / r + cx, with r = |(x, y)| and the angle theta from the optical axis.

(Kannala and Brandt, "A Generic Camera Model", 2006, equation 2.) With distortion, theta is replaced by
theta (1 + k1 theta^2 + k2 theta^4 + k3 theta^6 + k4 theta^8). The fifth value of the lens is the largest angle.

With d = p / |p|, c = cos(theta) = d_z, s = sin(theta) and d' = (-d_y, d_x):

    K = theta / s,  M = (c - K) / s^2,  N = -(2 c + 3 M) / s^2
    u = fx K d_x + cx,  J = f / |p| [c I - M d' d'^T | -(d_x, d_y)],  and the gradient of M requires N

These quotients are smooth at the optical axis, but their numerators cancel there. In front of the camera, N is instead
a polynomial in c, and M = -(2 c + s^2 N) / 3 and K = c - s^2 M are sums of terms of the same sign. s^2 = (1 - c)
(1 + c) is computed from c alone, which makes K less sensitive to the rounding of 1 / |p|. Behind the camera, K, M and N
are computed from those of the mirrored point, as theta = pi - theta'. This is precise at all angles, without a branch.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from ....config import FISHEYE_SERIES
from ...device_math import constant, dot, times
from .interface import Lens

HIGHEST = tl.constexpr(FISHEYE_SERIES[-1])
LOWER = tl.constexpr(FISHEYE_SERIES[-2::-1])
N_LOWER = tl.constexpr(len(FISHEYE_SERIES) - 1)
PI = tl.constexpr(math.pi)


class FisheyeDirection(NamedTuple):
    """The direction of a point: d = p / |p|, 1 / |p|, and the quotients K, M and N of the equations above."""

    unit: Any
    inverse_norm: Any
    k: Any
    m: Any
    n: Any


class RadialDistortion(NamedTuple):
    """The distortion of a point: (x, y) theta / r, its gain, and the derivative of the gain by theta^2."""

    x: Any
    y: Any
    gain: Any
    slope: Any


@triton.jit
def fisheye_direction(p):
    """Returns the :class:`FisheyeDirection` of a point."""
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
    # K is infinite on the optical axis behind the camera.
    inverse = 1.0 / tl.sqrt(tl.where(behind, square, 1.0))
    pi_over_sine = PI * inverse
    inverse_square = inverse * inverse
    k = tl.where(behind, pi_over_sine - k, k)
    m = tl.where(behind, -pi_over_sine * inverse_square - m, m)
    n = tl.where(behind, 3.0 * pi_over_sine * inverse_square * inverse_square - n, n)
    return FisheyeDirection(unit=d, inverse_norm=inverse_norm, k=k, m=m, n=n)


@triton.jit
def _scaled_jacobian(d, m):
    """Returns entries 00, 01 and 11 of |p| J for a focal length of 1. The third column is -(d_x, d_y)."""
    return d[2] - m * d[1] * d[1], m * d[0] * d[1], d[2] - m * d[0] * d[0]


@triton.jit
def _scaled_jacobian_vjp(direction, v_u, v_0, v_1):
    """Returns the gradient of p from the gradients of the pixel and of |p| J, both times the focal lengths.

    With the gradient V of the first two columns and d' as above, ``across`` is d'^T V d' = -dL/dM.
    """
    d, inverse_norm, m = direction.unit, direction.inverse_norm, direction.m
    j00, j01, j11 = _scaled_jacobian(d, m)
    trace = 2.0 * (v_0[0] + v_1[1])
    mixed = v_0[1] + v_1[0]
    column = v_0[2] * d[0] + v_1[2] * d[1]
    across = v_0[0] * d[1] * d[1] - mixed * d[0] * d[1] + v_1[1] * d[0] * d[0]
    along = 2.0 * column - trace * d[2] - across * direction.n
    return (
        inverse_norm * (v_u[0] * j00 + v_u[1] * j01 + along * d[0] - m * (2.0 * v_1[1] * d[0] - mixed * d[1]) - v_0[2]),
        inverse_norm * (v_u[0] * j01 + v_u[1] * j11 + along * d[1] - m * (2.0 * v_0[0] * d[1] - mixed * d[0]) - v_1[2]),
        inverse_norm
        * (
            (0.5 * trace) * (d[0] * d[0] + d[1] * d[1] - d[2] * d[2])
            - (v_u[0] * d[0] + v_u[1] * d[1])
            - 2.0 * across
            + 2.0 * column * d[2]
        ),
    )


@triton.jit
def _project_with_jacobian(p, intrinsics, width, height, FOV_MARGIN: tl.constexpr):
    fx, fy, cx, cy = intrinsics
    direction = fisheye_direction(p)
    d, k = direction.unit, direction.k
    j00, j01, j11 = _scaled_jacobian(d, direction.m)
    sx = fx * direction.inverse_norm
    sy = fy * direction.inverse_norm
    pixel = (fx * (k * d[0]) + cx, fy * (k * d[1]) + cy)
    return pixel, (sx * j00, sx * j01, -sx * d[0]), (sy * j01, sy * j11, -sy * d[1]), direction


@triton.jit
def _project_with_jacobian_vjp(p, intrinsics, row0, row1, saved, v_pixel, v_row0, v_row1):
    fx, fy = intrinsics.fx, intrinsics.fy
    sx = fx * saved.inverse_norm
    sy = fy * saved.inverse_norm
    v_0 = (sx * v_row0[0], sx * v_row0[1], sx * v_row0[2])
    v_1 = (sy * v_row1[0], sy * v_row1[1], sy * v_row1[2])
    return _scaled_jacobian_vjp(saved, (fx * v_pixel[0], fy * v_pixel[1]), v_0, v_1)


@triton.jit
def _row_times(row, w, K: tl.constexpr, AXIS: tl.constexpr):
    """Returns entry K of a row with three entries times the rotation W."""
    return row[0] * w[K] + row[1] * w[3 + K] + row[2] * w[6 + K]


@triton.jit
def _add_entry_times(total, row, K: tl.constexpr, v, AXIS: tl.constexpr):
    return total + row[K] * v


@triton.jit
def _project(p, k):
    direction = fisheye_direction(p)
    q0 = direction.k * direction.unit[0]
    q1 = direction.k * direction.unit[1]
    if len(k) == 0:
        return q0, q1, p[2] > 0.0, (direction, ())
    else:
        k1, k2, k3, k4, theta_max = k[:5]
        square = q0 * q0 + q1 * q1  # theta^2
        gain = 1.0 + square * (k1 + square * (k2 + square * (k3 + square * k4)))
        slope = k1 + square * (2.0 * k2 + square * (3.0 * k3 + square * 4.0 * k4))
        seen = (p[2] > 0.0) & (square <= theta_max * theta_max)
        distortion = RadialDistortion(x=q0, y=q1, gain=gain, slope=slope)
        return gain * q0, gain * q1, seen, (direction, distortion)


@triton.jit
def radial_project_vjp(p, k, saved, v_x, v_y):
    """Returns the gradient of a point for any lens that projects it to gain * (x, y) theta / r.

    ``saved`` holds the :class:`FisheyeDirection` of the point, and its :class:`RadialDistortion` or ().
    """
    direction, distortion = saved
    d, inverse_norm = direction.unit, direction.inverse_norm
    if len(distortion) > 0:
        q0, q1, gain, slope = distortion.x, distortion.y, distortion.gain, distortion.slope
        along = 2.0 * slope * (q0 * v_x + q1 * v_y)
        v_x = gain * v_x + along * q0
        v_y = gain * v_y + along * q1
    j00, j01, j11 = _scaled_jacobian(d, direction.m)
    return (
        inverse_norm * (v_x * j00 + v_y * j01),
        inverse_norm * (v_x * j01 + v_y * j11),
        -inverse_norm * (v_x * d[0] + v_y * d[1]),
    )


@triton.jit
def _coefficients_vjp(k, saved, v_x, v_y):
    zero = v_x * 0.0
    _, distortion = saved
    x, y = distortion.x, distortion.y
    square = x * x + y * y  # theta^2
    v_k1 = square * (v_x * x + v_y * y)
    v_k2 = square * v_k1
    v_k3 = square * v_k2
    return v_k1, v_k2, v_k3, square * v_k3, zero, zero, zero, zero, zero, zero, zero, zero


FISHEYE = Lens(
    project_with_jacobian=_project_with_jacobian,
    project_with_jacobian_vjp=_project_with_jacobian_vjp,
    row_times=_row_times,
    add_entry_times=_add_entry_times,
    project=_project,
    project_vjp=radial_project_vjp,
    coefficients_vjp=_coefficients_vjp,
)
