"""Packed rows with a capacity, for replayed calls: moves the rows of visible Gaussians to the front.

In passes, sizes of tensors must not depend on values. All Gaussians are therefore projected, and then packed into as
many rows as the capacity. The packed row of a visible Gaussian is the number of visible Gaussians before it. The
remaining rows are filled with culled Gaussians. On a GPU, up to `ONE_PROGRAM_MAX` rows are counted by each program.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import Size
from ..data import N_NEEDED, Limit, ProjectedGaussians
from .device_math import load_tuple, store_tuple
from .launch import Int, is_compiled_for_cpu, kernel
from .scans import ONE_PROGRAM_MAX, prefix_sums, sum_range, update_needed

BLOCK = 256


@triton.jit
def _copy(values, packed, WIDTH: tl.constexpr, index, row, mask):
    """Copies values [n, WIDTH] from indices to rows; does nothing for None."""
    if values is not None:
        store_tuple(packed + row * WIDTH, 1, load_tuple(values + index * WIDTH, 1, WIDTH, mask), mask)


@kernel
def _pack_rows_kernel(
    visible,  # [n] int32, 1 or 0
    row_counts,  # [n] int32, inclusive prefix sum of visible flags, zeros if the capacity is exceeded; or None
    projected: "ProjectedGaussians",  # n rows
    packed: "ProjectedGaussians",  # output
    limit: "Limit",
    n: "Int", n_rows: "Int",
    SHAPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Packs visible Gaussians, then culled ones until there are ``n_rows``. One lane per row before packing."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    if row_counts is not None:
        before = tl.load(row_counts + index - 1, mask=(index > 0) & (index < n), other=0).to(tl.int64)
        is_visible = tl.load(row_counts + index, mask=index < n, other=0) > before
        n_visible = tl.load(row_counts + n - 1)
    else:
        # Few rows: each program counts all visible ones.
        flag = tl.load(visible + index, mask=index < n, other=0).to(tl.int64)
        before_block = sum_range(visible, first * 0, first, BLOCK)
        n_visible = before_block + sum_range(visible, first, first * 0 + n, BLOCK)
        update_needed(limit, n_visible, first == 0, BLOCK)
        fits = n_visible <= limit.capacity
        before = tl.where(fits, before_block + tl.cumsum(flag) - flag, 0)
        is_visible = fits & (flag != 0)
        n_visible = tl.where(fits, n_visible, 0)
    # Visible: the number of visible Gaussians before. Culled: all visible ones, plus the culled ones before.
    row = tl.where(is_visible, before, n_visible + index - before)
    tl.store(packed.row_of + index, tl.where(is_visible, row, -1).to(tl.int32), mask=index < n)
    mask = (index < n) & (row < n_rows)
    tl.store(packed.dense_ids + row, index, mask=mask)
    _copy(projected.radii, packed.radii, 2, index, row, mask)
    _copy(projected.means2d, packed.means2d, 2, index, row, mask)
    _copy(projected.depths, packed.depths, 1, index, row, mask)
    _copy(projected.shapes, packed.shapes, SHAPE, index, row, mask)
    _copy(projected.compensations, packed.compensations, 1, index, row, mask)
    _copy(projected.opacities, packed.opacities, 1, index, row, mask)
    _copy(projected.normals, packed.normals, 3, index, row, mask)


def pack_rows(projected: ProjectedGaussians, visible: Tensor, capacity: int) -> ProjectedGaussians:
    """Packs the rows of visible Gaussians, followed by culled ones, into min(n, capacity) rows.

    If more Gaussians are visible than the capacity, ``needed`` has its overflow flag set, and ``row_of`` is -1.

    Args:
        projected: Rows that are not packed.
        visible: [n] int32, whether each of them is visible, 1 or 0.
    """
    n, device = len(visible), visible.device
    n_rows = min(n, capacity)
    needed = (torch.empty if n else torch.zeros)(N_NEEDED, dtype=torch.int64, device=device)
    limit = Limit(needed, Size.ROWS, n_rows, resets=1)
    are_few = n <= ONE_PROGRAM_MAX and not is_compiled_for_cpu(visible)
    row_counts = None if are_few else prefix_sums(visible, limit=limit)
    packed = projected.map_rows(lambda values: values.new_empty(n_rows, *values.shape[1:]))._replace(
        dense_ids=torch.empty(n_rows, dtype=torch.int64, device=device),
        row_of=torch.empty(n, dtype=torch.int32, device=device),
    )
    _pack_rows_kernel.launch_elementwise(
        n, BLOCK, visible=visible, row_counts=row_counts, projected=projected, packed=packed, limit=limit, n=n,
        n_rows=n_rows, SHAPE=projected.shapes.shape[-1],
    )  # fmt: skip
    return packed._replace(needed=needed)
