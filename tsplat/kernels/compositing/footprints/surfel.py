"""The 2D Gaussian (surfel): sigma = min(|s|^2 / 2, |m - pixel|^2), where the pixel's ray meets the disc at s.

The *shape* is the ray transform M, row-major, which maps coordinates (u, v, 1) on the disc, in standard deviations, to
z (x, y, 1) of the pixel (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888, equations 8 to 10). The second term
is a low-pass filter around the mean m, the center of the bounding box (equation 11).

Relative to the projected center q = (M_02, M_12) / M_22, the rows of M are (a, b, 0), (c, d, 0) and (M_20, M_21, M_22).
With the offset (dx, dy) from q, p = k (d dx - b dy, a dy - c dx) and D = k (a d - b c) / M_22, s = p / (D - t . p),
where t = (M_20, M_21) / M_22. Unlike the cross product of planes, this does not cancel large numbers. The factor k, 1
over the largest magnitude of a to d, keeps squares finite. A record holds q, k (a, b, c, d), D, t and m.

With e = (s_0, s_1, -|s|^2), the gradient of M is M^-T sum(g e (s_0, s_1, 1)^T): linear in eight sums over pixels of g
times polynomials of s.

The ray meets the plane of the disc at depth z = M_20 s_0 + M_21 s_1 + M_22 = M_22 (1 + t . s). This is the last feature
of `SURFEL_PLANE`, also where the low-pass filter determines alpha. dM changes z by z (M^-1 dM (s_0, s_1, 1)^T)_2, so a
gradient v of z adds q = v z to g e_2, which takes one more sum, of q. If the ray misses the disc, |s| > DISC_EXTENT, or
z is not positive, the depth of the center, the feature of the record, is used instead: a ray that sees a disc from the
side, by the filter, meets the plane at an arbitrary depth.
"""

import dataclasses

import triton
import triton.language as tl

from ....config import DISC_EXTENT, FILTER_VARIANCE
from ...device_math import constant, where
from .interface import HALF_LOG2_E, LARGE, LOG2_E, Footprint, rendered_shape

SHARPNESS = tl.constexpr(1 / FILTER_VARIANCE)
"""Inverse variance of the low-pass filter."""

DISC_SQUARE = tl.constexpr(DISC_EXTENT**2)

MAGNITUDE = tl.constexpr(1e12)
"""Maximum magnitude of the transform and the mean of a valid splat, so that products are finite in fp32."""


@triton.jit
def _relative(shape):
    """Returns q_x, q_y and (a, b, c, d)."""
    x = shape[2] / shape[8]
    y = shape[5] / shape[8]
    return x, y, (
        shape[0] - x * shape[6], shape[1] - x * shape[7], shape[3] - y * shape[6], shape[4] - y * shape[7]
    )  # fmt: skip


@triton.jit
def _pack(mean, shape, visible):
    valid = visible & (shape[8] != 0.0)
    for k in tl.static_range(9):
        # False for infinity and NaN.
        valid = valid & (tl.abs(shape[k]) <= constant(MAGNITUDE, shape[k]))
    for k in tl.static_range(2):
        valid = valid & (tl.abs(mean[k]) <= constant(MAGNITUDE, mean[k]))
    safe = where(valid, shape, 1.0)
    x, y, m = _relative(safe)
    largest = tl.maximum(tl.maximum(tl.abs(m[0]), tl.abs(m[1])), tl.maximum(tl.abs(m[2]), tl.abs(m[3])))
    # No ray meets a disc without area.
    valid = valid & (largest > 0.0) & (tl.abs(x) + tl.abs(y) <= constant(MAGNITUDE, x))
    k = 1.0 / tl.where(valid, largest, 1.0)
    a = m[0] * k
    b = m[1] * k
    c = m[2] * k
    d = m[3] * k
    area = (a * m[3] - b * m[2]) / safe[8]
    values = (x, y, a, b, c, d, area, safe[6] / safe[8], safe[7] / safe[8], mean[0], mean[1])
    return where(valid, values), valid


