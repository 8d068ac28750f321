"""The ellipse in an image whose columns wrap. Each pixel evaluates the closest periodic copy of a splat.

A *shape* is a conic and the period, the pixels of 360 degrees. A record holds the values of the ellipse, the period and
its inverse.
"""

import dataclasses

import triton
import triton.language as tl

from .ellipse import ELLIPSE, _bound, _finish, _log2_alpha, _pack, _slopes, reaches_rectangle


@triton.jit
def _of_ellipse(record):
    """Returns the record of the ellipse: the values of its ``pack``, and log2(opacity)."""
    return record[:5] + record[7:8]


@triton.jit
def _pack_with_period(mean, shape, visible):
    period = shape[3]
    has_period = (period > 0.0) & (period * 0.0 == 0.0)
    values, valid = _pack(mean, shape[:3], visible & has_period)
    period = tl.where(has_period, period, 1.0)
    return values + (period, 1.0 / period), valid


@triton.jit
def _whole_periods(record, difference):
    """Returns the multiple of the period that is closest to a difference of columns. Subtracting it gives the shorter
    way around."""
    return record[5] * tl.floor(difference * record[6] + 0.5)


@triton.jit
def _bound_copies(record, x, y, TILE: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr):
    """Returns the bound of the copy closest to the middle of the tile, and the offset of the second closest copy."""
    period = record[5]
    middle = x - record[0] + 0.5 * (TILE - 1)
    whole_periods = _whole_periods(record, middle)
    bound = _bound(_of_ellipse(record), x - whole_periods, y, TILE, LOG2_ALPHA_MIN)
    return bound, tl.where(middle - whole_periods > 0.0, -period, period)


@triton.jit
def _reaches_copies(bound, X: tl.constexpr, Y: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):
    """Returns whether one of the two closest copies reaches the part, as its pixels may evaluate different copies."""
    ellipse, aside = bound
    low_x = ellipse.left + X
    low_y = ellipse.top + Y
    reached = reaches_rectangle(ellipse.form, low_x, low_x + (WIDTH - 1), low_y, low_y + (HEIGHT - 1))
    low_x += aside
    return reached | reaches_rectangle(ellipse.form, low_x, low_x + (WIDTH - 1), low_y, low_y + (HEIGHT - 1))


@triton.jit
def _locate(record, pixel):
    """Returns the offset (dx, dy) from the mean of the closest copy. dx is constant in a column, as for the ellipse."""
    dx = pixel[0] - record[0]
    return dx - _whole_periods(record, dx), pixel[1] - record[1]


@triton.jit
def _log2_alpha_of_copy(record, local):
    return _log2_alpha(_of_ellipse(record), local)


@triton.jit
def _slopes_of_copy(record, g, local):
    return _slopes(_of_ellipse(record), g, local)


@triton.jit
def _finish_with_period(moment, shape, opacity):
    """Returns the gradients of the ellipse, and 0 for the period."""
    v_mean, v_conic, v_opacity = _finish(moment, shape[:3], opacity)
    return v_mean, v_conic + (v_opacity * 0.0,), v_opacity


WRAPPED = dataclasses.replace(
    ELLIPSE,
    SHAPE=4,
    VALUES=7,
    pack=_pack_with_period,
    bound=_bound_copies,
    reaches=_reaches_copies,
    locate=_locate,
    log2_alpha=_log2_alpha_of_copy,
    slopes=_slopes_of_copy,
    finish=_finish_with_period,
)
