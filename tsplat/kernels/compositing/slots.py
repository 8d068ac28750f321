"""Slots: memory for the sums of entries in the backward pass, and the gradients that are computed from them.

An intersection has a slot for each part of its tile that composited it: the list of the part has an entry, and a pixel
had not stopped before it. The gradients of later entries are zero. Slots are numbered in Gaussian-major order, so the
slots of a Gaussian are contiguous. On a GPU, two kernels count the slots of intersections, and write the rows and slots
of entries. On a CPU, the parts of a tile share a slot, the Gaussian-major index of the intersection. Nothing is
counted, and a program lists the entries of one part after the other.

After the walk, two kernels add up the slots of each Gaussian in a fixed order: the sums of the footprint, the gradients
of features, and two sums for absgrad. The second kernel also computes gradients from these sums.

Slots take much memory. A CPU computes them in **layers**, ranges of Gaussians by depth, the last layer first. As
Gaussian-major order is by depth, the slots of a layer are contiguous, and so are its intersections in each tile. A walk
stores the state of its pixels for the walk of the layer in front. Bits are the same as with a single layer.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...data import GaussianMajor, Intersections, PartLists, SplatGradients, Splats
from .. import launch
from ..device_math import load_tuple, store_tuple
from ..launch import Int, has_ptx, is_compiled_for_cpu, kernel, programs
from ..scans import prefix_sums
from .footprints.interface import LARGE
from .part_lists import BLOCK, PADDING, entry_index, entry_indices, number_of_entries, store_padding
from .tuning import longest_first
from .walk_arguments import BandTask, Entries

LN_2 = tl.constexpr(math.log(2.0))

LIST_BLOCK = tl.constexpr(16)
"""Number of intersections that a program lists at a time."""

GROUP, LANES, UNROLL = 16, 64, 8
"""Spans per program of ``_span_sum_kernel``, lanes of ``_row_sum_kernel``, and unroll factor of the loops of both."""

CPU_LANES = 256
"""Lanes of ``_row_sum_kernel`` on a CPU. A vector has the columns of one Gaussian, which are consecutive in memory."""

LAYER_BYTES, LAYERS_MAX = 2**22, 5
"""On a CPU, size of a layer's slots in bytes, and maximum number of layers: each layer costs 2 to 3 % of the time of a
call. GPUs have one layer, as all programs would wait for the longest list of each layer: four layers were predicted to
double the time of the backward pass."""


@triton.jit
def _find_slots(
    keys, bitmasks, bit_counts, walk_ends, n_words, first_key, n_tiles, index, PARTS: tl.constexpr, PTX: tl.constexpr
):
    """Finds the entries of intersections that have a slot.

    Returns:
        The results of ``entry_indices``; for each part, whether its entry has a slot (0 or 1); the number of slots.
    """
    # Intersections past the last one have the key of no tile; if all lists are empty, they are read.
    list_index = tl.minimum(tl.load(keys + index).to(tl.int32) - first_key, n_tiles - 1)
    entry_index, is_listed = entry_indices(bitmasks, bit_counts, n_words, index, PARTS, PTX)
    has_slot = ()
    count = tl.zeros_like(list_index)
    for part in tl.static_range(PARTS):
        is_walked = entry_index[part] < tl.load(walk_ends + list_index)
        has_slot = has_slot + (is_listed[part] & is_walked.to(tl.int32),)
        count += has_slot[part]
        list_index += n_tiles
    return entry_index, is_listed, has_slot, count


@kernel
def _slot_counts_kernel(
    gaussian_major_indices,  # [M] int32, see ``GaussianMajor``
    keys,  # [M] int16 or int32
    bitmasks,  # [parts, n_words] int32, or None if a tile is one part
    bit_counts,  # [parts n_words] int32, or None
    walk_ends,  # [lists] int32
    isect_offsets,  # [tiles + 1] int32, the last one is the number of intersections, at most n
    counts,  # [1 + M] int32, output
    n: "Int", n_words: "Int", first_key: "Int", n_tiles: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Counts the slots of each intersection, in Gaussian-major order, after a zero. One lane per intersection."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    major_index, n_listed = tl.load(gaussian_major_indices + tl.minimum(index, n - 1)), tl.load(isect_offsets + n_tiles)
    safe = tl.maximum(tl.minimum(index, n_listed - 1), 0)  # loads need no mask
    _, _, _, count = _find_slots(keys, bitmasks, bit_counts, walk_ends, n_words, first_key, n_tiles, safe, PARTS, PTX)
    tl.store(counts + 1 + major_index, tl.where(index < n_listed, count, 0), mask=index < n)
    tl.store(counts + index, index * 0, mask=index == 0)


@kernel
def _part_entries_kernel(
    flatten_ids,  # [M] int32
    gaussian_major_indices,  # [M] int32, see ``GaussianMajor``
    starts,  # [M + 1] int32, first slot of each intersection in Gaussian-major order
    keys,  # [M] int16 or int32
    bitmasks,  # [parts, n_words] int32, or None if a tile is one part
    bit_counts,  # [parts n_words] int32, or None
    walk_ends,  # [lists] int32
    isect_offsets,  # [tiles + 1] int32, the last one is the number of intersections
    isect_starts,  # [S + 1] int32, see ``GaussianMajor``
    entries,  # [PADDING + n_entries + PADDING] int64, output
    slot_starts,  # [S + 1] int32, output, first slot of each span
    n: "Int", n_words: "Int", first_key: "Int", n_tiles: "Int", n_spans: "Int",
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Writes the row and the slot of each entry of each list, and the first slot of each span.

    One lane per intersection, and one per span and for the end of the last span. Entries without a slot are written
    with an arbitrary slot, as walks load rows ahead.
    """
    first_index = tl.program_id(0) * BLOCK
    index = first_index + tl.arange(0, BLOCK)
    if first_index < n:
        n_listed = tl.load(isect_offsets + n_tiles)
        safe = tl.maximum(tl.minimum(index, n_listed - 1), 0)  # loads need no mask
        entry_index, is_listed, has_slot, count = _find_slots(
            keys, bitmasks, bit_counts, walk_ends, n_words, first_key, n_tiles, safe, PARTS, PTX
        )
        slot = tl.load(starts + tl.load(gaussian_major_indices + safe), mask=count > 0, other=0)
        entry = slot.to(tl.int64) << 32 | tl.load(flatten_ids + safe).to(tl.int64)
        for part in tl.static_range(PARTS):
            tl.store(entries + PADDING + entry_index[part], entry, mask=(index < n_listed) & (is_listed[part] != 0))
            entry += has_slot[part].to(tl.int64) << 32
        store_padding(entries, index, number_of_entries(isect_offsets, bit_counts, n_words, n_tiles, PARTS))
    is_span = index <= n_spans
    first = tl.load(isect_starts + index, mask=is_span, other=0)
    tl.store(slot_starts + index, tl.load(starts + first, mask=is_span, other=0), mask=is_span)