@triton.jit
def _is_large(shape, opacity, TILE: tl.constexpr, ALPHA_MIN: tl.constexpr):
    """Returns whether the box of three standard deviations may touch more than LARGE tiles."""
    _, _, m = _relative(shape)
    along = shape[6] * shape[6] + shape[7] * shape[7] - shape[8] * shape[8]
    inverse = 1.0 / along
    offset_x = (m[0] * shape[6] + m[1] * shape[7]) * inverse
    offset_y = (m[2] * shape[6] + m[3] * shape[7]) * inverse
    width = tl.sqrt(tl.maximum(offset_x * offset_x - (m[0] * m[0] + m[1] * m[1]) * inverse, 0.0))
    height = tl.sqrt(tl.maximum(offset_y * offset_y - (m[2] * m[2] + m[3] * m[3]) * inverse, 0.0))
    tiles = (6.0 / TILE * width + 1.0) * (6.0 / TILE * height + 1.0)
    # Unbounded if the disc extends behind the camera. True for NaN.
    return (along >= 0.0) | ((tiles <= LARGE) == 0)


@triton.jit
def _bound(record, x, y, TILE: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr):
    """Returns the conic |p|^2 - r (D - t . p)^2 <= 0 of the visible edge |s|^2 = r, and the circle of the filter.

    In offsets (u, v) from the first pixel of the tile, the conic is xx u^2 + xy u v + yy v^2 + x u + y v + constant.
    """
    level = record[11] - constant(LOG2_ALPHA_MIN, record[11])
    is_rendered = level > -1.0
    root = tl.sqrt(tl.where(is_rendered, level * (2.0 / LOG2_E), 0.0) + 1e-3)
    a = record[2]
    b = record[3]
    c = record[4]
    d = record[5]
    from_x = x - record[0]
    from_y = y - record[1]
    p0 = d * from_x - b * from_y
    p1 = a * from_y - c * from_x
    # w = sqrt(r) (D - t . p) at the first pixel, and its decrease along x and y.
    w = root * (record[6] - record[7] * p0 - record[8] * p1)
    n0 = root * (record[7] * d - record[8] * c)
    n1 = root * (record[8] * a - record[7] * b)
    xx = d * d + c * c - n0 * n0
    xy = -2.0 * (b * d + a * c + n0 * n1)
    yy = a * a + b * b - n1 * n1
    by_x = 2.0 * (d * p0 - c * p1 + w * n0)
    by_y = 2.0 * (a * p1 - b * p0 + w * n1)
    # A tolerance for the rounding of the form and of compositing, where p and D - t . p are differences of terms
    # proportional to the offset from q.
    far = tl.abs(from_x) + tl.abs(from_y) + 2 * TILE
    rounding = 1e-6 * (far + root * (tl.abs(record[6]) + (tl.abs(record[7]) + tl.abs(record[8])) * far))
    most_p = tl.abs(p0) + tl.abs(p1) + TILE * (tl.abs(a) + tl.abs(b) + tl.abs(c) + tl.abs(d))
    most_w = tl.abs(w) + TILE * (tl.abs(n0) + tl.abs(n1))
    most = (2.0 * most_w + rounding) * rounding + 4e-6 * (most_p * most_p + most_w * most_w)
    # On a line, a convex form is smallest where its derivative is zero, a concave form at an end: see ``_reaches``.
    far_end = constant(1e30, x)
    half_x = tl.where(xx > 0.0, -0.5 / tl.where(xx > 0.0, xx, 1.0), 0.0)
    half_y = tl.where(yy > 0.0, -0.5 / tl.where(yy > 0.0, yy, 1.0), 0.0)
    conic = (
        xx, xy, yy, by_x, by_y, p0 * p0 + p1 * p1 - w * w, tl.where(is_rendered, most, -float("inf")),
        half_x, half_y, tl.where(xx > 0.0, 0.0, far_end), tl.where(yy > 0.0, 0.0, far_end),
        tl.where(is_rendered, -from_x, float("inf")), -from_y,
    )  # fmt: skip
    square = level * (2.0 / (SHARPNESS * LOG2_E)) + 1e-3
    return conic, (record[9] - x, record[10] - y, square)


