"""The ellipse of a projected 3D Gaussian: sigma = (a dx^2 + 2 b dx dy + c dy^2) / 2, with the conic (a, b, c).

A record holds the mean x, y, and -a/2, -b, -c/2 times log2(e). Gradients are linear in six *moments*: the sums over
pixels of g, g dx, g dy, g dx^2, g dx dy and g dy^2, with g = alpha dL/d alpha (Kerbl et al., "3D Gaussian Splatting",
2023, equation 2).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ...device_math import det2
from .interface import LARGE, LOG2_E, Footprint, rendered_shape


class EllipseForm(NamedTuple):
    """A quadratic form f = a x^2 + b x y + c y^2 of offsets from the mean. The splat is visible where f <= level.

    Attributes:
        a, b, c: The coefficients. For an ellipse, f is log2(opacity / alpha).
        level: The largest f at which alpha may reach ALPHA_MIN.
        slope_x, slope_y: For fixed y, f is smallest at x = slope_x y; for fixed x, at y = slope_y x.
    """

    a: Any
    b: Any
    c: Any
    level: Any
    slope_x: Any
    slope_y: Any


class EllipseBound(NamedTuple):
    """The form of a splat, and the offset of a tile's first pixel from the mean."""

    form: Any
    left: Any
    top: Any


@triton.jit
def _pack(mean, c, visible):
    # Invalid: values that are not finite, and conics that are indefinite by more than rounding errors.
    valid = (c[0] >= 0.0) & (c[2] >= 0.0) & (c[1] * c[1] <= c[0] * c[2] * 1.0001)
    valid = valid & visible & (mean[0] * 0.0 + mean[1] * 0.0 + c[0] * 0.0 + c[1] * 0.0 + c[2] * 0.0 == 0.0)
    x = tl.where(valid, mean[0], 0.0)
    y = tl.where(valid, mean[1], 0.0)
    a = tl.where(valid, c[0] * (-0.5 * LOG2_E), 0.0)
    b = tl.where(valid, c[1] * -LOG2_E, 0.0)
    return (x, y, a, b, tl.where(valid, c[2] * (-0.5 * LOG2_E), 0.0)), valid


@triton.jit
def _is_large(c, opacity, TILE: tl.constexpr, ALPHA_MIN: tl.constexpr):
    """Returns whether the bounding box of the visible ellipse may touch more than LARGE tiles."""
    level = 2.0 * tl.log(tl.maximum(opacity / ALPHA_MIN, 1.0))
    det = det2(c)
    # The box is 2 sqrt(level c / det) / TILE tiles wide. It touches at most one tile more than that, rounded up.
    scale = 2.0 / TILE * tl.sqrt(level / tl.where(det > 0.0, det, 1.0))
    tiles = (scale * tl.sqrt(tl.maximum(c[0], 0.0)) + 1.0) * (scale * tl.sqrt(tl.maximum(c[2], 0.0)) + 1.0)
    return (det <= 0.0) | (tiles > LARGE)


@triton.jit
def _bound(record, x, y, TILE: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr):
    """Returns the :class:`EllipseBound` of a record in the tile whose first pixel is (x, y)."""
    a = -record[2]
    b = -record[3]
    c = -record[4]
    left = x - record[0]
    top = y - record[1]
    # A tolerance for the rounding of this test and of compositing, which is proportional to the terms that cancel.
    far_x = tl.maximum(tl.abs(left), tl.abs(left + (TILE - 1)))
    far_y = tl.maximum(tl.abs(top), tl.abs(top + (TILE - 1)))
    terms = a * far_x * far_x + tl.abs(b) * far_x * far_y + c * far_y * far_y
    level = record[5] - LOG2_ALPHA_MIN + 1e-3 + terms * 1e-6
    # A valid conic may still be indefinite by more than rounding. It has no minimum, so the test always passes.
    level = tl.where(b * b > 4.000002 * a * c, float("inf"), level)
    slope_x = tl.where(a > 0.0, -0.5 * b / tl.where(a > 0.0, a, 1.0), 0.0)
    slope_y = tl.where(c > 0.0, -0.5 * b / tl.where(c > 0.0, c, 1.0), 0.0)
    form = EllipseForm(a=a, b=b, c=c, level=level, slope_x=slope_x, slope_y=slope_y)
    return EllipseBound(form=form, left=left, top=top)


