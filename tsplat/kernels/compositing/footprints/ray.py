"""The 3D Gaussian evaluated along the ray of a pixel: sigma = |c|^2 / 2, with c the point closest to the mean.

In the frame in which the Gaussian is a unit sphere around 0, x -> M (x - m) with M = diag(1 / s) R^T, the ray o + t d
is w + t u, with w = M (o - m) and u = M d. Alpha is evaluated at its maximum, t = -(u . w) / |u|^2 and c = w + t u
(3DGUT, arXiv 2412.12507, section 4.3). As c is orthogonal to u, gradients are linear in the sums over pixels of g, g c
and g c c^T. Due to rounding, c has a small component along u. It does not matter for alpha, but M^T multiplies it by
1 / s. Gradients therefore use c - u (u . c) / |u|^2.

A *shape* is the mean, the quaternion wxyz of any norm, and the scales in the world frame; the mean in pixels is not
used. A record holds m and the rows of M. The *pixel* is a ray, o and d. The list of a part has the splats that its beam
may meet, see `beams`.

Two features may depend on the pixel. A *normal*, the third axis of the Gaussian, is negated if it points along the ray.
A *hit* is the distance |t| of the closest point from o. With q = (dL/dt) / |u|^2, dt/dw = -u / |u|^2 and
dt/du = -(c + t u) / |u|^2 add q u to g c, and q (u c^T + c u^T) to g c c^T, so the number of sums remains ten.
"""

import dataclasses
from typing import Any, NamedTuple

import triton
import triton.language as tl

from ...device_math import (
    add,
    constant,
    cross3,
    dot,
    matvec3_transposed,
    normalize4,
    normalize_vjp,
    rotation,
    rotation_vjp,
    times,
    where,
)
from .ellipse import EllipseForm, reaches_rectangle
from .interface import HALF_LOG2_E, Footprint, rendered_shape

INVERSE_MAX = tl.constexpr(1e12)
"""Maximum of 1 / s and of the coordinates of the mean of a valid splat, so that squares are finite in fp32."""


class EllipsoidBound(NamedTuple):
    """The ellipsoid where alpha is ALPHA_MIN, in the frame (d, e, f) of a tile.

    Attributes:
        shadow: The form of its projection along d; the level is the square of its size in units of the largest scale.
        x, y: The mean on the axes e and f.
        near, far: The range of depths along d.
        tolerance: Tolerance for rounding, by which rectangles are enlarged.
        is_visible: Whether alpha exceeds ALPHA_MIN anywhere.
    """

    shadow: Any
    x: Any
    y: Any
    near: Any
    far: Any
    tolerance: Any
    is_visible: Any


@triton.jit
def _whitening(shape):
    """Returns the rows of M = diag(1 / s) R^T."""
    unit, _ = normalize4(shape[3:7])
    r = rotation(unit)
    x = 1.0 / shape[7]
    y = 1.0 / shape[8]
    z = 1.0 / shape[9]
    return r[0] * x, r[3] * x, r[6] * x, r[1] * y, r[4] * y, r[7] * y, r[2] * z, r[5] * z, r[8] * z


@triton.jit
def _pack(mean, shape, visible):
    values = shape[:3] + _whitening(shape)
    valid = visible
    for k in tl.static_range(12):
        # False for infinity and NaN.
        valid = valid & (tl.abs(values[k]) <= constant(INVERSE_MAX, values[k]))
    return where(valid, values), valid


@triton.jit
def _is_large(shape, opacity, TILE: tl.constexpr, ALPHA_MIN: tl.constexpr):
    """Returns true, as the extent in pixels is unknown."""
    return opacity == opacity


@triton.jit
def _row(record, k: tl.constexpr, v):
    """Returns row k of M times a vector."""
    return tl.fma(record[3 + 3 * k], v[0], tl.fma(record[4 + 3 * k], v[1], record[5 + 3 * k] * v[2]))


@triton.jit
def _along_axes(record, inverse, v):
    """Returns S R^T v / s_max, computed as M v times ``inverse`` = 1 / (s_max |row of M|^2)."""
    return _row(record, 0, v) * inverse[0], _row(record, 1, v) * inverse[1], _row(record, 2, v) * inverse[2]


