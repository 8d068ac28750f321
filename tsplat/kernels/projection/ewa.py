"""EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001) as used by 3D Gaussian Splatting (Kerbl et al., 2023).

Sigma2d = J W Sigma W^T J^T + eps2d I. The Jacobian J is taken at the camera-space mean. Pinhole cameras clamp x/z and
y/z in it to the image plus a margin, but not in the projected mean. Gradients are summed over cameras for the mean and
for Sigma, from which those of quaternion and scales follow.
"""

import triton
import triton.language as tl

from ..device_math import (
    add,
    covariance,
    covariance_vjp,
    dot,
    load_rotated,
    load_tuple,
    matvec3,
    matvec3_transposed,
    quaternion_vjp,
    symmetric_matvec3,
)
from .covariances import blur, shape_of, shape_vjp
from .projector import Projector


@triton.jit
def _screen_covariance(t0, t1, s):
    """T S T^T, upper triangle, for the rows t0 and t1 of T = J W."""
    s0 = symmetric_matvec3(s, t0)
    s1 = symmetric_matvec3(s, t1)
    return dot(t0, s0), dot(t0, s1), dot(t1, s1)


@triton.jit
def _screen_covariance_vjp(t0, t1, s, v):
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


@triton.jit
def _row_times_vjp(w, v):
    """Gradient of a row, all three entries, from that of row W."""
    return dot(v, w[:3]), dot(v, w[3:6]), dot(v, w[6:])


@triton.jit
def _load(gaussians, i, mask):
    """Mean, and the upper triangle of the world-space covariance."""
    if gaussians.covars is not None:
        return load_tuple(gaussians.means + i * 3, 1, 3, mask), load_tuple(gaussians.covars + i * 6, 1, 6, mask)
    else:
        mean, r, scale, _, _ = load_rotated(gaussians, i, mask)
        return mean, covariance(r, scale)


@triton.jit
def _to_screen(gaussian, camera, plane, CONSTANTS: tl.constexpr):
    """Projects a mean and a covariance.

    Returns:
        Mean in camera space; mean in pixels; the two rows of the Jacobian J and what its gradient needs; the two rows
        of J W; screen covariance without and with eps2d on its diagonal.
    """
    mean, sigma = gaussian
    w, t, intrinsics = camera[0], camera[1], camera[2]
    width, height, eps2d = plane
    p = add(matvec3(w, mean), t)
    mean2d, row0, row1, saved = CONSTANTS.LENS.project_with_jacobian(p, intrinsics, width, height, CONSTANTS.FOV_MARGIN)
    t0 = (
        CONSTANTS.LENS.row_times(row0, w, 0, 0),
        CONSTANTS.LENS.row_times(row0, w, 1, 0),
        CONSTANTS.LENS.row_times(row0, w, 2, 0),
    )
    t1 = (
        CONSTANTS.LENS.row_times(row1, w, 0, 1),
        CONSTANTS.LENS.row_times(row1, w, 1, 1),
        CONSTANTS.LENS.row_times(row1, w, 2, 1),
    )
    sharp = _screen_covariance(t0, t1, sigma)
    return p, mean2d, (row0, row1, saved), t0, t1, sharp, blur(sharp, eps2d)


@triton.jit
def _project(gaussian, camera, opacity, plane, CONSTANTS: tl.constexpr):
    p, mean2d, _, _, _, sharp, blurred = _to_screen(gaussian, camera, plane, CONSTANTS)
    seen, radii, shape, rho, shown = shape_of(sharp, blurred, opacity, CONSTANTS)
    return seen, p[2], p[2], mean2d, radii, shape, (), rho, shown


@triton.jit
def _vjp(gaussian, camera, opacity, plane, v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr):
    v_mean2d, v_depth, v_conic, _, v_opacity, v_compensation = v
    w, intrinsics = camera[0], camera[2]
    p, _, jacobian, t0, t1, sharp, blurred = _to_screen(gaussian, camera, plane, CONSTANTS)
    row0, row1, saved = jacobian
    v_cov, v_gaussian_opacity = shape_vjp(sharp, blurred, opacity, v_conic, v_opacity, v_compensation, CONSTANTS)
    # Sigma2d = T Sigma T^T with T = J W
    v_t0, v_t1, v_sigma = _screen_covariance_vjp(t0, t1, gaussian[1], v_cov)
    if v_mean2d is None:
        zero = tl.zeros_like(p[0])
        v_mean2d = (zero, zero)
    v_row0 = _row_times_vjp(w, v_t0)
    v_row1 = _row_times_vjp(w, v_t1)
    v_p = CONSTANTS.LENS.project_with_jacobian_vjp(
        p, intrinsics, row0, row1, saved, v_mean2d, v_row0, v_row1
    )  # fmt: skip
    if v_depth is not None:
        v_p = (v_p[0], v_p[1], v_p[2] + v_depth)
    return matvec3_transposed(w, v_p) + v_sigma, v_gaussian_opacity, (), (v_p, row0, row1, v_t0, v_t1)


@triton.jit
def _pose_gradient(gaussian, saved, ROW: tl.constexpr, COLUMN: tl.constexpr, CONSTANTS: tl.constexpr):
    """dL/dp (mean, 1)^T, and J^T times the gradient of T = J W."""
    v_p, row0, row1, v_t0, v_t1 = saved
    if COLUMN == 3:
        return v_p[ROW]
    else:
        v_w = CONSTANTS.LENS.add_entry_times(v_p[ROW] * gaussian[0][COLUMN], row0, ROW, v_t0[COLUMN], 0)
        return CONSTANTS.LENS.add_entry_times(v_w, row1, ROW, v_t1[COLUMN], 1)


@triton.jit
def _finish(gaussians, i, mask, gaussian, sums):
    if gaussians.covars is not None:
        return (), (), sums[3:]
    else:
        _, r, scale, unit, inverse_norm = load_rotated(gaussians, i, mask)
        v_rotation, v_scale = covariance_vjp(r, scale, sums[3:])
        return quaternion_vjp(unit, inverse_norm, v_rotation), v_scale, ()


EWA = Projector(3, 9, _load, _project, _vjp, _pose_gradient, _finish)
