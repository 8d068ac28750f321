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

GROUP, CHUNK = 4, 8
"""Gaussians of a program of the segment sum, and slots of each that it loads at a time."""

LN_2 = tl.constexpr(math.log(2.0))


@kernel
def _segment_sum_kernel(
    v_slots,  # [M, width]
    slot_starts,  # [S + 1] int64
    span_starts,  # [nnz + 1] int64
    rows,  # [nnz] int64
    sums,  # [nnz, width], added to
    n_segments: "Int", width: "Int", blocks: "Int",
    GROUP: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """sums[rows[i]] += the slots of the i-th Gaussian's spans, COLUMNS columns of them.

    Each span is summed first and then added to the total, so that bits do not depend on the split into bands.
    """
    program = tl.program_id(0)
    segment = (program // blocks).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    mask = segment < n_segments
    first = tl.load(span_starts + segment, mask=mask, other=0)
    count = tl.load(span_starts + segment + 1, mask=mask, other=0) - first
    row = tl.load(rows + segment, mask=mask, other=0).to(tl.int64)
    address = sums + row[:, None] * width + column[None, :]
    kept = mask[:, None] & (column < width)[None, :]
    total = tl.load(address, mask=kept, other=0.0)
    for span in range(0, tl.max(count)):
        here = mask & (span < count)
        start = tl.load(slot_starts + first + span, mask=here, other=0)
        end = tl.load(slot_starts + first + span + 1, mask=here, other=0)
        span_sum = tl.zeros([GROUP, COLUMNS], v_slots.dtype.element_ty)
        for base in range(0, tl.max(end - start), CHUNK):
            slot = start[:, None] + base + tl.arange(0, CHUNK)[None, :]
            inside = (slot < end[:, None])[:, :, None] & (column < width)[None, None, :]
            values = tl.load(v_slots + slot[:, :, None] * width + column[None, None, :], mask=inside, other=0.0)
            span_sum += tl.sum(values, 1)
        total += span_sum
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
    """Adds the slots [M, width] of each Gaussian to its row of sums [nnz, width]."""
    n_rows, width = order.rows.numel(), sums.shape[1]
    columns = min(triton.next_power_of_2(width), 32)
    blocks = triton.cdiv(width, columns)
    launch(
        _segment_sum_kernel,
        programs(triton.cdiv(n_rows, GROUP) * blocks, 1),
        v_slots=v_slots,
        slot_starts=order.slot_starts,
        span_starts=order.span_starts,
        rows=order.rows,
        sums=sums,
        n_segments=n_rows,
        width=width,
        blocks=blocks,
        GROUP=GROUP,
        CHUNK=CHUNK,
        COLUMNS=columns,
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
