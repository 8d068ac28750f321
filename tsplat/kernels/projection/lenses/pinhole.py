"""Perspective projection with OpenCV's distortion: radial (k1 to k6), tangential (p1, p2), thin prism (s1 to s4).

With a = x/z, b = y/z, r^2 = a^2 + b^2 and the radial factor g = (1 + k1 r^2 + k2 r^4 + k3 r^6) / (1 + k4 r^2 + k5 r^4 +
k6 r^6), the distorted point is

    a' = g a + 2 p1 a b + p2 (r^2 + 2 a^2) + s1 r^2 + s2 r^4
    b' = g b + p1 (r^2 + 2 b^2) + 2 p2 a b + s3 r^2 + s4 r^4

In the Jacobian of EWA splatting, x/z and y/z are clamped to the image plus a margin.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ....config import LENS_GAIN_MIN
from ...device_math import constant
from .interface import Lens

GAIN_MIN = tl.constexpr(LENS_GAIN_MIN)


class OpenCVDistortion(NamedTuple):
    """The distortion of a point: r^2, the radial factor g, and its derivative by r^2."""

    square: Any
    gain: Any
    slope: Any


@triton.jit
def _clamped_slope(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """Returns p / z clamped to the image plus a margin, and whether p / z is inside, bounds included."""
    margin = extent / focal * (0.5 * FOV_MARGIN)
    low = -(center / focal + margin)
    high = (extent - center) / focal + margin
    slope = p / z
    return tl.minimum(tl.maximum(slope, low), high), (slope >= low) & (slope <= high)


@triton.jit
def _row(p, z, focal, center, extent, FOV_MARGIN: tl.constexpr):
    """Returns a row of the perspective Jacobian, d pixel / d p and d pixel / d z, and whether p / z is not clamped."""
    slope, inside = _clamped_slope(p, z, focal, center, extent, FOV_MARGIN)
    return focal / z, -focal * slope / z, inside


@triton.jit
def _row_vjp(p, z, focal, j_p, j_z, inside, v_p, v_z):
    """Returns the gradients of p and z from the gradient of a row of the Jacobian."""
    v_slope = -v_z * focal / z
    grad_z = -(v_p * j_p + v_z * j_z) / z - tl.where(inside, v_slope * p / (z * z), 0.0)
    return tl.where(inside, v_slope / z, 0.0), grad_z


@triton.jit
def _project_with_jacobian(p, intrinsics, width, height, FOV_MARGIN: tl.constexpr):
    fx, fy, cx, cy = intrinsics
    j0, j02, inside_x = _row(p[0], p[2], fx, cx, width, FOV_MARGIN)
    j1, j12, inside_y = _row(p[1], p[2], fy, cy, height, FOV_MARGIN)
    pixel = (fx * p[0] / p[2] + cx, fy * p[1] / p[2] + cy)
    return pixel, (j0, j02), (j1, j12), (inside_x, inside_y)


@triton.jit
def _project_with_jacobian_vjp(p, intrinsics, row0, row1, saved, v_pixel, v_row0, v_row1):
    fx, fy = intrinsics.fx, intrinsics.fy
    inside_x, inside_y = saved
    v_x, v_zx = _row_vjp(p[0], p[2], fx, row0[0], row0[1], inside_x, v_row0[0], v_row0[2])
    v_y, v_zy = _row_vjp(p[1], p[2], fy, row1[0], row1[1], inside_y, v_row1[1], v_row1[2])
    return (
        v_x + fx * v_pixel[0] / p[2],
        v_y + fy * v_pixel[1] / p[2],
        v_zx + v_zy - (fx * p[0] * v_pixel[0] + fy * p[1] * v_pixel[1]) / (p[2] * p[2]),
    )


@triton.jit
def _row_times(row, w, K: tl.constexpr, AXIS: tl.constexpr):
    """Returns entry K of a row, whose entries are AXIS and 2, times the rotation W."""
    return row[0] * w[3 * AXIS + K] + row[1] * w[6 + K]


@triton.jit
def _add_entry_times(total, row, K: tl.constexpr, v, AXIS: tl.constexpr):
    if K == AXIS:
        return total + row[0] * v
    elif K == 2:
        return total + row[1] * v
    else:
        return total


@triton.jit
def _inverse_denominator(k, square):
    """Returns 1 / denominator of the radial factor, or 0 if the denominator is close to 0."""
    _, _, _, k4, k5, k6 = k[:6]
    below = 1.0 + square * (k4 + square * (k5 + square * k6))
    return tl.where(tl.abs(below) > constant(1e-8, below), 1.0 / below, 0.0)


@triton.jit
def _project(p, k):
    a = p[0] / p[2]
    b = p[1] / p[2]
    if len(k) == 0:
        return a, b, p[2] > 0.0, (a, b, ())
    else:
        k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = k[:12]
        square = a * a + b * b
        above = 1.0 + square * (k1 + square * (k2 + square * k3))
        inverse = _inverse_denominator(k, square)
        gain = above * inverse
        above_slope = k1 + square * (2.0 * k2 + square * 3.0 * k3)
        below_slope = k4 + square * (2.0 * k5 + square * 3.0 * k6)
        slope = (above_slope - gain * below_slope) * inverse
        mixed = 2.0 * a * b
        x = gain * a + p1 * mixed + p2 * (square + 2.0 * a * a) + square * (s1 + square * s2)
        y = gain * b + p1 * (square + 2.0 * b * b) + p2 * mixed + square * (s3 + square * s4)
        seen = (p[2] > 0.0) & (gain > constant(GAIN_MIN, gain))
        distortion = OpenCVDistortion(square=square, gain=gain, slope=slope)
        return x, y, seen, (a, b, distortion)


@triton.jit
def _project_vjp(p, k, saved, v_x, v_y):
    a, b, distortion = saved
    if len(distortion) > 0:
        square, gain, slope = distortion.square, distortion.gain, distortion.slope
        p1, p2, s1, s2, s3, s4 = k[6:12]
        prism_x = 2.0 * (s1 + 2.0 * s2 * square)
        prism_y = 2.0 * (s3 + 2.0 * s4 * square)
        tangent = 2.0 * (p1 * a + p2 * b)
        xx = gain + 2.0 * slope * a * a + 2.0 * p1 * b + 6.0 * p2 * a + prism_x * a
        xy = 2.0 * slope * a * b + tangent + prism_x * b
        yx = 2.0 * slope * a * b + tangent + prism_y * a
        yy = gain + 2.0 * slope * b * b + 6.0 * p1 * b + 2.0 * p2 * a + prism_y * b
        v_a = xx * v_x + yx * v_y
        v_b = xy * v_x + yy * v_y
    else:
        v_a = v_x
        v_b = v_y
    return v_a / p[2], v_b / p[2], -(a * v_a + b * v_b) / p[2]


@triton.jit
def _coefficients_vjp(k, saved, v_x, v_y):
    a, b, distortion = saved
    square, gain = distortion.square, distortion.gain
    v_k1 = square * (v_x * a + v_y * b) * _inverse_denominator(k, square)
    v_k2 = square * v_k1
    v_k3 = square * v_k2
    mixed = 2.0 * a * b
    return (
        v_k1, v_k2, v_k3, -gain * v_k1, -gain * v_k2, -gain * v_k3,
        v_x * mixed + v_y * (square + 2.0 * b * b), v_x * (square + 2.0 * a * a) + v_y * mixed,
        v_x * square, v_x * square * square, v_y * square, v_y * square * square,
    )  # fmt: skip


PINHOLE = Lens(
    project_with_jacobian=_project_with_jacobian,
    project_with_jacobian_vjp=_project_with_jacobian_vjp,
    row_times=_row_times,
    add_entry_times=_add_entry_times,
    project=_project,
    project_vjp=_project_vjp,
    coefficients_vjp=_coefficients_vjp,
)