@triton.jit
def reaches_rectangle(form, low_x, high_x, low_y, high_y):
    """Returns whether f <= level at any point of a rectangle of offsets from the mean."""
    a, b, c = form.a, form.b, form.c
    # The minimum over the rectangle is on the vertical or on the horizontal line that is closest to the mean.
    x = tl.minimum(tl.maximum(low_x, 0.0), high_x)
    y = tl.minimum(tl.maximum(x * form.slope_y, low_y), high_y)
    on_column = (a * x + b * y) * x + c * y * y
    y = tl.minimum(tl.maximum(low_y, 0.0), high_y)
    x = tl.minimum(tl.maximum(y * form.slope_x, low_x), high_x)
    on_row = (a * x + b * y) * x + c * y * y
    return tl.minimum(on_column, on_row) <= form.level


@triton.jit
def _reaches(bound, X: tl.constexpr, Y: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):
    low_x = bound.left + X
    high_x = low_x + (WIDTH - 1)
    low_y = bound.top + Y
    high_y = low_y + (HEIGHT - 1)
    return reaches_rectangle(bound.form, low_x, high_x, low_y, high_y)


@triton.jit
def _locate(record, pixel):
    """Returns the offset (dx, dy) from the mean."""
    return pixel[0] - record[0], pixel[1] - record[1]


@triton.jit
def _log2_alpha(record, local):
    # log2(alpha) = log2(o) - log2(e) (a dx^2 / 2 + b dx dy + c dy^2 / 2)
    along_x = tl.fma(record[2] * local[0], local[0], record[5])
    return tl.fma(local[1], tl.fma(record[4], local[1], record[3] * local[0]), along_x)


@triton.jit
def _add_gradients(sums, g, local):
    """Adds g, g dy and g dy^2 to sums. ``expand`` computes the moments with dx, which is constant in a column."""
    g_dy = g * local[1]
    if len(sums) == 0:
        return g, g_dy, g_dy * local[1]
    else:
        return sums[0] + g, sums[1] + g_dy, tl.fma(g_dy, local[1], sums[2])


@triton.jit
def _expand(sums, local):
    """Returns the six moments from the sums over a column of pixels."""
    g_dx = sums[0] * local[0]
    return sums[0], g_dx, sums[1], g_dx * local[0], sums[1] * local[0], sums[2]


@triton.jit
def _slopes(record, g, local):
    # |g d log2(alpha) / d mean|
    slope_x = tl.fma(2.0 * record[2], local[0], record[3] * local[1])
    slope_y = tl.fma(2.0 * record[4], local[1], record[3] * local[0])
    return tl.abs(g * slope_x), tl.abs(g * slope_y)


@triton.jit
def _finish(moment, c, opacity):
    # v_mean = conic (sum g dx, sum g dy);  v_conic = (-sum g dx^2 / 2, -sum g dx dy, -sum g dy^2 / 2);  v_o = sum g / o
    c = rendered_shape(moment[1:], c, 2)
    v_mean = (c[0] * moment[1] + c[1] * moment[2], c[1] * moment[1] + c[2] * moment[2])
    v_conic = (-0.5 * moment[3], -moment[4], -0.5 * moment[5])
    return v_mean, v_conic, tl.where(opacity > 0.0, moment[0] / opacity, 0.0)


ELLIPSE = Footprint(
    SHAPE=3,
    VALUES=5,
    SUMS=6,
    BY_COLUMN=2,
    pack=_pack,
    is_large=_is_large,
    bound=_bound,
    reaches=_reaches,
    locate=_locate,
    log2_alpha=_log2_alpha,
    add_gradients=_add_gradients,
    expand=_expand,
    slopes=_slopes,
    finish=_finish,
)