@triton.jit
def _reaches(bound, X: tl.constexpr, Y: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):
    """Returns whether the conic or the circle reaches a part.

    A conic that reaches a rectangle crosses one of its four sides, or is an ellipse inside of it, around q. If the form
    is concave along a side, it is smallest at a corner. The four sides then test different corners.
    """
    xx, xy, yy, by_x, by_y, rest, most, half_x, half_y, far_x, far_y, qx, qy = bound[0]
    RIGHT: tl.constexpr = X + WIDTH - 1
    BOTTOM: tl.constexpr = Y + HEIGHT - 1
    lowest = rest + float("inf")
    for end in tl.static_range(2):
        u = RIGHT if end else X
        slope = xy * u + by_y
        v = tl.minimum(tl.maximum(slope * half_y + far_y * (2 * end - 1), Y), BOTTOM)
        lowest = tl.minimum(lowest, (yy * v + slope) * v + ((xx * u + by_x) * u + rest))
        v = BOTTOM if end else Y
        slope = xy * v + by_x
        u = tl.minimum(tl.maximum(slope * half_x + far_x * (1 - 2 * end), X), RIGHT)
        lowest = tl.minimum(lowest, (xx * u + slope) * u + ((yy * v + by_y) * v + rest))
    # True for NaN.
    reached = (lowest > most) == 0
    reached = reached | ((qx >= X) & (qx <= RIGHT) & (qy >= Y) & (qy <= BOTTOM))
    mx, my, square = bound[1]
    dx = tl.maximum(tl.maximum(X - mx, mx - RIGHT), 0.0)
    dy = tl.maximum(tl.maximum(Y - my, my - BOTTOM), 0.0)
    return reached | (dx * dx + dy * dy <= square)


@triton.jit
def _meet_plane(record, pixel):
    """Returns s_0 and s_1 where the ray of a pixel meets the plane, and w, which is 0 if the ray is in the plane."""
    dx = pixel[0] - record[0]
    dy = pixel[1] - record[1]
    p0 = tl.fma(record[5], dx, record[3] * -dy)
    p1 = tl.fma(record[2], dy, record[4] * -dx)
    w = tl.fma(record[7], -p0, tl.fma(record[8], -p1, record[6]))
    inverse = 1.0 / w
    return p0 * inverse, p1 * inverse, w


@triton.jit
def _locate(record, pixel):
    """Returns s (zero if the filter is larger), the offset from the mean (zero if the disc is), and 2 sigma."""
    s0, s1, w = _meet_plane(record, pixel)
    on_disc = tl.fma(s0, s0, s1 * s1)
    x = pixel[0] - record[9]
    y = pixel[1] - record[10]
    on_image = tl.fma(x, x, y * y) * SHARPNESS
    # False for NaN.
    is_nearer = on_disc <= on_image
    square = tl.where(is_nearer, on_disc, on_image)
    # A ray in the plane of the disc does not see it.
    square = tl.where(w == 0.0, 1e30, square)
    zero = tl.zeros_like(s0)
    return (
        tl.where(is_nearer, s0, zero), tl.where(is_nearer, s1, zero), tl.where(is_nearer, zero, x),
        tl.where(is_nearer, zero, y), square,
    )  # fmt: skip


@triton.jit
def _log2_alpha(record, local):
    return tl.fma(local[4], constant(-HALF_LOG2_E, local[4]), record[11])


@triton.jit
def _add_gradients(sums, g, local):
    """Adds g times 1, s_0, s_1, s_0^2, s_0 s_1, s_1^2, |s|^2 s_0, |s|^2 s_1 and the offset to sums."""
    x = g * local[0]
    y = g * local[1]
    xx = x * local[0]
    yy = y * local[1]
    square = tl.fma(local[0], local[0], local[1] * local[1])
    if len(sums) == 0:
        return g, x, y, xx, x * local[1], yy, x * square, y * square, g * local[2], g * local[3]
    else:
        return (
            sums[0] + g, sums[1] + x, sums[2] + y, sums[3] + xx, tl.fma(x, local[1], sums[4]), sums[5] + yy,
            tl.fma(x, square, sums[6]), tl.fma(y, square, sums[7]),
            tl.fma(g, local[2], sums[8]), tl.fma(g, local[3], sums[9]),
        )  # fmt: skip


@triton.jit
def _slopes(record, g, local):
    return tl.abs(g * local[2]) * (SHARPNESS * LOG2_E), tl.abs(g * local[3]) * (SHARPNESS * LOG2_E)