@triton.jit
def _bound(record, frame, LOG2_ALPHA_MIN: tl.constexpr):
    """Returns the :class:`EllipsoidBound` of a record in the frame of a tile."""
    d, e = frame[3:6], frame[6:9]
    f = cross3(d, e)
    to_mean = (record[0] - frame[0], record[1] - frame[1], record[2] - frame[2])
    squares = ()
    for k in tl.static_range(3):
        row = record[3 + 3 * k : 6 + 3 * k]
        squares = squares + (dot(row, row),)
    root = tl.sqrt(tl.minimum(tl.minimum(squares[0], squares[1]), squares[2]))
    level = record[12] - constant(LOG2_ALPHA_MIN, record[12])
    size = tl.sqrt(tl.maximum(level, 0.0) / constant(HALF_LOG2_E, level) + 1e-3) / root
    # A tolerance for the rounding of this test and of compositing, as a distance.
    distance = tl.abs(to_mean[0]) + tl.abs(to_mean[1]) + tl.abs(to_mean[2]) + frame[9]
    tolerance = 2e-6 * (distance + size)

    inverse = (root / squares[0], root / squares[1], root / squares[2])
    along_d = _along_axes(record, inverse, d)
    along_e = _along_axes(record, inverse, e)
    along_f = _along_axes(record, inverse, f)
    # The inverse of the covariance of the shadow. Its determinant, |along_e x along_f|^2, avoids cancellation.
    normal = cross3(along_e, along_f)
    inverse_det = 1.0 / dot(normal, normal)
    a = dot(along_f, along_f) * inverse_det
    b = -2.0 * dot(along_e, along_f) * inverse_det
    c = dot(along_e, along_e) * inverse_det
    shadow = EllipseForm(a=a, b=b, c=c, level=size * size, slope_x=-0.5 * b / a, slope_y=-0.5 * b / c)
    x, y, depth = dot(to_mean, e), dot(to_mean, f), dot(to_mean, d)
    half = size * tl.sqrt(dot(along_d, along_d)) + tolerance
    return EllipsoidBound(
        shadow=shadow, x=x, y=y, near=depth - half, far=depth + half, tolerance=tolerance, is_visible=level >= 0.0
    )  # fmt: skip


@triton.jit
def _range_of_products(low, high, least, most):
    """Returns the minimum and the maximum of the product of a number in [low, high] and one in [least, most]."""
    a = low * least
    b = high * least
    c = low * most
    d = high * most
    return tl.minimum(tl.minimum(a, b), tl.minimum(c, d)), tl.maximum(tl.maximum(a, b), tl.maximum(c, d))


@triton.jit
def _reaches(bound, box):
    """Returns whether the shadow reaches the rectangle of the part's rays at its depths, or is not finite."""
    shadow, near, far, tolerance = bound.shadow, bound.near, bound.far, bound.tolerance
    a, b, c = shadow.a, shadow.b, shadow.c
    least_x, most_x = _range_of_products(near, far, box[2], box[3])
    least_y, most_y = _range_of_products(near, far, box[6], box[7])
    low_x = box[0] + least_x - bound.x - tolerance
    high_x = box[1] + most_x - bound.x + tolerance
    low_y = box[4] + least_y - bound.y - tolerance
    high_y = box[5] + most_y - bound.y + tolerance
    far_x = tl.maximum(tl.abs(low_x), tl.abs(high_x))
    far_y = tl.maximum(tl.abs(low_y), tl.abs(high_y))
    # The rounding error is proportional to the terms that cancel.
    terms = a * far_x * far_x + tl.abs(b) * far_x * far_y + c * far_y * far_y
    shadow = EllipseForm(
        a=a, b=b, c=c, level=shadow.level + terms * 1e-6, slope_x=shadow.slope_x, slope_y=shadow.slope_y
    )  # fmt: skip
    reached = reaches_rectangle(shadow, low_x, high_x, low_y, high_y) | ((terms <= 1e35) == 0)
    has_rays = (box[0] > box[1]) == 0
    return bound.is_visible & has_rays & reached


