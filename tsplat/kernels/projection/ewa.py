"""EWA splatting (Zwicker et al., "EWA Volume Splatting", 2001) as used by 3D Gaussian Splatting (Kerbl et al., 2023).

Sigma2d = J W Sigma W^T J^T + eps2d I, with the Jacobian J of the camera model at the camera-space mean. For pinhole
cameras, x/z and y/z in J are clamped to the image plus a margin; the projected mean is not clamped. The gradients of
the mean and of Sigma are summed over cameras; the gradients of quaternion and scales are computed from that of Sigma.
"""

from typing import Any, NamedTuple

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
from .covariances import blur, visible_ellipse, visible_ellipse_vjp
from .projector import InputGradients, Projection, Projector


class Gaussian(NamedTuple):
    """Mean and upper triangle of the covariance in the world frame."""

    mean: Any
    covariance: Any


class Linearized(NamedTuple):
    """The projection of a Gaussian, linearized at its mean.

    Attributes:
        p: Mean in the camera frame.
        mean2d: Mean in pixels.
        row0, row1: Rows of the Jacobian J, in the layout of the lens.
        saved: Values that the lens saves for its gradient.
        t0, t1: Rows of T = J W, with the rotation W of the camera.
        sharp, blurred: The screen covariance without and with eps2d on its diagonal.
    """

    p: Any
    mean2d: Any
    row0: Any
    row1: Any
    saved: Any
    t0: Any
    t1: Any
    sharp: Any
    blurred: Any


@triton.jit
def _screen_covariance(t0, t1, s):
    """Returns the upper triangle of T S T^T, for the rows t0 and t1 of T = J W."""
    s0 = symmetric_matvec3(s, t0)
    s1 = symmetric_matvec3(s, t1)
    return dot(t0, s0), dot(t0, s1), dot(t1, s1)


@triton.jit
def _screen_covariance_vjp(t0, t1, s, v):
    """Returns gradients of t0, t1 and s. With G the symmetric 2×2 gradient: v_T = 2 G T S, v_S = T^T G T."""
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
def _row_times_rotation(row, w, AXIS: tl.constexpr, CONSTANTS: tl.constexpr):
    """Returns a row of J W, three entries."""
    x = CONSTANTS.LENS.row_times(row, w, 0, AXIS)
    y = CONSTANTS.LENS.row_times(row, w, 1, AXIS)
    z = CONSTANTS.LENS.row_times(row, w, 2, AXIS)
    return x, y, z


@triton.jit
def _row_times_vjp(w, v):
    """Returns the gradient of a row of J, three entries, from the gradient of the row of J W."""
    return dot(v, w[:3]), dot(v, w[3:6]), dot(v, w[6:])


@triton.jit
def _load(gaussians, i, mask):
    """Loads the :class:`Gaussian` of each index."""
    if gaussians.covars is not None:
        mean = load_tuple(gaussians.means + i * 3, 1, 3, mask)
        return Gaussian(mean=mean, covariance=load_tuple(gaussians.covars + i * 6, 1, 6, mask))
    else:
        rotated = load_rotated(gaussians, i, mask)
        return Gaussian(mean=rotated.mean, covariance=covariance(rotated.rotation, rotated.scale))


@triton.jit
def _linearize(gaussian, camera, screen, CONSTANTS: tl.constexpr):
    """Projects the mean, and linearizes the projection at it. Returns a :class:`Linearized`."""
    w = camera.pose.rotation
    p = add(matvec3(w, gaussian.mean), camera.pose.translation)
    mean2d, row0, row1, saved = CONSTANTS.LENS.project_with_jacobian(
        p, camera.intrinsics, screen.width, screen.height, CONSTANTS.FOV_MARGIN
    )
    # T = J W, and Sigma2d = T Sigma T^T, without and with eps2d on its diagonal
    t0 = _row_times_rotation(row0, w, 0, CONSTANTS)
    t1 = _row_times_rotation(row1, w, 1, CONSTANTS)
    sharp = _screen_covariance(t0, t1, gaussian.covariance)
    return Linearized(
        p=p, mean2d=mean2d, row0=row0, row1=row1, saved=saved, t0=t0, t1=t1, sharp=sharp,
        blurred=blur(sharp, screen.eps2d),
    )  # fmt: skip


