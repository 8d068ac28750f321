"""Packed rows with a capacity, for replayed calls: moves the rows of visible Gaussians to the front.

In passes, sizes of tensors must not depend on values. All Gaussians are therefore projected, and then packed into as
many rows as the capacity. The packed row of a visible Gaussian is the inclusive prefix sum of the visible flags, minus
1. The remaining rows are filled with culled Gaussians.
"""

import torch
import triton
import triton.language as tl

from ..config import Size
from ..data import N_NEEDED, Limit, ProjectedGaussians
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
    """Marks visible rows, whose radius is not 0. One lane per row."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    radius = tl.load(radii + 2 * index, mask=index < n, other=0)
    tl.store(visible + index, (radius != 0).to(tl.int32), mask=index < n)


@triton.jit
def _copy(values, packed, WIDTH: tl.constexpr, index, row, mask):
    """Copies values [n, WIDTH] from indices to rows; does nothing for None."""
    if values is not None:
        store_tuple(packed + row * WIDTH, 1, load_tuple(values + index * WIDTH, 1, WIDTH, mask), mask)


@kernel
def _pack_rows_kernel(
    row_counts,  # [n] int32, inclusive prefix sum of visible flags; zeros if the capacity is exceeded
    projected: "ProjectedGaussians",  # n rows
    packed: "ProjectedGaussians",  # output
    n: "Int", n_rows: "Int",
    SHAPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Packs visible Gaussians, then culled ones until there are ``n_rows``. One lane per row before packing."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(row_counts + index - 1, mask=(index > 0) & (index < n), other=0).to(tl.int64)
    is_visible = tl.load(row_counts + index, mask=index < n, other=0) > before
    # Visible: the number of visible Gaussians before. Culled: all visible ones, plus the culled ones before.
    row = tl.where(is_visible, before, tl.load(row_counts + n - 1) + index - before)
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


def pack_rows(projected: ProjectedGaussians, capacity: int) -> ProjectedGaussians:
    """Packs the rows of visible Gaussians, followed by culled ones, into min(n, capacity) rows.

    If more Gaussians are visible than the capacity, ``needed`` has its overflow flag set, and ``row_of`` is -1.

    Args:
        projected: Rows that are not packed.
    """
    radii = projected.radii
    n, device = len(radii), radii.device
    n_rows = min(n, capacity)
    visible = torch.empty(n, dtype=torch.int32, device=device)
    _visible_rows_kernel.launch_elementwise(n, BLOCK, radii=radii, visible=visible, n=n)
    needed = torch.zeros(N_NEEDED, dtype=torch.int64, device=device)
    row_counts = prefix_sums(visible, limit=Limit(needed, Size.ROWS, n_rows))
    packed = projected.map_rows(lambda values: values.new_empty(n_rows, *values.shape[1:]))._replace(
        dense_ids=torch.empty(n_rows, dtype=torch.int64, device=device),
        row_of=torch.empty(n, dtype=torch.int32, device=device),
    )
    _pack_rows_kernel.launch_elementwise(
        n, BLOCK, row_counts=row_counts, projected=projected, packed=packed, n=n, n_rows=n_rows,
        SHAPE=projected.shapes.shape[-1],
    )  # fmt: skip
    return packed._replace(needed=needed)
