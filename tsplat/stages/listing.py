"""Lists the intersections of projected Gaussians with tiles, sorted by tile and depth."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ..config import Backend, Capacities, Size
from ..data import N_NEEDED, GaussianMajor, Intersections, IntersectionSettings, Limit, ScreenGaussians, Spans, TileGrid
from ..errors import ArgumentError, MemoryBudgetError
from ..runtime.backend import launchers
from ..runtime.memory import INDEX_MAX, MemoryBudget, OverBudgetError
from .sorting import stable_argsort, stable_sort

Band = tuple[int, int]
"""A band: its first flat tile row, and the one after its last."""


def depth_order(depths: Tensor, backend: Backend, image_ids: Tensor | None = None, n_segments: int = 1) -> Tensor:
    """Sorts rows front to back, and by row for equal depths. Returns row indices [nnz] int64.

    Args:
        depths: [nnz].
        backend: The backend that orders few depths.
        image_ids: [nnz] int64; None if rows are [n_segments, N].
        n_segments: The number of images, to sort the rows of each image separately; or 1.
    """
    if n_segments <= 1:
        kernels = launchers(depths.device, backend)
        if 0 < depths.numel() <= kernels.max_ordered(depths):
            order: Tensor = kernels.order_values(depths)
            return order
        return stable_argsort(depths)
    if image_ids is None:
        by_image = depths.view(n_segments, -1)
        starts = torch.arange(n_segments, device=depths.device)[:, None] * by_image.shape[1]
        return (by_image.argsort(dim=1, stable=True) + starts).flatten()
    counts = image_ids.bincount(minlength=n_segments)
    images = image_ids.argsort(stable=True).tensor_split(counts.cumsum(0)[:-1].cpu())
    return torch.cat([rows[stable_argsort(depths[rows])] for rows in images])


def find_spans(
    screen: ScreenGaussians,
    grid: TileGrid,
    band: Band,
    settings: IntersectionSettings,
    budget: MemoryBudget | None = None,
    limits: tuple[Limit, Limit] | None = None,
    read_n_intersections: Callable[[Tensor, int], int] | None = None,
) -> Spans:
    """Finds the spans of a band: the runs of tiles that each Gaussian intersects in each tile row.

    Without limits, waits for the number of intersections, and for the number of spans unless it is small. With limits,
    does not wait: lists have the sizes of the capacities, and are empty if one is exceeded.

    Args:
        limits: The limits of spans and of intersections; or None.
        read_n_intersections: Reads the number of intersections [] from the device, given the number of spans; None for
            ``int``.

    Raises:
        ArgumentError: There are more rows, tiles or, without a budget, intersections than 32-bit indices allow.
        OverBudgetError: The spans or the intersections exceed the budget. Raised before they are allocated.
    """
    n_rows = screen.depth_order.numel()
    if max(n_rows, grid.n_tiles) > INDEX_MAX:
        raise ArgumentError(
            f"means: {n_rows} projected Gaussians on {grid.n_images} images of {grid.tiles_per_image} tiles are more "
            "than 32-bit indices allow; render fewer cameras at a time, or smaller images"
        )
    kernels = launchers(screen.means2d.device, settings.backend)

    def prefix_sum(counts: Tensor, bound: int, limit: Limit | None) -> tuple[Tensor, Tensor]:
        """Returns the prefix sum [1 + n] int32 of counts, which begin with 0, and the total, at most `bound`."""
        if limit is not None:
            sums = kernels.prefix_sums(counts, limit=limit)
            return sums, sums[-1]
        sums = kernels.prefix_sums(counts, torch.int32 if bound <= INDEX_MAX else torch.int64)
        return sums.to(torch.int32), sums[-1]

    of_spans, of_intersections = limits or (None, None)
    rows, first_tile_rows, n_tile_rows = kernels.tile_rows(screen, grid, band, settings)
    spans_bound = n_rows * min(grid.tile_height, band[1] - band[0])
    span_starts, total = prefix_sum(n_tile_rows, spans_bound, of_spans)
    unread_max = kernels.max_unread_spans(screen.depth_order) if budget is None or budget.limit is None else 0
    if of_spans is not None:
        n_spans = of_spans.capacity
    elif spans_bound <= unread_max:
        n_spans = spans_bound
    else:
        n_spans = int(total)
    _admit(n_spans, 0, budget)
    positions, first_columns, n_columns = kernels.tile_columns(
        screen, grid, rows, first_tile_rows, span_starts, n_spans, settings
    )
    isect_starts, total = prefix_sum(n_columns, n_spans * grid.tile_width, of_intersections)
    if of_intersections is not None:
        n_intersections = of_intersections.capacity
    elif read_n_intersections is None:
        n_intersections = int(total)
    else:
        n_intersections = read_n_intersections(total, n_spans)
    _admit(n_spans, n_intersections, budget)
    return Spans(rows, first_tile_rows, span_starts, positions, first_columns, isect_starts, n_intersections)


def list_with_capacities(
    capacities: Capacities,
    screen: ScreenGaussians,
    grid: TileGrid,
    settings: IntersectionSettings,
    budget: MemoryBudget,
    needed: Tensor | None = None,
) -> Intersections:
    """Lists all intersections without waiting for their number.

    If a capacity is exceeded, all lists are empty, see ``needed`` of :class:`Intersections`.

    Args:
        needed: The result of the projection, if packed rows have a capacity, too; otherwise None.

    Raises:
        ArgumentError: There are more rows or tiles than 32-bit indices allow.
        MemoryBudgetError: The capacity exceeds the budget.
    """
    try:
        budget.admit(capacities.spans, max(capacities.intersections, capacities.entries))
    except OverBudgetError as error:
        raise MemoryBudgetError(f"capacity: {error}; pass a smaller capacity, or None to render in bands") from None
    resets = int(needed is None)
    if needed is None:
        needed = torch.empty(N_NEEDED, dtype=torch.int64, device=screen.depth_order.device)
    limits = (
        Limit(needed, Size.SPANS, capacities.spans, resets=resets),
        Limit(needed, Size.INTERSECTIONS, capacities.intersections),
    )
    band = (0, grid.n_tile_rows)
    spans = find_spans(screen, grid, band, settings, budget, limits)
    return list_intersections(screen, grid, band, spans, settings)._replace(capacities=capacities, needed=needed)


def _admit(n_spans: int, n_intersections: int, budget: MemoryBudget | None) -> None:
    """Raises if spans and intersections exceed the budget, or without a budget 32-bit indices."""
    if budget is not None:
        budget.admit(n_spans, n_intersections)
    elif max(n_spans, n_intersections) > INDEX_MAX:
        raise ArgumentError(
            f"means2d: {max(n_spans, n_intersections):,} intersections are more than 32-bit indices allow; pass fewer "
            "images at a time, or smaller radii"
        )


def list_intersections(
    screen: ScreenGaussians,
    grid: TileGrid,
    band: Band,
    spans: Spans,
    settings: IntersectionSettings,
    *,
    sort: bool = True,
) -> Intersections:
    """Lists the intersections of spans, sorted by tile, then depth, then row; Gaussian by Gaussian if not `sort`."""
    first_tile, n_tiles = band[0] * grid.tile_width, (band[1] - band[0]) * grid.tile_width
    # Intersections are emitted in depth order, so a stable sort by tile suffices, with int16 keys if tiles fit.
    short = n_tiles < 2**16  # one more key stands for "no tile"
    key_bias = first_tile + (2**15 if short else 0)
    key_dtype = torch.int16 if short else torch.int32
    kernels = launchers(screen.means2d.device, settings.backend)
    first_key = first_tile - key_bias
    keys, flatten_ids = kernels.tile_intersections(screen, grid, spans, key_dtype, key_bias, first_key + n_tiles)
    if sort and not settings.segmented and 0 < keys.numel() <= kernels.max_gathered(keys, n_tiles):
        keys, flatten_ids, unsorted_indices, isect_offsets = kernels.gather_tiles(keys, flatten_ids, n_tiles, first_key)
    elif sort:
        keys, indices = _sort_by_tile(keys, _segments(screen, grid, spans) if settings.segmented else None)
        flatten_ids, unsorted_indices, isect_offsets = kernels.tile_lists(
            keys, indices, flatten_ids, n_tiles, first_key
        )
    else:
        unsorted_indices = torch.arange(spans.n_intersections, dtype=torch.int32, device=keys.device)
        isect_offsets = unsorted_indices[:0]
    gaussian_major = GaussianMajor(
        indices=unsorted_indices,
        isect_starts=spans.isect_starts,
        span_starts=spans.span_starts,
        rows=spans.rows,
        positions=spans.positions,
    )
    return Intersections(first_tile, isect_offsets, flatten_ids, gaussian_major, keys, key_bias)


def _segments(screen: ScreenGaussians, grid: TileGrid, spans: Spans) -> list[int]:
    """Returns the first intersection of each image, then M: I + 1 ints. Rows must be ordered by image."""
    images = torch.arange(grid.n_images + 1, device=screen.depth_order.device)
    if screen.image_ids is None:
        starts = images * (screen.depth_order.numel() // max(grid.n_images, 1))
    else:
        starts = torch.searchsorted(screen.image_ids[screen.depth_order], images)
    bounds: list[int] = spans.isect_starts[spans.span_starts[starts]].tolist()
    return bounds


def _sort_by_tile(keys: Tensor, segments: list[int] | None) -> tuple[Tensor, Tensor]:
    """Sorts keys [M] stably, segment by segment if given. Returns sorted keys and their indices."""
    if segments is None or len(segments) <= 2:
        return stable_sort(keys)
    indices = torch.cat([stable_sort(keys[begin:end])[1] + begin for begin, end in itertools.pairwise(segments)])
    return keys[indices], indices
