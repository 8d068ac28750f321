"""Orthographic projection, u = fx x + cx, without distortion."""

import triton
import triton.language as tl

from .interface import Lens


@triton.jit
def _project_with_jacobian(p, intrinsics, width, height, FOV_MARGIN: tl.constexpr):
    fx, fy, cx, cy = intrinsics
    zero = p[0] * 0.0
    return (fx * p[0] + cx, fy * p[1] + cy), (fx + zero,), (fy + zero,), (zero,)


@triton.jit
def _project_with_jacobian_vjp(p, intrinsics, row0, row1, saved, v_pixel, v_row0, v_row1):
    return intrinsics.fx * v_pixel[0], intrinsics.fy * v_pixel[1], p[2] * 0.0


@triton.jit
def _row_times(row, w, K: tl.constexpr, AXIS: tl.constexpr):
    """Returns entry K of a row, whose only entry is AXIS, times the rotation W."""
    return row[0] * w[3 * AXIS + K]


@triton.jit
def _add_entry_times(total, row, K: tl.constexpr, v, AXIS: tl.constexpr):
    if K == AXIS:
        return total + row[0] * v
    else:
        return total


@triton.jit
def _project(p, k):
    return p[0], p[1], p[2] > 0.0, (p[2],)


@triton.jit
def _project_vjp(p, k, saved, v_x, v_y):
    return v_x, v_y, v_x * 0.0


ORTHO = Lens(
    project_with_jacobian=_project_with_jacobian,
    project_with_jacobian_vjp=_project_with_jacobian_vjp,
    row_times=_row_times,
    add_entry_times=_add_entry_times,
    project=_project,
    project_vjp=_project_vjp,
)
