"""Device functions of compositing: a program's tile, and a Gaussian at a pixel.

The exponent of alpha is in base 2 and includes the opacity: alpha = min(alpha_max, 2^e). Explicit fma, in kernels
compiled without further contraction, make forward and backward take bitwise the same decisions.
"""

import triton
import triton.language as tl

from .device_math import constant, exp2, reciprocal

GEOMETRY = tl.constexpr(7)
"""First values of a row's record: mean x, y; -a/2, -b, -c/2 of the conic times log2(e); log2(opacity); clamped opacity.
Features may follow."""

RECORD = tl.constexpr(8)
"""Values of a record without features."""

ZEROED = tl.constexpr(16)
"""Slots that are zeroed at a time."""

MOMENTS = tl.constexpr(6)
"""Sums over pixels that give the gradients of a Gaussian's mean, conic and opacity."""


@triton.jit
def load_list(program, order, offsets, later=0):
    """The list that a program composites, its first entry, and the number of entries.

    Args:
        order: [lists] int64, or None for the order of lists.
        offsets: [lists + 1] int64.
        later: Added to the list.
    """
    if order is not None:
        program = tl.load(order + program).to(tl.int32)
    program += later
    start = tl.load(offsets + program).to(tl.int64)
    return program, start, (tl.load(offsets + program + 1) - start).to(tl.int32)


@triton.jit
def load_range(program, order, offsets, segment_lists, segment_starts, n_segments, SEGMENT: tl.constexpr, later=0):
    """The entries that a program composites: a segment of a long list, or a list that is not cut.

    Args:
        order, offsets, later: As for ``load_list``. Lists that are cut may not be later.
        segment_lists: [n_segments] int64 and ``segment_starts`` [lists + 1] int64, see ``PartLists``; None if there are
            none.

    Returns:
        The list; its first entry; begin and end of the range in the list; the list's first and last segment, and
        whether the program has a segment.
    """
    if segment_lists is None:
        index, start, count = load_list(program, order, offsets, later)
        return index, start, 0, count, 0, 0, False
    else:
        is_segment = program < n_segments
        index, start, count = load_list(tl.maximum(program - n_segments, 0), order, offsets)
        if is_segment:
            index = tl.load(segment_lists + program).to(tl.int32)
            start = tl.load(offsets + index).to(tl.int64)
            count = (tl.load(offsets + index + 1) - start).to(tl.int32)
        first_segment = tl.load(segment_starts + index).to(tl.int32)
        end_segment = tl.load(segment_starts + index + 1).to(tl.int32)
        begin = tl.where(is_segment, (program - first_segment) * SEGMENT, 0)
        # A list that is cut is left to the programs of its segments.
        end = tl.where(is_segment, tl.minimum(begin + SEGMENT, count), tl.where(first_segment < end_segment, 0, count))
        return index, start, begin, end, first_segment, end_segment, is_segment


@triton.jit
def part_pixels(
    tile, part, block: tl.constexpr, width, height, tile_width, n_tiles,
    TILE: tl.constexpr, PART_WIDTH: tl.constexpr, PART_HEIGHT: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Pixels of a block of a part of a tile.

    Returns:
        The tile's image; pixel centers in x [1, BLOCK_WIDTH] and y [BLOCK_HEIGHT, 1]; whether pixels are inside the
        image, their flat index in the images, and their place in the part, [BLOCK_HEIGHT, BLOCK_WIDTH].
    """
    PARTS_ACROSS: tl.constexpr = TILE // PART_WIDTH
    BLOCKS_ACROSS: tl.constexpr = PART_WIDTH // BLOCK_WIDTH
    image = (tile // n_tiles).to(tl.int64)
    tile = tile % n_tiles
    left = tile % tile_width * TILE + part % PARTS_ACROSS * PART_WIDTH
    top = tile // tile_width * TILE + part // PARTS_ACROSS * PART_HEIGHT
    own_x = block % BLOCKS_ACROSS * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)[None, :]
    own_y = block // BLOCKS_ACROSS * BLOCK_HEIGHT + tl.arange(0, BLOCK_HEIGHT)[:, None]
    x = left + own_x
    y = top + own_y
    inside = (x < width) & (y < height)
    pixel = (image * height + y) * width + x
    return image, x.to(dtype) + 0.5, y.to(dtype) + 0.5, inside, pixel, own_y * PART_WIDTH + own_x


@triton.jit
def entry_row(entry):
    """Row of an entry of a list of the backward pass."""
    return entry.to(tl.int32)


@triton.jit
def entry_slot(entry):
    """Slot of an entry of a list of the backward pass. int64"""
    return (entry >> 32).to(tl.uint32).to(tl.int64)


@triton.jit
def load_row(entries, index):
    """Rows of the entries at an index, where registers are too few for the slots as well."""
    return tl.load(entries.to(tl.pointer_type(tl.int32)) + 2 * index)


@triton.jit
def load_slot(entries, index, mask=None):
    """Slots of the entries at an index. int64"""
    slot = tl.load(entries.to(tl.pointer_type(tl.int32)) + 2 * index + 1, mask=mask)
    return slot.to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit
def zero_slots(v_slots, entries, first, count, slot_width, COLUMNS: tl.constexpr):
    """Zeroes the slots of entries ``first`` to ``count``, those behind the last that any pixel added."""
    column = tl.arange(0, COLUMNS)[None, :]
    zeros = tl.zeros([ZEROED, COLUMNS], v_slots.dtype.element_ty)
    for base in range(first, count, ZEROED):
        index = base + tl.arange(0, ZEROED)
        slot = load_slot(entries, index, index < count)
        out = v_slots + slot[:, None] * slot_width + column
        tl.store(out, zeros, mask=(index < count)[:, None] & (column < slot_width))


@triton.jit
def log2_alpha(record, dx, dy):
    """log2 of the unclamped alpha at offsets dx, dy from the mean. See :data:`RECORD`."""
    along_x = tl.fma(record[2] * dx, dx, record[5])
    return tl.fma(dy, tl.fma(record[4], dy, record[3] * dx), along_x)


@triton.jit
def clamped_alpha(record, e, APPROX: tl.constexpr):
    """Alpha clamped to alpha_max, where it is not below the threshold."""
    if not APPROX:
        # Underflow would cost CPUs a hundred cycles.
        e = tl.maximum(e, -126.0)
    return tl.minimum(exp2(e, APPROX), record[6])


@triton.jit
def absorb(transmittance, alpha, TRANSMITTANCE_MIN: tl.constexpr):
    """One step front to back. Returns the weight alpha T, whether the Gaussian is added, and T behind it.

    A pixel that has stopped keeps its transmittance, with a negative sign.
    """
    weight = alpha * transmittance
    # Rounded once: subtracting the weight would lose digits near alpha = 1. Unlike -alpha, the factor -1 costs nothing.
    after = tl.fma(alpha * -1.0, transmittance, transmittance)
    added = after > constant(TRANSMITTANCE_MIN, after)
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
