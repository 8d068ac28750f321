"""Sums over the intersections of each Gaussian: from slots to moments and feature gradients, and to gradients.

The slots of a Gaussian are contiguous. Rows of ``sums`` hold the six moments of ``compositing.py``, the gradients of
features, and two sums for absgrad.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..data import CompositingSettings, GaussianMajor, SplatGradients
from .device_math import load_tuple
from .launch import Int, kernel, launch, launch_elementwise, programs
from .tile_math import MOMENTS

BLOCK = 128

LN_2 = tl.constexpr(math.log(2.0))

GROUP, CHUNK = 8, 4
"""Spans or Gaussians of a program of the sums, and how often their loops are unrolled."""


@kernel
def _span_sum_kernel(
    v_slots,  # [K, width], the first slot of each span is output
    slot_starts,  # [S + 1] int64
    n_spans: "Int", width: "Int", blocks: "Int",
    GROUP: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Adds the slots of each span, COLUMNS columns of them, into its first slot. One lane per span and column."""
    program = tl.program_id(0)
    span = (program // blocks).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = span < n_spans
    start = tl.load(slot_starts + span, mask=mask, other=0)
    length = (tl.load(slot_starts + span + 1, mask=mask, other=0) - start).to(tl.int32)
    remaining = tl.where(column < width, length[:, None], 0)
    first = v_slots + start[:, None] * width + column
    total = tl.zeros([GROUP, COLUMNS], v_slots.dtype.element_ty)
    for base in range(0, tl.max(length), CHUNK):
        for k in tl.static_range(CHUNK):
            total += tl.load(first + (base + k) * width, mask=base + k < remaining, other=0.0)
    tl.store(first, total, mask=remaining > 1)


@kernel
def _row_sum_kernel(
    v_slots,  # [K, width], each span's sum in its first slot
    slot_starts,  # [S + 1] int64
    span_starts,  # [nnz + 1] int64
    rows,  # [nnz] int64
    sums,  # [nnz, width], added to
    n_rows: "Int", width: "Int", blocks: "Int",
    GROUP: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """sums[rows[i]] += the spans of the i-th Gaussian, COLUMNS columns of them. One lane per Gaussian and column."""
    program = tl.program_id(0)
    index = (program // blocks).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = index < n_rows
    first = tl.load(span_starts + index, mask=mask, other=0)
    count = (tl.load(span_starts + index + 1, mask=mask, other=0) - first).to(tl.int32)
    row = tl.load(rows + index, mask=mask, other=0).to(tl.int64)
    address = sums + row[:, None] * width + column
    kept = (count[:, None] > 0) & (column < width)
    total = tl.load(address, mask=kept, other=0.0)
    for base in range(0, tl.max(count), CHUNK):
        for k in tl.static_range(CHUNK):
            here = base + k < count
            start = tl.load(slot_starts + first + base + k, mask=here, other=0)
            end = tl.load(slot_starts + first + base + k + 1, mask=here, other=0)
            filled = (start < end)[:, None] & (column < width)
            total += tl.load(v_slots + start[:, None] * width + column, mask=filled, other=0.0)
    tl.store(address, total, mask=kept)


@kernel
def _moments_kernel(
    sums,  # [nnz, width]
    conics,  # [nnz, 3]
    opacities,  # [nnz]
    v_means2d,  # [nnz, 2], output
    v_conics,  # [nnz, 3], output
    v_opacities,  # [nnz], output
    absgrad,  # [nnz, 2], output, or None
    n_rows: "Int", width: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of mean, conic and opacity from the moments of g."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    moment = load_tuple(sums + row * width, 1, MOMENTS, mask)
    c = load_tuple(conics + row * 3, 1, 3, mask)
    opacity = tl.load(opacities + row, mask=mask, other=1.0)
    tl.store(v_means2d + row * 2, c[0] * moment[1] + c[1] * moment[2], mask=mask)
    tl.store(v_means2d + row * 2 + 1, c[1] * moment[1] + c[2] * moment[2], mask=mask)
    tl.store(v_conics + row * 3, -0.5 * moment[3], mask=mask)
    tl.store(v_conics + row * 3 + 1, -moment[4], mask=mask)
    tl.store(v_conics + row * 3 + 2, -0.5 * moment[5], mask=mask)
    tl.store(v_opacities + row, tl.where(opacity > 0.0, moment[0] / opacity, 0.0), mask=mask)
    if absgrad is not None:
        for k in tl.static_range(2):
            slope = tl.load(sums + row * width + width - 2 + k, mask=mask, other=0.0)
            tl.store(absgrad + row * 2 + k, slope * LN_2, mask=mask)


def sum_slots(v_slots: Tensor, order: GaussianMajor, sums: Tensor) -> None:
    """Adds the slots [K, width] of each Gaussian to its row of sums [nnz, width]. Overwrites slots.

    Each span is summed first and then added to the total, so that bits do not depend on the split into bands.
    """
    n_spans, n_rows, width = order.slot_starts.numel() - 1, order.rows.numel(), sums.shape[1]
    columns = min(triton.next_power_of_2(width), 32)
    blocks = triton.cdiv(width, columns)
    arguments = {
        "v_slots": v_slots,
        "slot_starts": order.slot_starts,
        "width": width,
        "blocks": blocks,
        "GROUP": GROUP,
        "CHUNK": CHUNK,
        "COLUMNS": columns,
        "num_warps": 1,
    }
    launch(_span_sum_kernel, programs(triton.cdiv(n_spans, GROUP) * blocks, 1), n_spans=n_spans, **arguments)
    launch(
        _row_sum_kernel,
        programs(triton.cdiv(n_rows, GROUP) * blocks, 1),
        span_starts=order.span_starts,
        rows=order.rows,
        sums=sums,
        n_rows=n_rows,
        **arguments,
    )


def sum_columns(n_features: int, absgrad: bool) -> int:
    """Returns the columns of the sums that :func:`composite_bwd` adds to: moments, features, and two for absgrad."""
    return int(MOMENTS.value) + n_features + 2 * absgrad


def composite_gradients(
    sums: Tensor, conics: Tensor, opacities: Tensor, n_features: int, settings: CompositingSettings
) -> SplatGradients:
    """Computes the gradients of rows from their sums.

    Args:
        sums: [nnz, columns of :func:`sum_columns`].
        conics, opacities: [nnz, 3], [nnz].
    """
    n_rows = opacities.numel()
    v_means2d, v_conics, v_opacities = sums.new_empty(n_rows, 2), torch.empty_like(conics), torch.empty_like(opacities)
    absgrad = torch.empty_like(v_means2d) if settings.absgrad else None
    launch_elementwise(
        _moments_kernel,
        n_rows,
        BLOCK,
        sums=sums,
        conics=conics,
        opacities=opacities,
        v_means2d=v_means2d,
        v_conics=v_conics,
        v_opacities=v_opacities,
        absgrad=absgrad,
        n_rows=n_rows,
        width=sums.shape[1],
    )
    v_features = sums[:, MOMENTS.value : MOMENTS.value + n_features]
    return SplatGradients(v_means2d, v_conics, v_opacities, v_features, absgrad)
