"""Packed rows of calls that replay passes: rows of the Gaussians that a camera sees, one after the other.

Passes project without packing, as the sizes of their tensors must not depend on values; when the stages run, the
projection packs. The inclusive prefix sum of whether a row is visible is its packed row, plus 1. The number of packed
rows is known on the device only, so kernels have a lane for each row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..data import Limit
from .device_math import load_tuple, store_tuple
from .launch import Int, kernel
from .scans import prefix_sums

BLOCK = 256


@kernel
def _visible_rows_kernel(
    radii,  # [n, 2] int32
    visible,  # [n] int32, 1 or 0, output
    n: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    radius = tl.load(radii + 2 * row, mask=row < n, other=0)
    tl.store(visible + row, (radius != 0).to(tl.int32), mask=row < n)


@kernel
def _pack_rows_kernel(
    row_counts,  # [n] int32, inclusive prefix sum of whether rows are packed
    values,  # [n, 2]
    ids,  # [packed] int64, output
    packed,  # [packed, 2], output
    n: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    packed_row = tl.load(row_counts + row - 1, mask=(row > 0) & (row < n), other=0).to(tl.int64)
    is_packed = (row < n) & (tl.load(row_counts + row, mask=row < n, other=0) > packed_row)
    tl.store(ids + packed_row, row, mask=is_packed)
    store_tuple(packed + 2 * packed_row, 1, load_tuple(values + 2 * row, 1, 2, is_packed), is_packed)


@triton.jit
def _packed_lanes(ids, n_packed, BLOCK: tl.constexpr):
    """Returns the packed rows of a program's lanes, the rows that these are, and which lanes have one."""
    packed_row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = packed_row < tl.load(n_packed)
    return packed_row, tl.load(ids + packed_row, mask=mask, other=0), mask


@kernel
def _gather_rows_kernel(
    ids,  # [packed] int64
    n_packed,  # [1] int64
    values,  # [n, 2]
    packed,  # [packed, 2], output
    BLOCK: tl.constexpr,
):  # fmt: skip
    packed_row, row, mask = _packed_lanes(ids, n_packed, BLOCK)
    store_tuple(packed + 2 * packed_row, 1, load_tuple(values + 2 * row, 1, 2, mask), mask)


@kernel
def _scatter_rows_kernel(
    ids,  # [packed] int64
    n_packed,  # [1] int64
    packed,  # [packed, 2]
    values,  # [n, 2], output
    BLOCK: tl.constexpr,
):  # fmt: skip
    packed_row, row, mask = _packed_lanes(ids, n_packed, BLOCK)
    store_tuple(values + 2 * row, 1, load_tuple(packed + 2 * packed_row, 1, 2, mask), mask)


def count_packed_rows(radii: Tensor, n_packed: Tensor) -> Tensor:
    """Returns the inclusive prefix sum of whether rows are packed. [n] int32

    Args:
        radii: [n, 2] int32, not zero where a row is packed.
        n_packed: [1] int64, zero, which becomes the number of packed rows.
    """
    n = len(radii)
    visible = torch.empty(n, dtype=torch.int32, device=radii.device)
    _visible_rows_kernel.launch_elementwise(n, BLOCK, radii=radii, visible=visible, n=n)
    # The limit is never exceeded: the total is written to n_packed, and nothing behind it.
    return prefix_sums(visible, limit=Limit(n_packed, capacity=n))


def pack_rows(row_counts: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the packed rows, [n] int64, and their values, [n, 2]. What is behind the last packed row has no meaning.

    Args:
        row_counts: See :func:`count_packed_rows`.
        values: [n, 2].
    """
    n = len(row_counts)
    ids, packed = torch.empty(n, dtype=torch.int64, device=row_counts.device), torch.empty_like(values)
    _pack_rows_kernel.launch_elementwise(n, BLOCK, row_counts=row_counts, values=values, ids=ids, packed=packed, n=n)
    return ids, packed


def gather_rows(ids: Tensor, n_packed: Tensor, values: Tensor) -> Tensor:
    """Returns the values of packed rows, [n, 2]. See :func:`pack_rows`."""
    packed = torch.empty_like(values)
    _gather_rows_kernel.launch_elementwise(len(ids), BLOCK, ids=ids, n_packed=n_packed, values=values, packed=packed)
    return packed


def scatter_rows(ids: Tensor, n_packed: Tensor, packed: Tensor) -> Tensor:
    """Returns values [n, 2] with those of packed rows, and zeros in other rows. See :func:`pack_rows`."""
    values = torch.zeros_like(packed)
    _scatter_rows_kernel.launch_elementwise(len(ids), BLOCK, ids=ids, n_packed=n_packed, packed=packed, values=values)
    return values