@triton.jit
def _locate(record, pixel):
    """Returns the closest point c, t, u and 1 / |u|^2."""
    r = (pixel[0] - record[0], pixel[1] - record[1], pixel[2] - record[2])
    d = pixel[3:]
    w = (_row(record, 0, r), _row(record, 1, r), _row(record, 2, r))
    u = (_row(record, 0, d), _row(record, 1, d), _row(record, 2, d))
    square = tl.fma(u[0], u[0], tl.fma(u[1], u[1], u[2] * u[2]))
    along = tl.fma(u[0], w[0], tl.fma(u[1], w[1], u[2] * w[2]))
    # A pixel without a ray has direction 0.
    inverse = 1.0 / tl.maximum(square, 1e-30)
    t = -along * inverse
    return tl.fma(t, u[0], w[0]), tl.fma(t, u[1], w[1]), tl.fma(t, u[2], w[2]), t, u[0], u[1], u[2], inverse


@triton.jit
def _orthogonal(local):
    """Returns c - u (u . c) / |u|^2: c without the component along u that is due to rounding."""
    along = tl.fma(local[4], local[0], tl.fma(local[5], local[1], local[6] * local[2])) * -local[7]
    return tl.fma(along, local[4], local[0]), tl.fma(along, local[5], local[1]), tl.fma(along, local[6], local[2])


@triton.jit
def _log2_alpha(record, local):
    square = tl.fma(local[0], local[0], tl.fma(local[1], local[1], local[2] * local[2]))
    return tl.fma(square, constant(-HALF_LOG2_E, square), record[12])


@triton.jit
def _log2_alpha_in_front(record, local):
    """Same as ``_log2_alpha``, but -1e4 if the closest point is behind the origin of the ray."""
    return tl.where(local[3] >= 0.0, _log2_alpha(record, local), -1e4)


@triton.jit
def _add_gradients(sums, g, local):
    """Adds g, g c, and the upper triangle of g c c^T to sums."""
    c = _orthogonal(local)
    x = g * c[0]
    y = g * c[1]
    z = g * c[2]
    if len(sums) == 0:
        return g, x, y, z, x * c[0], x * c[1], x * c[2], y * c[1], y * c[2], z * c[2]
    else:
        return (
            sums[0] + g, sums[1] + x, sums[2] + y, sums[3] + z,
            tl.fma(x, c[0], sums[4]), tl.fma(x, c[1], sums[5]), tl.fma(x, c[2], sums[6]),
            tl.fma(y, c[1], sums[7]), tl.fma(y, c[2], sums[8]), tl.fma(z, c[2], sums[9]),
        )  # fmt: skip


@triton.jit
def _add_hit_gradients(sums, g, local):
    """Same as ``_add_gradients``, and also adds the gradient of the hit: q u, and q (u c^T + c u^T)."""
    c = _orthogonal(local)
    x = tl.fma(local[8], local[4], g * c[0])
    y = tl.fma(local[8], local[5], g * c[1])
    z = tl.fma(local[8], local[6], g * c[2])
    qx = local[8] * c[0]
    qy = local[8] * c[1]
    qz = local[8] * c[2]
    added = (
        g, x, y, z, tl.fma(x, c[0], qx * local[4]), tl.fma(x, c[1], qx * local[5]), tl.fma(x, c[2], qx * local[6]),
        tl.fma(y, c[1], qy * local[5]), tl.fma(y, c[2], qy * local[6]), tl.fma(z, c[2], qz * local[6]),
    )  # fmt: skip
    if len(sums) == 0:
        return added
    else:
        return add(sums, added)


@triton.jit
def _facing(record, pixel, FIRST: tl.constexpr):
    """Returns -1 if the normal points along the ray, else 1."""
    along = dot(record[FIRST : FIRST + 3], pixel[3:])
    return tl.where(along > 0.0, constant(-1.0, along), constant(1.0, along))


@triton.jit
def _features(record, local, pixel, FIRST: tl.constexpr, N: tl.constexpr, FOOTPRINT: tl.constexpr):
    features = record[FIRST : FIRST + N]
    if FOOTPRINT.NORMALS:
        features = times(features[:3], _facing(record, pixel, FIRST)) + features[3:]
    if FOOTPRINT.HITS:
        features = features[: N - 1] + (tl.abs(local[3]),)
    return features


