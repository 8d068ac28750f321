"""The ellipse of a projected 3D Gaussian, evaluated at a given position in each pixel instead of the pixel center.

The *pixel* is a ray from 0 in the direction (x, y, 1), with the position (x, y) anywhere in the square of the pixel.
Records and sums are those of the ellipse, except that no sums are by column, as dx differs within a column of pixels.
"""

import dataclasses

import triton
import triton.language as tl

from .ellipse import ELLIPSE, _bound, _reaches
from .interface import keep_sums


@triton.jit
def _bound_squares(record, x, y, TILE: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr):
    """Returns the bound of the ellipse for a tile that extends to the corners of its pixels."""
    return _bound(record, x - 0.5, y - 0.5, TILE + 1, LOG2_ALPHA_MIN)


@triton.jit
def _reaches_squares(bound, X: tl.constexpr, Y: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):
    return _reaches(bound, X, Y, WIDTH + 1, HEIGHT + 1)


@triton.jit
def _locate(record, pixel):
    """Returns the offset (dx, dy) from the mean."""
    return pixel[3] - record[0], pixel[4] - record[1]


@triton.jit
def _add_gradients(sums, g, local):
    """Adds the six moments of a pixel to sums."""
    g_dx = g * local[0]
    g_dy = g * local[1]
    if len(sums) == 0:
        return g, g_dx, g_dy, g_dx * local[0], g_dx * local[1], g_dy * local[1]
    else:
        return (
            sums[0] + g, sums[1] + g_dx, sums[2] + g_dy,
            tl.fma(g_dx, local[0], sums[3]), tl.fma(g_dx, local[1], sums[4]), tl.fma(g_dy, local[1], sums[5]),
        )  # fmt: skip


SHIFTED = dataclasses.replace(
    ELLIPSE,
    BY_COLUMN=0,
    bound=_bound_squares,
    reaches=_reaches_squares,
    locate=_locate,
    add_gradients=_add_gradients,
    expand=keep_sums,
)