@triton.jit
def _finish(sums, shape, opacity):
    """Returns the gradients of mean, transform and opacity: v_M = M^-T sum(g e (s_0, s_1, 1)^T).

    `SURFEL_PLANE` has an eleventh sum, of q.
    """
    HAS_PLANE: tl.constexpr = len(sums) > 10
    safe = rendered_shape(sums, shape, 11 if HAS_PLANE else 8)
    x, y, m = _relative(safe)
    det = m[0] * m[3] - m[1] * m[2]
    inverse = tl.where(det != 0.0, 1.0 / tl.where(det != 0.0, det, 1.0), 0.0)
    t0 = safe[6] / safe[8]
    t1 = safe[7] / safe[8]
    first = (sums[3], sums[4], sums[1])
    second = (sums[4], sums[5], sums[2])
    third = (-sums[6], -sums[7], -(sums[3] + sums[5]))
    if HAS_PLANE:
        third = third[:2] + (third[2] + sums[10],)
    row_x = ()
    row_y = ()
    row_z = ()
    for k in tl.static_range(3):
        u = first[k] - t0 * third[k]
        v = second[k] - t1 * third[k]
        row_x = row_x + ((m[3] * u - m[2] * v) * inverse,)
        row_y = row_y + ((m[0] * v - m[1] * u) * inverse,)
        row_z = row_z + (third[k] / safe[8] - x * row_x[k] - y * row_y[k],)
    v_mean = (sums[8] * SHARPNESS, sums[9] * SHARPNESS)
    return v_mean, row_x + row_y + row_z, tl.where(opacity > 0.0, sums[0] / opacity, 0.0)


SURFEL = Footprint(
    SHAPE=9,
    VALUES=11,
    SUMS=10,
    BY_COLUMN=0,
    pack=_pack,
    is_large=_is_large,
    bound=_bound,
    reaches=_reaches,
    locate=_locate,
    log2_alpha=_log2_alpha,
    add_gradients=_add_gradients,
    slopes=_slopes,
    finish=_finish,
    WIDE=True,
)


@triton.jit
def _plane_locate(record, pixel):
    """Returns the results of ``_locate``, s (0 if the ray misses the disc), z / M_22, and whether the ray meets it."""
    s0, s1, _ = _meet_plane(record, pixel)
    ratio = tl.fma(record[7], s0, tl.fma(record[8], s1, tl.zeros_like(s0) + 1.0))
    # False for NaN.
    is_met = (tl.fma(s0, s0, s1 * s1) <= constant(DISC_SQUARE, s0)) & (ratio > 0.0)
    zero = tl.zeros_like(s0)
    return _locate(record, pixel) + (
        tl.where(is_met, s0, zero), tl.where(is_met, s1, zero), tl.where(is_met, ratio, 1.0), is_met,
    )  # fmt: skip


@triton.jit
def _plane_features(record, local, pixel, FIRST: tl.constexpr, N: tl.constexpr, FOOTPRINT: tl.constexpr):
    """Returns features whose last one is the depth at which the ray of the pixel meets the plane."""
    return record[FIRST : FIRST + N - 1] + (record[FIRST + N - 1] * local[7],)


@triton.jit
def _plane_features_vjp(record, local, pixel, weight, v_features, FIRST: tl.constexpr, FOOTPRINT: tl.constexpr):
    """Appends q to `local`. The depth of the center has a gradient only if it is the feature."""
    LAST: tl.constexpr = len(v_features) - 1
    q = tl.where(local[8], weight * v_features[LAST] * (record[FIRST + LAST] * local[7]), 0.0)
    return v_features[:LAST] + (tl.where(local[8], 0.0, v_features[LAST]),), local + (q,)


@triton.jit
def _add_plane_gradients(sums, g, local):
    """Same as ``_add_gradients``; also subtracts q s from the sums of g |s|^2 s, and adds q to the sum of q."""
    q = local[9]
    added = _add_gradients(sums[:10], g, local)
    total = q if len(sums) == 0 else sums[10] + q
    return added[:6] + (tl.fma(-q, local[5], added[6]), tl.fma(-q, local[6], added[7])) + added[8:] + (total,)


SURFEL_PLANE = dataclasses.replace(
    SURFEL,
    SUMS=11,
    locate=_plane_locate,
    features=_plane_features,
    features_vjp=_plane_features_vjp,
    add_gradients=_add_plane_gradients,
    HITS=True,
)
"""The surfel whose last feature is the depth at which the ray meets its plane."""
