"""Sums of slots after the walk, and the gradients that are computed from them.

Two kernels add up the slots of each Gaussian in a fixed order: the sums of the footprint, the gradients of features,
and two sums for absgrad. The second kernel also computes gradients from these sums.
"""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ...data import GaussianMajor, SplatGradients, Splats
from ..device_math import load_tuple, store_tuple
from ..launch import Int, is_compiled_for_cpu, kernel, programs
from .footprints.interface import LARGE
from .slot_layers import Layer
from .slots import PartSlots
from .walk_arguments import BandTask

LN_2 = tl.constexpr(math.log(2.0))

GROUP, LANES, UNROLL = 16, 64, 8
"""Spans per program of ``_span_sum_kernel``, lanes of ``_row_sum_kernel``, and unroll factor of the loops of both."""

CPU_LANES = 256
"""Lanes of ``_row_sum_kernel`` on a CPU. A vector has the columns of one Gaussian, which are consecutive in memory."""


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