@triton.jit
def _features_vjp(record, local, pixel, weight, v_features, FIRST: tl.constexpr, FOOTPRINT: tl.constexpr):
    if FOOTPRINT.NORMALS:
        v_features = times(v_features[:3], _facing(record, pixel, FIRST)) + v_features[3:]
    if FOOTPRINT.HITS:
        q = weight * v_features[len(v_features) - 1] * local[7]
        local = local + (tl.where(local[3] < 0.0, -q, q),)
    return v_features, local


@triton.jit
def _pixel_gradients(record, g, local):
    """Returns the gradients of the ray: v_o = -g M^T c, and v_d = t v_o."""
    v = matvec3_transposed(record[3:12], _orthogonal(local))
    x = -g * v[0]
    y = -g * v[1]
    z = -g * v[2]
    return x, y, z, x * local[3], y * local[3], z * local[3]


@triton.jit
def _hit_pixel_gradients(record, g, local):
    """Returns the gradients of the ray: v_o = -M^T (g c + q u), and v_d = t v_o - q M^T c."""
    c = matvec3_transposed(record[3:12], _orthogonal(local))
    u = matvec3_transposed(record[3:12], local[4:7])
    v = ()
    for k in tl.static_range(3):
        v = v + (-tl.fma(local[8], u[k], g * c[k]),)
    for k in tl.static_range(3):
        v = v + (tl.fma(local[3], v[k], -local[8] * c[k]),)
    return v


@triton.jit
def _finish(sums, shape, opacity):
    """Returns the gradients of mean, shape and opacity.

    With C = sum g c c^T: v_m = M^T sum g c, v_s = diag(C) / s, v_R = -R S C S^-1, and v_opacity = sum g / opacity.
    """
    zero = tl.zeros_like(opacity)
    safe = rendered_shape(sums, shape, 10)
    v_mean = matvec3_transposed(_whitening(safe), sums[1:4])
    unit, inverse_norm = normalize4(safe[3:7])
    r = rotation(unit)
    s = safe[7:]
    # S C S^-1
    c = (
        sums[4], sums[5] * s[0] / s[1], sums[6] * s[0] / s[2],
        sums[5] * s[1] / s[0], sums[7], sums[8] * s[1] / s[2],
        sums[6] * s[2] / s[0], sums[8] * s[2] / s[1], sums[9],
    )  # fmt: skip
    v_rotation = ()
    for row in tl.static_range(3):
        for column in tl.static_range(3):
            v_rotation = v_rotation + (-dot(r[3 * row : 3 * row + 3], c[column::3]),)
    v_quat = normalize_vjp(unit, inverse_norm, rotation_vjp(unit, v_rotation))
    v_scale = (sums[4] / s[0], sums[7] / s[1], sums[9] / s[2])
    return (zero, zero), v_mean + v_quat + v_scale, tl.where(opacity > 0.0, sums[0] / opacity, 0.0)


RAY = Footprint(
    SHAPE=10,
    VALUES=12,
    SUMS=10,
    BY_COLUMN=0,
    pack=_pack,
    is_large=_is_large,
    bound=_bound,
    reaches=_reaches,
    locate=_locate,
    log2_alpha=_log2_alpha,
    add_gradients=_add_gradients,
    slopes=None,
    finish=_finish,
    pixel_gradients=_pixel_gradients,
    BEAMS=True,
)
"""The closest point may be behind the origin, as in gsplat 1.5."""

RAY_IN_FRONT = dataclasses.replace(RAY, log2_alpha=_log2_alpha_in_front)
"""Skips splats whose closest point is behind the origin, as in gsplat 1.6."""


def seen_along_rays(footprint: Footprint, normals: bool, hits: bool) -> Footprint:
    """Returns a footprint along rays, given whether the first three features are normals, and the last one is a hit."""
    footprint = dataclasses.replace(
        footprint, features=_features, features_vjp=_features_vjp, NORMALS=normals, HITS=hits
    )  # fmt: skip
    if not hits:
        return footprint
    return dataclasses.replace(footprint, add_gradients=_add_hit_gradients, pixel_gradients=_hit_pixel_gradients)
