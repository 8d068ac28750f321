"""Device functions of compositing: a program's tile, and a Gaussian at a pixel.

The exponent of alpha is in base 2 and includes the opacity: alpha = min(alpha_max, 2^e). Explicit fma, in kernels
compiled without further contraction, make forward and backward take bitwise the same decisions.
"""

import triton
import triton.language as tl

from .device_math import exp2, reciprocal

RECORD = tl.constexpr(8)
"""Values of a row's record: mean x, y; -a/2, -b, -c/2 of the conic times log2(e); log2(opacity); clamped opacity; 0."""

MOMENTS = tl.constexpr(6)
"""Sums over pixels that give the gradients of a Gaussian's mean, conic and opacity."""


@triton.jit
def load_list(
    program,
    tile_order,  # [tiles of the band] int64, or None
    isect_offsets,  # [tiles of the band + 1] int64
):
    """The tile in the band that a program composites, its first intersection, and their number."""
    if tile_order is not None:
        program = tl.load(tile_order + program).to(tl.int32)
    start = tl.load(isect_offsets + program).to(tl.int64)
    return program, start, (tl.load(isect_offsets + program + 1) - start).to(tl.int32)


@triton.jit
def tile_pixels(
    tile, part, width, height, tile_width, n_tiles, TILE: tl.constexpr, ROWS: tl.constexpr, dtype: tl.constexpr
):
    """Pixels of a part of a tile, ROWS rows of it.

    Returns:
        The tile's image; pixel centers in x [1, TILE] and y [ROWS, 1]; whether pixels are inside the image, and their
        flat index, [ROWS, TILE].
    """
    image = (tile // n_tiles).to(tl.int64)
    tile = tile % n_tiles
    x = tile % tile_width * TILE + tl.arange(0, TILE)[None, :]
    y = tile // tile_width * TILE + part * ROWS + tl.arange(0, ROWS)[:, None]
    return image, x.to(dtype) + 0.5, y.to(dtype) + 0.5, (x < width) & (y < height), (image * height + y) * width + x


@triton.jit
def zero_slots(v_slots, slots, first, count, slot_width, COLUMNS: tl.constexpr):
    """Zeroes the slots of intersections ``first`` to ``count``, those behind the last that any pixel added."""
    column = tl.arange(0, COLUMNS)
    zeros = tl.zeros([COLUMNS], v_slots.dtype.element_ty)
    for index in range(first, count):
        out = v_slots + tl.load(slots + index).to(tl.int64) * slot_width
        tl.store(out + column, zeros, mask=column < slot_width)


@triton.jit
def log2_alpha(record, dx, dy):
    """log2 of the unclamped alpha at offsets dx, dy from the mean. See :data:`RECORD`."""
    along_x = tl.fma(record[2] * dx, dx, record[5])
    return tl.fma(dy, tl.fma(record[4], dy, record[3] * dx), along_x)


@triton.jit
def clamped_alpha(record, e, APPROX: tl.constexpr):
    return tl.minimum(exp2(e, APPROX), record[6])


@triton.jit
def absorb(transmittance, alpha, TRANSMITTANCE_MIN: tl.constexpr):
    """One step front to back. Returns the weight alpha T, whether the Gaussian is added, and T behind it.

    A pixel that has stopped keeps its transmittance, with a negative sign.
    """
    weight = alpha * transmittance
    # Rounded once: subtracting the weight would lose digits near alpha = 1. Unlike -alpha, the factor -1 costs nothing.
    after = tl.fma(alpha * -1.0, transmittance, transmittance)
    added = after > TRANSMITTANCE_MIN
    return weight, added, tl.where(added, after, -tl.abs(transmittance))


@triton.jit
def absorb_vjp(transmittance, alpha, rest, v_dot_c, APPROX: tl.constexpr):
    """One step back to front.

    Args:
        transmittance: T behind the Gaussian.
        rest: Gradient of the loss with respect to ln(T) behind it.
        v_dot_c: Gradient of the loss with respect to its weight.

    Returns:
        T and ``rest`` in front of the Gaussian, its weight, and alpha dL/d alpha.
    """
    inverse = reciprocal(1.0 - alpha, APPROX)
    transmittance = transmittance * inverse
    weight = alpha * transmittance
    gained = weight * v_dot_c
    return transmittance, rest + gained, weight, tl.fma(-rest, alpha * inverse, gained)
