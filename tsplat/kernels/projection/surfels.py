"""Projection of 2D Gaussians (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888, section 4.1).

A = [s_0 c_0 | s_1 c_1 | p] maps coordinates (u, v, 1) on a disc to the camera frame, with the center p of the disc and
the columns c of its rotation in this frame. The ray transform is M = K A. The box around the projected unit circle is
computed relative to the projected center, to avoid cancellation of large pixel coordinates. There, the rows of M are
(a, b, 0), (c, d, 0) and A_z. With D = A_z0^2 + A_z1^2 - p_z^2, the center of the box is o = (a A_z0 + b A_z1, c A_z0 +
d A_z1) / D, and its squared half extents are o_x^2 - (a^2 + b^2) / D and o_y^2 - (c^2 + d^2) / D.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ...config import BOX_VARIANCE_MIN
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
from .projector import InputGradients, Projection, Projector

VARIANCE_MIN = tl.constexpr(BOX_VARIANCE_MIN)


class Disc(NamedTuple):
    """A disc in the camera frame: its center p, the columns c of its rotation, and the first two columns of A."""

    p: Any
    c0: Any
    c1: Any
    c2: Any
    a0: Any
    a1: Any


class Box(NamedTuple):
    """The box around a projected disc.

    Attributes:
        m: The entries a, b, c, d of the ray transform relative to the projected center.
        slopes: x / z and y / z of the center p.
        inverse: 1 / D.
        offset: Offset o of the center of the box from the projected center, pixels.
    """

    m: Any
    slopes: Any
    inverse: Any
    offset: Any


@triton.jit
def _to_camera(gaussian, pose):
    """Transforms a Gaussian to the camera frame. Returns a :class:`Disc`."""
    w, r, scale = pose.rotation, gaussian.rotation, gaussian.scale
    p = add(matvec3(w, gaussian.mean), pose.translation)
    c0, c1, c2 = matvec3(w, r[::3]), matvec3(w, r[1::3]), matvec3(w, r[2::3])
    return Disc(p=p, c0=c0, c1=c1, c2=c2, a0=times(c0, scale[0]), a1=times(c1, scale[1]))


@triton.jit
def _box(disc, intrinsics):
    """Returns the :class:`Box` around a projected disc."""
    p, a0, a1 = disc.p, disc.a0, disc.a1
    fx, fy = intrinsics.fx, intrinsics.fy
    slope_x = p[0] / p[2]
    slope_y = p[1] / p[2]
    a = fx * (a0[0] - slope_x * a0[2])
    b = fx * (a1[0] - slope_x * a1[2])
    c = fy * (a0[1] - slope_y * a0[2])
    d = fy * (a1[1] - slope_y * a1[2])
    inverse = 1.0 / (a0[2] * a0[2] + a1[2] * a1[2] - p[2] * p[2])
    offset = ((a * a0[2] + b * a1[2]) * inverse, (c * a0[2] + d * a1[2]) * inverse)
    return Box(m=(a, b, c, d), slopes=(slope_x, slope_y), inverse=inverse, offset=offset)


@triton.jit
def _box_vjp(disc, intrinsics, box, v):
    """Returns the gradients of p, a0 and a1 from the gradient of the offset of the box."""
    p, a0, a1 = disc.p, disc.a0, disc.a1
    m, slopes, inverse, offset = box.m, box.slopes, box.inverse, box.offset
    fx, fy = intrinsics.fx, intrinsics.fy
    v_a = v[0] * a0[2] * inverse
    v_b = v[0] * a1[2] * inverse
    v_c = v[1] * a0[2] * inverse
    v_d = v[1] * a1[2] * inverse
    v_denominator = -inverse * (v[0] * offset[0] + v[1] * offset[1])
    v_slope_x = fx * (v[0] - a0[2] * v_a - a1[2] * v_b)
    v_slope_y = fy * (v[1] - a0[2] * v_c - a1[2] * v_d)
    z0 = inverse * (v[0] * m[0] + v[1] * m[2]) + 2.0 * a0[2] * v_denominator
    z1 = inverse * (v[0] * m[1] + v[1] * m[3]) + 2.0 * a1[2] * v_denominator
    z0 -= fx * slopes[0] * v_a + fy * slopes[1] * v_c
    z1 -= fx * slopes[0] * v_b + fy * slopes[1] * v_d
    v_x = v_slope_x / p[2]
    v_y = v_slope_y / p[2]
    v_z = -(v_x * slopes[0] + v_y * slopes[1]) - 2.0 * p[2] * v_denominator
    return (v_x, v_y, v_z), (fx * v_a, fy * v_c, z0), (fx * v_b, fy * v_d, z1)


@triton.jit
def _project(gaussian, camera, opacity, screen, CONSTANTS: tl.constexpr):
    fx, fy, cx, cy = camera.intrinsics
    disc = _to_camera(gaussian, camera.pose)
    box = _box(disc, camera.intrinsics)
    p, normal, a0, a1 = disc.p, disc.c2, disc.a0, disc.a1
    m, slopes, inverse, offset = box.m, box.slopes, box.inverse, box.offset
    mean2d = (fx * slopes[0] + cx + offset[0], fy * slopes[1] + cy + offset[1])
    least = constant(VARIANCE_MIN, p[2])
    square_x = tl.maximum(offset[0] * offset[0] - (m[0] * m[0] + m[1] * m[1]) * inverse, least)
    square_y = tl.maximum(offset[1] * offset[1] - (m[2] * m[2] + m[3] * m[3]) * inverse, least)
    radii = tl.ceil(CONSTANTS.EXTEND * tl.sqrt(square_x)), tl.ceil(CONSTANTS.EXTEND * tl.sqrt(square_y))
    transform = (
        fx * a0[0] + cx * a0[2], fx * a1[0] + cx * a1[2], fx * p[0] + cx * p[2],
        fy * a0[1] + cy * a0[2], fy * a1[1] + cy * a1[2], fy * p[1] + cy * p[2],
        a0[2], a1[2], p[2],
    )  # fmt: skip
    sign = tl.where(dot(normal, p) < 0.0, 1.0, -1.0).to(p[2].dtype)
    shown = ()
    if opacity is not None:
        shown = opacity
    seen = p[2] == p[2]  # false for NaN
    return Projection(
        seen=seen, depth=p[2], z=p[2], mean2d=mean2d, radii=radii, shape=transform, normal=times(normal, sign),
        compensation=(), opacity=shown,
    )  # fmt: skip


@triton.jit
def _vjp(gaussian, camera, opacity, screen, v, OF_LENS: tl.constexpr, OF_PATH: tl.constexpr, CONSTANTS: tl.constexpr):
    w, scale = camera.pose.rotation, gaussian.scale
    fx, fy, cx, cy = camera.intrinsics
    disc = _to_camera(gaussian, camera.pose)
    p = disc.p
    zero = tl.zeros_like(p[2])
    v_p, v_a0, v_a1, v_c2 = (zero,) * 3, (zero,) * 3, (zero,) * 3, (zero,) * 3
    if v.v_mean2d is not None:
        v_p, v_a0, v_a1 = _box_vjp(disc, camera.intrinsics, _box(disc, camera.intrinsics), v.v_mean2d)
    if v.v_shape is not None:  # M = K A
        u = v.v_shape
        v_a0 = (v_a0[0] + fx * u[0], v_a0[1] + fy * u[3], v_a0[2] + cx * u[0] + cy * u[3] + u[6])
        v_a1 = (v_a1[0] + fx * u[1], v_a1[1] + fy * u[4], v_a1[2] + cx * u[1] + cy * u[4] + u[7])
        v_p = (v_p[0] + fx * u[2], v_p[1] + fy * u[5], v_p[2] + cx * u[2] + cy * u[5] + u[8])
    if v.v_depth is not None:
        v_p = (v_p[0], v_p[1], v_p[2] + v.v_depth)
    if v.v_normal is not None:
        v_c2 = times(v.v_normal, tl.where(dot(disc.c2, p) < 0.0, 1.0, -1.0).to(p[2].dtype))
    v_opacity = zero
    if v.v_opacity is not None:
        v_opacity = v.v_opacity
    v_c0 = times(v_a0, scale[0])
    v_c1 = times(v_a1, scale[1])
    v_r0 = matvec3_transposed(w, v_c0)
    v_r1 = matvec3_transposed(w, v_c1)
    v_r2 = matvec3_transposed(w, v_c2)
    v_r = (v_r0[0], v_r1[0], v_r2[0], v_r0[1], v_r1[1], v_r2[1], v_r0[2], v_r1[2], v_r2[2])
    v_gaussian = matvec3_transposed(w, v_p) + (dot(disc.c0, v_a0), dot(disc.c1, v_a1)) + v_r
    saved = (v_p, v_c0, v_c1, v_c2)
    return InputGradients(v_gaussian=v_gaussian, v_opacity=v_opacity, v_lens=(), v_path=(), saved=saved)


@triton.jit
def _pose_gradient(gaussian, saved, ROW: tl.constexpr, COLUMN: tl.constexpr, CONSTANTS: tl.constexpr):
    """Returns entry (ROW, COLUMN) of the gradient of [W | t], for p = W mean + t and the columns c of W R."""
    mean, r = gaussian.mean, gaussian.rotation
    v_p, v_c0, v_c1, v_c2 = saved
    v_w = v_p[ROW]
    if COLUMN < 3:
        v_w = v_p[ROW] * mean[COLUMN]
        v_w += v_c0[ROW] * r[3 * COLUMN]
        v_w += v_c1[ROW] * r[3 * COLUMN + 1]
        v_w += v_c2[ROW] * r[3 * COLUMN + 2]
    return v_w


@triton.jit
def _finish(gaussians, i, mask, gaussian, sums):
    v_quat = quaternion_vjp(gaussian.unit, gaussian.inverse_norm, sums[5:])
    return v_quat, (sums[3], sums[4], tl.zeros_like(sums[0])), ()


SURFEL = Projector(
    SHAPE=9,
    GRADIENTS=14,
    load=load_rotated,
    project=_project,
    vjp=_vjp,
    pose_gradient=_pose_gradient,
    finish=_finish,
)