@triton.jit
def _project(gaussian, camera, opacity, screen, CONSTANTS: tl.constexpr):
    linearized = _linearize(gaussian, camera, screen, CONSTANTS)
    ellipse = visible_ellipse(linearized.sharp, linearized.blurred, opacity, CONSTANTS)
    z = linearized.p[2]
    return Projection(
        seen=ellipse.seen, depth=z, z=z, mean2d=linearized.mean2d, radii=ellipse.radii, shape=ellipse.conic, normal=(),
        compensation=ellipse.compensation, opacity=ellipse.opacity,
    )  # fmt: skip


@triton.jit
def _vjp(gaussian, camera, opacity, screen, v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr):
    w = camera.pose.rotation
    linearized = _linearize(gaussian, camera, screen, CONSTANTS)
    p, row0, row1 = linearized.p, linearized.row0, linearized.row1
    v_cov, v_opacity = visible_ellipse_vjp(
        linearized.sharp, linearized.blurred, opacity, v.v_shape, v.v_opacity, v.v_compensation, CONSTANTS
    )
    # v_T and v_Sigma of Sigma2d = T Sigma T^T, then v_J = v_T W^T, then v_p through mean2d and J
    v_t0, v_t1, v_sigma = _screen_covariance_vjp(linearized.t0, linearized.t1, gaussian.covariance, v_cov)
    v_mean2d = v.v_mean2d
    if v_mean2d is None:
        zero = tl.zeros_like(p[0])
        v_mean2d = (zero, zero)
    v_row0 = _row_times_vjp(w, v_t0)
    v_row1 = _row_times_vjp(w, v_t1)
    v_p = CONSTANTS.LENS.project_with_jacobian_vjp(
        p, camera.intrinsics, row0, row1, linearized.saved, v_mean2d, v_row0, v_row1
    )  # fmt: skip
    if v.v_depth is not None:
        v_p = (v_p[0], v_p[1], v_p[2] + v.v_depth)
    # p = W mean + t: v_mean = W^T v_p
    v_gaussian = matvec3_transposed(w, v_p) + v_sigma
    saved = (v_p, row0, row1, v_t0, v_t1)
    return InputGradients(v_gaussian=v_gaussian, v_opacity=v_opacity, v_lens=(), v_path=(), saved=saved)


@triton.jit
def _pose_gradient(gaussian, saved, ROW: tl.constexpr, COLUMN: tl.constexpr, CONSTANTS: tl.constexpr):
    """Returns entry (ROW, COLUMN) of the gradient of [W | t]: v_p (mean, 1)^T + [J^T v_T | 0]."""
    v_p, row0, row1, v_t0, v_t1 = saved
    if COLUMN == 3:
        return v_p[ROW]
    else:
        v_w = CONSTANTS.LENS.add_entry_times(v_p[ROW] * gaussian.mean[COLUMN], row0, ROW, v_t0[COLUMN], 0)
        return CONSTANTS.LENS.add_entry_times(v_w, row1, ROW, v_t1[COLUMN], 1)


@triton.jit
def _finish(gaussians, i, mask, gaussian, sums):
    if gaussians.covars is not None:
        return (), (), sums[3:]
    else:
        rotated = load_rotated(gaussians, i, mask)
        v_rotation, v_scale = covariance_vjp(rotated.rotation, rotated.scale, sums[3:])
        return quaternion_vjp(rotated.unit, rotated.inverse_norm, v_rotation), v_scale, ()


EWA = Projector(
    SHAPE=3,
    GRADIENTS=9,
    load=_load,
    project=_project,
    vjp=_vjp,
    pose_gradient=_pose_gradient,
    finish=_finish,
)