@kernel
def _layers_kernel(
    slot_starts,  # [S + 1] int32
    span_starts,  # [nnz + 1] int32
    slots,  # [M] int32, slot of each intersection, ascending in each tile
    isect_offsets,  # [tiles + 1] int32
    first_positions,  # [layers + 1] int32, output
    isect_starts,  # [layers + 1, tiles] int32, output
    n_rows: "Int", n_tiles: "Int", n_layers: "Int", layer_size: "Int",
    row_search_steps: "Int", isect_search_steps: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds the first Gaussian of each layer, and its first intersection in each tile. One lane per (layer, tile).

    Layer k starts with the first Gaussian whose first slot is at least k * ``layer_size``.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    layer, tile = index // n_tiles, index % n_tiles
    mask = layer <= n_layers
    low, high = layer * 0, layer * 0 + n_rows
    for _ in range(row_search_steps):
        middle = (low + high) // 2
        start = tl.load(slot_starts + tl.load(span_starts + middle, mask=mask, other=0), mask=mask, other=0)
        is_before = (start < layer * layer_size) & (middle < n_rows)
        low, high = tl.where(is_before, middle + 1, low), tl.where(is_before, high, middle)
    low = tl.where(layer == n_layers, n_rows, low)  # the last layer includes the Gaussians without a slot at the end
    tl.store(first_positions + layer, low, mask=mask & (tile == 0))
    start = tl.load(slot_starts + tl.load(span_starts + low, mask=mask, other=0), mask=mask, other=0)
    low, high = tl.load(isect_offsets + tile), tl.load(isect_offsets + tile + 1)
    end = high
    for _ in range(isect_search_steps):
        middle = (low + high) // 2
        is_before = (tl.load(slots + middle, mask=middle < end, other=0) < start) & (middle < end)
        low, high = tl.where(is_before, middle + 1, low), tl.where(is_before, high, middle)
    tl.store(isect_starts + index, low, mask=mask)


@triton.jit
def list_part(entries, layer, entry_range, part, n_tiles):
    """Lists the intersections of a part that belong to a layer, in the memory of the tile.

    Returns:
        The offset in ``entries.listed`` of entry 0; the first entry of the layer; the one after its last.
    """
    tile = entry_range.list_index - part * n_tiles
    starts = entries.isect_offsets + tile
    first, end = tl.load(starts), tl.load(starts + 1)
    if layer.isect_starts is not None:
        starts = layer.isect_starts + layer.number * n_tiles + tile
        first, end = tl.load(starts), tl.load(starts + n_tiles)
    bitmasks, bit_counts, n_words = entries.bitmasks, entries.bit_counts, entries.n_words
    first_entry, _ = entry_index(bitmasks, bit_counts, part, n_words, first, False)
    end_entry, _ = entry_index(bitmasks, bit_counts, part, n_words, end, False)
    for block in range(first, end, LIST_BLOCK):
        index = block + tl.arange(0, LIST_BLOCK)
        entry, is_listed = entry_index(bitmasks, bit_counts, part, n_words, tl.minimum(index, end - 1), False)
        tl.store(entries.listed + first + (entry - first_entry), index, mask=(index < end) & (is_listed != 0))
    begin = first_entry - entry_range.start.to(tl.int32)
    return (first - begin).to(tl.int64), begin, begin + (end_entry - first_entry)


@triton.jit
def _large_spans(slot_starts, positions, rows, large, layer, span, n_spans):
    """Returns the first slot and the number of slots of each span; 0 slots if the Gaussian is not large or not in the
    layer."""
    mask = span < n_spans
    start = tl.load(slot_starts + span, mask=mask, other=0)
    end = tl.load(slot_starts + span + 1, mask=mask, other=0)
    position = tl.load(positions + span, mask=mask, other=0)
    is_summed = tl.load(large + tl.load(rows + position, mask=mask, other=0), mask=mask, other=0) != 0
    if layer.first_positions is not None:
        first = layer.first_positions + layer.number
        is_summed &= (position >= tl.load(first)) & (position < tl.load(first + 1))
    return start.to(tl.int64), tl.where(is_summed, end - start, 0)


@kernel
def _span_sum_kernel(
    v_slots,  # [slots, width], the first slot of each span is output
    slot_starts,  # [S + 1] int32
    positions,  # [S] int32
    rows,  # [nnz] int32
    large,  # [nnz] bool
    layer: "Layer",
    n_spans: "Int", width: "Int", blocks: "Int",
    GROUP: tl.constexpr, UNROLL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Adds up the slots of each span of a large Gaussian, into its first slot. COLUMNS columns per program."""
    program = tl.program_id(0)
    span = (program // blocks).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    _start, lengths = _large_spans(slot_starts, positions, rows, large, layer, span, n_spans)
    longest = tl.max(lengths)
    if longest > 1:
        # Loaded again in the layout of slots.
        start, length = _large_spans(slot_starts, positions, rows, large, layer, span[:, None], n_spans)
        column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        remaining = tl.where(column < width, length, 0)
        if layer.first_positions is not None:
            start -= layer.first_slot
        address = v_slots + start * width + column
        total = tl.zeros([GROUP, COLUMNS], v_slots.dtype.element_ty)
        for base in range(0, longest, UNROLL):
            for k in tl.static_range(UNROLL):
                total += tl.load(address + (base + k) * width, mask=base + k < remaining, other=0.0)
        tl.store(address, total, mask=remaining > 1)


@triton.jit
def _sum_small(total, v_slots, first_slot, n_slots, column, WIDTH: tl.constexpr, UNROLL: tl.constexpr):
    """Adds the slots of each Gaussian to its total, in their order."""
    address = v_slots + first_slot.to(tl.int64) * WIDTH + column
    for base in range(0, tl.max(n_slots), UNROLL):
        for k in tl.static_range(UNROLL):
            total += tl.load(address + (base + k) * WIDTH, mask=base + k < n_slots, other=0.0)
    return total


@triton.jit
def _sum_large(
    total, v_slots, slot_starts, first_span, n_spans, start, column, WIDTH: tl.constexpr, UNROLL: tl.constexpr,
    SPANS_SUMMED: tl.constexpr,
):  # fmt: skip
    """Adds the sums of the spans of each Gaussian to its total, in their order.

    Args:
        first_span, n_spans: The first span and the number of spans of each Gaussian.
        start: The first slot of its first span.
        SPANS_SUMMED: Whether the first slot of a span holds the sum of the span.
    """
    if SPANS_SUMMED:
        for base in range(0, tl.max(n_spans), UNROLL):
            for k in tl.static_range(UNROLL):
                in_range = base + k < n_spans
                end = tl.load(slot_starts + first_span + base + k + 1, mask=in_range, other=0)
                total += tl.load(
                    v_slots + start.to(tl.int64) * WIDTH + column, mask=in_range & (start < end), other=0.0
                )
                start = end
    else:
        for span in range(tl.max(n_spans)):
            end = tl.load(slot_starts + first_span + span + 1, mask=span < n_spans, other=0)
            n_slots = tl.where(span < n_spans, end - start, 0)
            total += _sum_small(tl.zeros_like(total), v_slots, start, n_slots, column, WIDTH, UNROLL)
            start = end
    return total


@triton.jit
def _load_spans(index, mask, span_starts, rows, large, slot_starts):
    """Loads the first span of a position in depth order and the one after its last, its row, whether the Gaussian is
    large, and its first slot and the one after its last."""
    first_span = tl.load(span_starts + index, mask=mask, other=0)
    end_span = tl.load(span_starts + index + 1, mask=mask, other=0)
    row = tl.load(rows + index, mask=mask, other=0).to(tl.int64)
    is_large = tl.load(large + row, mask=mask, other=0) != 0
    first_slot = tl.load(slot_starts + first_span, mask=mask, other=0)
    end_slot = tl.load(slot_starts + end_span, mask=mask, other=0)
    return first_span, end_span, row, is_large, first_slot, end_slot


@triton.jit
def _per_column(values, COLUMNS: tl.constexpr):
    """Repeats each element of a tuple of tensors COLUMNS times."""
    ROWS: tl.constexpr = values[0].shape[0]
    repeated = ()
    for k in tl.static_range(len(values)):
        wide = tl.broadcast_to(values[k][:, None], [ROWS, COLUMNS])
        repeated = repeated + (tl.reshape(wide, [ROWS * COLUMNS]),)
    return repeated


@triton.jit
def _finish_rows(
    total, first_position, n_rows, rows, shapes, opacities, v_splats, FOOTPRINT: tl.constexpr,
    COLUMNS: tl.constexpr, FINISH_LANES: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of mean, shape and opacity from the sums of a footprint, one lane per Gaussian.

    Args:
        total: [LANES], sums ordered by Gaussian, then column.
        first_position, n_rows: The program's first position in depth order, and the number of positions.
    """
    LANES: tl.constexpr = total.shape[0]
    GROUP: tl.constexpr = LANES // COLUMNS
    SHAPE: tl.constexpr = FOOTPRINT.SHAPE
    SUMS: tl.constexpr = FOOTPRINT.SUMS
    position, sums = first_position + tl.arange(0, FINISH_LANES), ()
    exists = (position < first_position + GROUP) & (position < n_rows)
    for k in tl.static_range(SUMS):
        lanes = tl.minimum(tl.arange(0, FINISH_LANES) * COLUMNS + k, LANES - 1)
        sums = sums + (tl.gather(total, lanes, 0),)
    row = tl.load(rows + position, mask=exists, other=0).to(tl.int64)
    shape = load_tuple(shapes + row * SHAPE, 1, SHAPE, exists)
    opacity = tl.load(opacities + row, mask=exists, other=1.0)
    v_mean, v_shape, v_opacity = FOOTPRINT.finish(sums, shape, opacity)
    store_tuple(v_splats.v_means2d + row * 2, 1, v_mean, exists)
    store_tuple(v_splats.v_shapes + row * SHAPE, 1, v_shape, exists)
    tl.store(v_splats.v_opacities + row, v_opacity, mask=exists)


@kernel
def _row_sum_kernel(
    v_slots,  # [slots, WIDTH]; if SPANS_SUMMED, the first slot of a span of a large Gaussian holds the span's sum
    slot_starts,  # [S + 1] int32
    span_starts,  # [nnz + 1] int32
    rows,  # [nnz] int32
    large,  # [nnz] bool
    shapes,  # [nnz, FOOTPRINT.SHAPE]
    opacities,  # [nnz]
    layer: "Layer",
    v_splats: "SplatGradients",  # output; sums are added to if ACCUMULATE
    n_rows: "Int",
    FOOTPRINT: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr, LANES: tl.constexpr, FINISH_LANES: tl.constexpr, ACCUMULATE: tl.constexpr,
    SPANS_SUMMED: tl.constexpr, BY_ROW: tl.constexpr,
):  # fmt: skip
    """Adds up the slots of each Gaussian of a layer, and computes gradients from the sums. COLUMNS columns per program.

    One lane per Gaussian and column; then FINISH_LANES lanes, one per Gaussian, for mean, shape and opacity. With
    BY_ROW, COLUMNS is a power of two, and spans are loaded once per Gaussian.
    """
    GROUP: tl.constexpr = LANES // COLUMNS
    SUMS: tl.constexpr = FOOTPRINT.SUMS
    SUMS_WIDTH: tl.constexpr = (WIDTH + 3) // 4 * 4
    BLOCKS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program, lane = tl.program_id(0), tl.arange(0, LANES)
    group = (program // BLOCKS).to(tl.int64) * GROUP
    if layer.first_positions is not None:
        # The memory begins with the first slot of the layer. Numbers of slots count from the first layer.
        v_slots += tl.cast(layer.first_slot, tl.int64) * -WIDTH
        group += tl.load(layer.first_positions + layer.number)
        n_rows = tl.load(layer.first_positions + layer.number + 1)
    if group < n_rows:  # the grid has programs for all Gaussians, not only for those of the layer
        # The Gaussian and the column of each lane, its spans, and its slots.
        if BY_ROW:
            positions = group + tl.arange(0, GROUP)
            spans = _load_spans(positions, positions < n_rows, span_starts, rows, large, slot_starts)
            index, first_span, end_span, row, is_large, first_slot, end_slot = _per_column(
                (positions,) + spans, COLUMNS
            )
            columns = tl.broadcast_to(tl.arange(0, COLUMNS)[None, :], [GROUP, COLUMNS])
            column = program % BLOCKS * COLUMNS + tl.reshape(columns, [LANES])
            mask = (index < n_rows) & (column < WIDTH)
        else:
            index = group + lane // COLUMNS
            column = program % BLOCKS * COLUMNS + lane % COLUMNS
            mask = (lane < GROUP * COLUMNS) & (index < n_rows) & (column < WIDTH)
            first_span, end_span, row, is_large, first_slot, end_slot = _load_spans(
                index, mask, span_starts, rows, large, slot_starts
            )
        total = tl.zeros([LANES], v_slots.dtype.element_ty)
        if ACCUMULATE:
            total = tl.load(v_splats.sums + row * SUMS_WIDTH + column, mask=mask, other=0.0)

        # total <- total + slots of a small Gaussian; total <- total + sums of the spans of a large one
        n_slots = tl.where(is_large, 0, end_slot - first_slot)
        n_spans = tl.where(is_large, end_span - first_span, 0)
        if BY_ROW:
            n_slots = tl.where(column < WIDTH, n_slots, 0)
            n_spans = tl.where(column < WIDTH, n_spans, 0)
        total = _sum_small(total, v_slots, first_slot, n_slots, column, WIDTH, UNROLL)
        total = _sum_large(
            total, v_slots, slot_starts, first_span, n_spans, first_slot, column, WIDTH, UNROLL, SPANS_SUMMED
        )

        # Columns are sums of the footprint, gradients of features, and absgrad. The latter is with respect to base-2
        # exponents, hence ln 2.
        if v_splats.sums is not None:
            tl.store(v_splats.sums + row * SUMS_WIDTH + column, total, mask=mask)
        feature = column - SUMS
        tl.store(
            v_splats.v_features + row * FEATURES + feature, total, mask=mask & (feature >= 0) & (feature < FEATURES)
        )
        if v_splats.absgrad is not None:
            axis = column - (WIDTH - 2)
            tl.store(v_splats.absgrad + row * 2 + axis, total * LN_2, mask=mask & (axis >= 0))
        if program % BLOCKS == 0:
            _finish_rows(total, group, n_rows, rows, shapes, opacities, v_splats, FOOTPRINT, COLUMNS, FINISH_LANES)


class Layers(NamedTuple):
    """The layers in which slots are computed.

    Attributes:
        n: The number of layers.
        size: The approximate number of slots of a layer. The memory of layer k starts with slot k * size.
        first_positions: [layers + 1] int32, position in depth order of the first Gaussian of each layer, then nnz.
        isect_starts: [layers + 1, tiles] int32, first intersection of each layer in each tile.
        carry: [values, I, height, width], the pixel state that a walk stores for the layer in front.
    """

    n: int
    size: int
    first_positions: Tensor
    isect_starts: Tensor
    carry: Tensor


class Layer(NamedTuple):
    """A kernel argument: one of the :class:`Layers`. The defaults stand for a single layer.

    Attributes:
        number, first_slot: Index of the layer, and the first slot in its memory.
        n_pixels: Number of pixels of all images.
        first_positions, isect_starts, carry: As in :class:`Layers`.
    """

    number: int = 0
    first_slot: int = 0
    n_pixels: int = 0
    first_positions: Tensor | None = None
    isect_starts: Tensor | None = None
    carry: Tensor | None = None


class PartSlots(NamedTuple):
    """The slots of a band.

    Attributes:
        entries: The entries of all lists.
        slot_starts: [S + 1] int32, first slot of each span, see ``GaussianMajor``.
        v_slots: [slots, columns] of all entries or of a layer. Uninitialized if each slot is written once, else zero.
        launch_order: int64, order in which programs take lists, or tiles if they composite whole tiles; or None.
        parts_per_program, n_programs: Number of parts of a tile per program, and number of programs.
        layers: See :class:`Layers`; None for a single layer.
    """

    entries: Entries
    slot_starts: Tensor
    v_slots: Tensor
    launch_order: Tensor | None
    parts_per_program: int
    n_programs: int
    layers: Layers | None = None

    def back_to_front(self) -> list[Layer]:
        """Returns the layers back to front, the order in which they are computed."""
        if self.layers is None:
            return [Layer()]
        n, size, first_positions, isect_starts, carry = self.layers
        n_pixels = carry[0].numel()
        return [Layer(k, k * size, n_pixels, first_positions, isect_starts, carry) for k in reversed(range(n))]


def assign_slots(lists: PartLists, band: BandTask, records: Tensor, columns: int, n_carry: int | None) -> PartSlots:
    """Assigns slots to entries that a pixel passed, and allocates them. Requires ``gaussian_major`` of intersections.

    If ``lists.walk_ends`` is unknown, all entries get slots. On a CPU, one program composites all parts of a tile,
    which share one slot per intersection.

    Args:
        columns: Number of values of a slot.
        n_carry: Number of values per pixel that a walk stores for the layer in front; None for a single layer.
    """
    intersections = band.intersections
    isect_offsets, gaussian_major = intersections.isect_offsets, intersections.gaussian_major
    assert gaussian_major is not None
    n_lists = lists.offsets.numel() - 1
    parts_per_program = (
        n_lists // (isect_offsets.numel() - 1) if is_compiled_for_cpu(records) and lists.n_chunks == 0 else 1
    )
    layers = None
    if parts_per_program > 1:
        # The Gaussian-major index of an intersection is the slot of its entries.
        rows, indices = intersections.flatten_ids, gaussian_major.indices
        assert lists.bitmasks is not None
        n_words = lists.bitmasks.shape[1]
        entries = Entries(
            listed=torch.empty_like(rows),
            rows=rows,
            slots=indices,
            isect_offsets=isect_offsets,
            bitmasks=lists.bitmasks,
            bit_counts=lists.bit_counts,
            n_words=n_words,
        )
        slot_starts = gaussian_major.isect_starts
        launch_order, allocate, n_slots = (
            longest_first(isect_offsets),
            records.new_zeros,
            intersections.flatten_ids.numel(),
        )
        n_layers = min(-(-n_slots * columns * records.itemsize // LAYER_BYTES), LAYERS_MAX)
        slack = band.grid.tiles_per_image  # for the last Gaussian of a layer, which is not split
        size = -(-n_slots // max(n_layers, 1))
        # Lists have keys only if they were made in depth order.
        if n_carry is not None and intersections.keys is not None and n_slots > size + slack:
            camera = band.settings.camera
            carry = records.new_empty(n_carry, band.grid.n_images, camera.height, camera.width)
            layers = _find_layers(n_layers, size, isect_offsets, gaussian_major, carry)
            n_slots = size + slack
    else:
        walk_ends, launch_order = lists.offsets[1:] if lists.walk_ends is None else lists.walk_ends, lists.launch_order
        values, slot_starts = _entries(lists, intersections, gaussian_major, walk_ends)
        entries = Entries(values)
        allocate = records.new_zeros if lists.walk_ends is None else records.new_empty
        n_slots = lists.n_entries  # an upper bound: only the device knows the number
    n_programs = programs(lists.n_chunks + n_lists // parts_per_program, 1)
    v_slots = allocate(n_slots, columns)
    if launch.slots_hook is not None and parts_per_program == 1 and lists.n_walked is not None:
        launch.slots_hook(v_slots, lists.n_walked)
    return PartSlots(entries, slot_starts, v_slots, launch_order, parts_per_program, n_programs, layers)


def _find_layers(
    n_layers: int,
    size: int,
    isect_offsets: Tensor,
    gaussian_major: GaussianMajor,
    carry: Tensor,
) -> Layers:
    """Finds the starts of layers, for slots that are Gaussian-major indices of intersections."""
    n_tiles, span_starts = isect_offsets.numel() - 1, gaussian_major.span_starts
    first_positions = isect_offsets.new_empty(n_layers + 1)
    isect_starts = isect_offsets.new_empty(n_layers + 1, n_tiles)
    _layers_kernel.launch_elementwise(
        isect_starts.numel(),
        BLOCK,
        slot_starts=gaussian_major.isect_starts,
        span_starts=span_starts,
        slots=gaussian_major.indices,
        isect_offsets=isect_offsets,
        first_positions=first_positions,
        isect_starts=isect_starts,
        n_rows=span_starts.numel() - 1,
        n_tiles=n_tiles,
        n_layers=n_layers,
        layer_size=size,
        row_search_steps=span_starts.numel().bit_length(),
        isect_search_steps=gaussian_major.indices.numel().bit_length(),
    )
    return Layers(n_layers, size, first_positions, isect_starts, carry)


def _entries(
    lists: PartLists, intersections: Intersections, gaussian_major: GaussianMajor, walk_ends: Tensor
) -> tuple[Tensor, Tensor]:
    """Assigns slots to the entries before ``walk_ends``, contiguous for each Gaussian.

    Returns:
        ``listed`` of :class:`Entries`, [n_entries] int64, and the first slot of each span [S + 1].
    """
    parts, n_words = (1, 0) if lists.bitmasks is None else lists.bitmasks.shape
    n = gaussian_major.indices.numel()
    counts = walk_ends.new_empty(n + 1)
    arguments = {
        "n": n,
        "gaussian_major_indices": gaussian_major.indices,
        "keys": intersections.tile_keys(),
        "bitmasks": lists.bitmasks,
        "bit_counts": lists.bit_counts,
        "walk_ends": walk_ends,
        "isect_offsets": intersections.isect_offsets,
        "n_words": n_words,
        "first_key": intersections.first_tile - intersections.key_bias,
        "n_tiles": intersections.isect_offsets.numel() - 1,
        "PARTS": parts,
        "PTX": has_ptx(walk_ends),
    }
    _slot_counts_kernel.launch_elementwise(n, BLOCK, counts=counts, **arguments)
    starts = prefix_sums(counts)
    entries = torch.empty(lists.n_entries + 2 * PADDING.value, dtype=torch.int64, device=walk_ends.device)
    isect_starts = gaussian_major.isect_starts
    slot_starts, n_spans = torch.empty_like(isect_starts), isect_starts.numel() - 1
    _part_entries_kernel.launch_elementwise(
        max(n, n_spans + 1),
        BLOCK,
        flatten_ids=intersections.flatten_ids,
        starts=starts,
        isect_starts=isect_starts,
        entries=entries,
        slot_starts=slot_starts,
        n_spans=n_spans,
        **arguments,
    )
    return entries[PADDING.value : -PADDING.value], slot_starts


def sum_slots(
    slots: PartSlots,
    layer: Layer,
    gaussian_major: GaussianMajor,
    large: Tensor,
    v_splats: SplatGradients,
    splats: Splats,
    band: BandTask,
    *,
    accumulate: bool,
) -> None:
    """Adds up the slots of the Gaussians of a layer, and writes their gradients. Overwrites slots.

    With several bands, sums are stored in ``v_splats`` or added to it. The slots of a Gaussian are added in their
    order. The slots of `large` Gaussians [nnz] are first summed span by span, by a separate kernel if images have
    enough tiles for a large Gaussian. A span lies within a tile row, so bits do not depend on bands.
    """
    rows, n_spans, width = gaussian_major.rows, slots.slot_starts.numel() - 1, slots.v_slots.shape[1]
    unroll = 1 if is_compiled_for_cpu(large) else UNROLL  # on a CPU, parts share slots, so a Gaussian has few
    arguments: dict[str, Any] = {
        "v_slots": slots.v_slots,
        "slot_starts": slots.slot_starts,
        "rows": rows,
        "large": large,
        "layer": layer._replace(isect_starts=None, carry=None),
    }
    spans_first = band.grid.tiles_per_image > LARGE.value
    if is_compiled_for_cpu(large) and spans_first:
        spans_first = large.numpy().nonzero()[0].size > 0  # any() takes ten times as long
    if spans_first:
        columns = min(1 << (width - 1).bit_length(), 16)
        blocks = -(-width // columns)
        _span_sum_kernel.launch(
            programs(-(-n_spans // GROUP) * blocks, 1),
            **arguments,
            positions=gaussian_major.positions,
            n_spans=n_spans,
            width=width,
            blocks=blocks,
            GROUP=GROUP,
            COLUMNS=columns,
            UNROLL=unroll,
            num_warps=2,
        )
    by_row, lanes, columns = is_compiled_for_cpu(large), LANES, min(width, LANES)
    if by_row:
        lanes, columns = CPU_LANES, triton.next_power_of_2(columns)
    group, blocks = lanes // columns, -(-width // columns)
    _row_sum_kernel.launch(
        programs(-(-rows.numel() // group) * blocks, 1),
        **arguments,
        span_starts=gaussian_major.span_starts,
        shapes=splats.shapes,
        opacities=splats.opacities,
        v_splats=v_splats,
        n_rows=rows.numel(),
        FOOTPRINT=band.footprint,
        FEATURES=splats.n_features,
        WIDTH=width,
        COLUMNS=columns,
        UNROLL=unroll,
        LANES=lanes,
        FINISH_LANES=triton.next_power_of_2(group),
        ACCUMULATE=accumulate,
        SPANS_SUMMED=spans_first,
        BY_ROW=by_row,
        num_warps=1,
    )
