"""Intersections of projected Gaussians with tiles: the exact ellipse against rows and columns of tiles.

A Gaussian is visible where opacity exp(-sigma) >= 1/255, inside the ellipse 2 sigma(dx, dy) <= 2 ln(255 opacity). The
extent of the ellipse in y gives its tile rows. In a tile row, the extent of the ellipse in x, between the first and the
last row of pixel centers, gives a span of tiles. This extent is reached at the height that is closest to the leftmost
or rightmost point of the ellipse. The bound is widened by the rounding error of fp32, so that no visible intersection
is lost. Without conics, the rectangle mean +- radii is used instead of the ellipse, as in gsplat.

Three kernels have one lane per output: the tile rows of a Gaussian, a span, and an intersection. The second and third
find their Gaussian or span by binary search in a prefix sum. The counts are preceded by a zero, so that their prefix
sum has the start of each list and ends with the total. After intersections have been sorted by tile, a fourth kernel
gathers their rows and finds the first intersection of each tile.

With a capacity, there may be fewer spans and intersections than the capacity. The number is known to the device only,
as the last value of the prefix sum. Spans beyond it have no intersections. Intersections beyond it get a key after all
tiles.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN
from ..data import IntersectionSettings, ScreenGaussians, Spans, TileGrid
from .device_math import constant, det2, load_tuple, search_starts_of_block
from .launch import CPU_LONG_BLOCK, UNREAD_MAX, Int, is_compiled_for_cpu, kernel

BLOCK = 128


class ScreenEllipse(NamedTuple):
    """The ellipse 2 sigma = level of a projected Gaussian.

    Attributes:
        mean, conic, level: Center, conic and level of the ellipse. Conic and level are 0 without conics.
        extent_x, extent_y: Half extents, pixels.
        seen: Whether the Gaussian is visible.
        det: Determinant of the conic. It is 0 without conics, or if the ellipse is so thin that rounding errors
            dominate; then only the radii bound the Gaussian.
    """

    mean: Any
    conic: Any
    level: Any
    extent_x: Any
    extent_y: Any
    seen: Any
    det: Any


@triton.jit
def _load_ellipse(means2d, radii, conics, opacities, row, mask, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr):
    """Loads the :class:`ScreenEllipse` of a row."""
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    radius_x = tl.load(radii + row * 2, mask=mask, other=0)
    radius_y = tl.load(radii + row * 2 + 1, mask=mask, other=0)
    seen = (radius_x > 0) & (radius_y > 0)
    extent_x = radius_x.to(mean[0].dtype)
    extent_y = radius_y.to(mean[0].dtype)
    if conics is None:
        zero = tl.zeros_like(extent_x)
        return ScreenEllipse(
            mean=mean, conic=(zero, zero, zero), level=zero, extent_x=extent_x, extent_y=extent_y, seen=seen, det=zero
        )  # fmt: skip
    else:
        c = load_tuple(conics + row * 3, 1, 3, mask)
        opacity = tl.load(opacities + row, mask=mask, other=0.0)
        support = 2.0 * tl.log(tl.maximum(opacity / ALPHA_MIN, 1.0))
        # Half extents sqrt(level c_yy / det) and sqrt(level c_xx / det), bounded by the radii, which have no
        # cancellation but end at EXTEND standard deviations.
        cut = 1.0001 * tl.maximum(tl.sqrt(support) / EXTEND, 1.0)
        det = det2(c)
        condition = tl.where(det > 0.0, c[0] * c[2] / tl.where(det > 0.0, det, 1.0), float("inf"))
        thick = condition < 32768.0
        det = tl.where(thick, det, 0.0)
        safe = tl.where(thick, det, 1.0)
        level = support + (support + 1.0) * tl.where(thick, condition, 0.0) * 3e-5
        extent_x = tl.minimum(extent_x * cut, tl.where(thick, tl.sqrt(level * c[2] / safe), float("inf")))
        extent_y = tl.minimum(extent_y * cut, tl.where(thick, tl.sqrt(level * c[0] / safe), float("inf")))
        seen = seen & (opacity >= constant(ALPHA_MIN, opacity))
        return ScreenEllipse(
            mean=mean, conic=c, level=level, extent_x=extent_x, extent_y=extent_y, seen=seen, det=det
        )  # fmt: skip


@triton.jit
def _tile_range(low, high, n_tiles, TILE: tl.constexpr, CENTERS: tl.constexpr):
    """Returns the first tile and the number of tiles in [low, high], pixels.

    With CENTERS, tiles that have a pixel center inside; otherwise, tiles that overlap.
    """
    if CENTERS:
        n_pixels = n_tiles * TILE
        first = tl.minimum(tl.maximum(tl.ceil(low - 0.5), 0.0), n_pixels).to(tl.int32)
        last = tl.minimum(tl.maximum(tl.floor(high - 0.5), -1.0), n_pixels - 1.0).to(tl.int32)
        first_tile = first // TILE
        count = tl.where(last >= first, last // TILE - first_tile + 1, 0)
    else:
        first_tile = tl.minimum(tl.maximum(tl.floor(low / TILE), 0.0), n_tiles).to(tl.int32)
        end = tl.minimum(tl.maximum(tl.ceil(high / TILE), 0.0), n_tiles).to(tl.int32)
        count = tl.maximum(end - first_tile, 0)
    return first_tile, count


@triton.jit
def _wrapped_range(low, high, mean, period, n_tiles, TILE: tl.constexpr, CENTERS: tl.constexpr):
    """Same as ``_tile_range``, for columns that wrap: after the last tile, the range continues with the first.

    The interval is cut to half a period on either side of the mean. Its copy shifted by -period adds tiles at the left
    end of the image, and its copy shifted by +period adds tiles at the right end.
    """
    low = tl.maximum(low, mean - 0.5 * period)
    high = tl.minimum(high, mean + 0.5 * period)
    first, count = _tile_range(low, high, n_tiles, TILE, CENTERS)
    _, from_left = _tile_range(low - period, high - period, n_tiles, TILE, CENTERS)
    from_right, after = _tile_range(low + period, high + period, n_tiles, TILE, CENTERS)
    end = tl.where(count > 0, first + count, 0)
    start = tl.where(after > 0, from_right, tl.where(count > 0, first, 0))
    to_end = tl.where((count > 0) | (after > 0), n_tiles - start, 0)
    total = tl.where(from_left > 0, to_end + from_left, count)
    total = tl.where(after > 0, n_tiles - start + tl.maximum(end, from_left), total)
    return start, tl.minimum(total, n_tiles)


@kernel
def _tile_rows_kernel(
    means2d,  # [nnz, 2]
    radii,  # [nnz, 2] int32
    conics,  # [nnz, 3] or None
    opacities,  # [nnz] or None
    depth_order,  # [nnz] int64
    image_ids,  # [nnz] int64 or None
    rows,  # [nnz] int32, ``depth_order``, output
    first_tile_rows,  # [nnz] int32, output
    n_tile_rows,  # [1 + nnz] int32, output
    n: "Int", n_per_image: "Int", tile_height: "Int", begin: "Int", end: "Int",
    TILE: tl.constexpr, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds and counts the tile rows that each Gaussian intersects within a band. One lane per Gaussian."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = position < n
    row = tl.load(depth_order + position, mask=mask, other=0)
    ellipse = _load_ellipse(means2d, radii, conics, opacities, row, mask, ALPHA_MIN, EXTEND)
    # The tile rows of mean_y +- extent_y, within the image and the band.
    top, bottom = ellipse.mean[1] - ellipse.extent_y, ellipse.mean[1] + ellipse.extent_y
    first, count = _tile_range(top, bottom, tile_height, TILE, conics is not None)
    if image_ids is not None:
        image = tl.load(image_ids + row, mask=mask, other=0)
    else:
        image = row // n_per_image
    low = tl.maximum(begin - image * tile_height, first)
    high = tl.minimum(end - image * tile_height, first + count)
    tl.store(rows + position, row.to(tl.int32), mask=mask)
    tl.store(first_tile_rows + position, low.to(tl.int32), mask=mask)
    count = tl.where(ellipse.seen, tl.maximum(high - low, 0), 0)
    tl.store(n_tile_rows + 1 + position, count.to(tl.int32), mask=mask)
    tl.store(n_tile_rows + position, position.to(tl.int32), mask=position == 0)


@kernel
def _tile_columns_kernel(
    means2d,  # [nnz, 2]
    radii,  # [nnz, 2] int32
    conics,  # [nnz, 3] or None
    opacities,  # [nnz] or None
    rows,  # [nnz] int32
    first_tile_rows,  # [nnz] int32
    span_starts,  # [nnz + 1] int32
    periods,  # [nnz], see ``ScreenGaussians``, or None
    positions,  # [S] int32, output
    first_columns,  # [S] int32, output
    n_columns,  # [1 + S] int32, output
    n: "Int", n_spans: "Int", search_steps: "Int", tile_width: "Int",
    TILE: tl.constexpr, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr, ON_CPU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds and counts the tile columns of each span. One lane per span."""
    first_span = tl.program_id(0).to(tl.int64) * BLOCK
    span = first_span + tl.arange(0, BLOCK)
    tl.store(n_columns + span, span.to(tl.int32), mask=span == 0)
    end = tl.load(span_starts + n)
    if first_span < end:
        mask = span < end
        safe = tl.where(mask, span, 0)
        position = search_starts_of_block(span_starts, n, safe, search_steps, ON_CPU)
        row = tl.load(rows + position, mask=mask, other=0).to(tl.int64)
        ellipse = _load_ellipse(means2d, radii, conics, opacities, row, mask, ALPHA_MIN, EXTEND)
        mean, c, level, det = ellipse.mean, ellipse.conic, ellipse.level, ellipse.det
        low = mean[0] - ellipse.extent_x
        high = mean[0] + ellipse.extent_x
        if conics is not None:
            tile_row = tl.load(first_tile_rows + position, mask=mask, other=0)
            tile_row += safe - tl.load(span_starts + position)
            top = tl.maximum((tile_row * TILE).to(mean[1].dtype) + 0.5 - mean[1], -ellipse.extent_y)
            bottom = tl.minimum((tile_row * TILE + TILE - 1).to(mean[1].dtype) + 0.5 - mean[1], ellipse.extent_y)
            thick = det > 0.0
            a = tl.where(thick, c[0], 1.0)
            # a dx^2 + 2 b dx dy + c dy^2 = level gives dx = (-b dy +- sqrt(level a - det dy^2)) / a. Its extremes in
            # [top, bottom] are at the dy closest to that of the leftmost point, `skew`, and of the rightmost, `-skew`.
            skew = c[1] * tl.sqrt(level / tl.where(thick, c[2] * det, 1.0))
            dy_right = tl.minimum(tl.maximum(-skew, top), bottom)
            dy_left = tl.minimum(tl.maximum(skew, top), bottom)
            reach_right = (-c[1] * dy_right + tl.sqrt(tl.maximum(level * a - det * dy_right * dy_right, 0.0))) / a
            reach_left = (c[1] * dy_left + tl.sqrt(tl.maximum(level * a - det * dy_left * dy_left, 0.0))) / a
            high = tl.where(thick, tl.minimum(high, mean[0] + reach_right), high)
            low = tl.where(thick, tl.maximum(low, mean[0] - reach_left), low)
        if periods is not None:
            period = tl.load(periods + row, mask=mask, other=1.0)
            first, count = _wrapped_range(low, high, mean[0], period, tile_width, TILE, conics is not None)
        else:
            first, count = _tile_range(low, high, tile_width, TILE, conics is not None)
        tl.store(positions + span, position.to(tl.int32), mask=span < n_spans)
        tl.store(first_columns + span, first, mask=span < n_spans)
        tl.store(n_columns + 1 + span, tl.where(mask, count, 0), mask=span < n_spans)
    else:
        none = tl.zeros([BLOCK], tl.int32)
        tl.store(positions + span, none, mask=span < n_spans)
        tl.store(n_columns + 1 + span, none, mask=span < n_spans)


@kernel
def _tile_intersections_kernel(
    image_ids,  # [nnz] int64 or None
    rows,  # [nnz] int32
    first_tile_rows,  # [nnz] int32
    span_starts,  # [nnz + 1] int32
    positions,  # [S] int32
    first_columns,  # [S] int32
    isect_starts,  # [S + 1] int32
    keys,  # [M] int16 or int32, output
    flatten_ids,  # [M] int32, output
    n_spans: "Int", n_intersections: "Int", search_steps: "Int", n_per_image: "Int",
    tile_width: "Int", n_tiles: "Int", key_bias: "Int", last_key: "Int",
    WRAPS: tl.constexpr, ON_CPU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the tile and the row of each intersection, in Gaussian-major order. One lane per intersection."""
    first_index = tl.program_id(0).to(tl.int64) * BLOCK
    index = first_index + tl.arange(0, BLOCK)
    end = tl.load(isect_starts + n_spans)
    if first_index < end:
        mask = index < end
        safe = tl.where(mask, index, 0)
        span = search_starts_of_block(isect_starts, n_spans, safe, search_steps, ON_CPU)
        position = tl.load(positions + span).to(tl.int64)
        row = tl.load(rows + position).to(tl.int64)
        if image_ids is not None:
            image = tl.load(image_ids + row)
        else:
            image = row // n_per_image
        y = tl.load(first_tile_rows + position) + (span - tl.load(span_starts + position))
        x = tl.load(first_columns + span) + (safe - tl.load(isect_starts + span))
        if WRAPS:
            x = tl.where(x >= tile_width, x - tile_width, x)
        key = tl.where(mask, image * n_tiles + y * tile_width + x - key_bias, last_key)
        tl.store(keys + index, key.to(keys.dtype.element_ty), mask=index < n_intersections)
        tl.store(flatten_ids + index, row.to(tl.int32), mask=index < n_intersections)
    else:
        none = tl.zeros([BLOCK], tl.int32)
        tl.store(keys + index, (none + last_key).to(keys.dtype.element_ty), mask=index < n_intersections)
        tl.store(flatten_ids + index, none, mask=index < n_intersections)


@kernel
def _tile_lists_kernel(
    keys,  # [M] int16 or int32, sorted
    indices,  # [M] int32 or int64
    flatten_ids,  # [M] int32
    sorted_ids,  # [M] int32, output
    gaussian_major_indices,  # [M] int32, output
    isect_offsets,  # [tiles + 1] int32, output
    n: "Int", n_tiles: "Int", first_key: "Int", search_steps: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gathers the rows of sorted intersections, and finds the first intersection of each tile.

    One lane per intersection, and one lane per tile and for the end of the last tile.
    """
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + lane, mask=lane < n, other=0)
    tl.store(sorted_ids + lane, tl.load(flatten_ids + index, mask=lane < n, other=0), mask=lane < n)
    tl.store(gaussian_major_indices + lane, index.to(tl.int32), mask=lane < n)
    if tl.program_id(0) * BLOCK <= n_tiles:
        low = lane * 0
        high = low + n
        for _ in range(search_steps):
            middle = low + ((high - low) >> 1)  # low + high may exceed int32
            key = tl.load(keys + middle, mask=low < high, other=0).to(tl.int32)
            before = (low < high) & (key < lane + first_key)
            low = tl.where(before, middle + 1, low)
            high = tl.where(before, high, middle)
        tl.store(isect_offsets + lane, low, mask=lane <= n_tiles)


def tile_rows(
    screen: ScreenGaussians, grid: TileGrid, band: tuple[int, int], settings: IntersectionSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the tile rows of each Gaussian, in depth order.

    Args:
        band: The first flat tile row of the band, and the one after its last.

    Returns:
        The row of each Gaussian and its first tile row, [nnz] int32 each; a zero, then the number of its tile rows,
        [1 + nnz] int32.
    """
    n = screen.depth_order.numel()
    rows = torch.empty(n, dtype=torch.int32, device=screen.depth_order.device)
    first_tile_rows = torch.empty_like(rows)
    n_tile_rows = torch.empty(n + 1, dtype=torch.int32, device=screen.depth_order.device)
    _tile_rows_kernel.launch_elementwise(
        max(n, 1),
        BLOCK,
        **{name: value for name, value in screen._asdict().items() if name != "periods"},
        rows=rows,
        first_tile_rows=first_tile_rows,
        n_tile_rows=n_tile_rows,
        n=n,
        n_per_image=_rows_per_image(screen, grid),
        begin=band[0],
        end=band[1],
        tile_height=grid.tile_height,
        TILE=grid.tile_size,
        ALPHA_MIN=ALPHA_MIN,
        EXTEND=settings.numerics.extend,
    )
    return rows, first_tile_rows, n_tile_rows


def max_unread_spans(tensor: Tensor) -> int:
    """Returns the number of spans up to which memory is allocated without reading their number from the device.

    It is 0 on a CPU, where reading does not wait.
    """
    return 0 if is_compiled_for_cpu(tensor) else UNREAD_MAX


def tile_columns(
    screen: ScreenGaussians,
    grid: TileGrid,
    rows: Tensor,
    first_tile_rows: Tensor,
    span_starts: Tensor,
    n_spans: int,
    settings: IntersectionSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the tile columns of each span.

    Args:
        rows, first_tile_rows, span_starts: See :class:`Spans`.
        n_spans: The number of spans S, or an upper bound; the additional spans have no tiles.

    Returns:
        The position of each span's Gaussian in depth order and its first tile column, [S] int32 each; a zero, then the
        number of its tiles, [1 + S] int32.
    """
    positions = torch.empty(n_spans, dtype=torch.int32, device=screen.depth_order.device)
    first_columns = torch.empty_like(positions)
    n_columns = torch.empty(n_spans + 1, dtype=torch.int32, device=screen.depth_order.device)
    n = screen.depth_order.numel()
    _tile_columns_kernel.launch_elementwise(
        max(n_spans, 1),
        BLOCK,
        CPU_LONG_BLOCK,
        means2d=screen.means2d,
        radii=screen.radii,
        conics=screen.conics,
        opacities=screen.opacities,
        rows=rows,
        first_tile_rows=first_tile_rows,
        span_starts=span_starts,
        periods=screen.periods,
        positions=positions,
        first_columns=first_columns,
        n_columns=n_columns,
        n=n,
        n_spans=n_spans,
        search_steps=n.bit_length(),
        tile_width=grid.tile_width,
        ON_CPU=is_compiled_for_cpu(screen.means2d),
        TILE=grid.tile_size,
        ALPHA_MIN=ALPHA_MIN,
        EXTEND=settings.numerics.extend,
    )
    return positions, first_columns, n_columns


def tile_intersections(
    screen: ScreenGaussians, grid: TileGrid, spans: Spans, key_dtype: torch.dtype, key_bias: int, last_key: int
) -> tuple[Tensor, Tensor]:
    """Lists the intersections of spans, Gaussian by Gaussian. Returns sorting keys [M] and rows [M] int32.

    Args:
        key_bias: Keys are flat tiles minus this.
        last_key: The key of elements beyond the last intersection.
    """
    keys = torch.empty(spans.n_intersections, dtype=key_dtype, device=screen.depth_order.device)
    flatten_ids = torch.empty(spans.n_intersections, dtype=torch.int32, device=screen.depth_order.device)
    n_spans = spans.positions.numel()
    _tile_intersections_kernel.launch_elementwise(
        spans.n_intersections,
        BLOCK,
        CPU_LONG_BLOCK,
        image_ids=screen.image_ids,
        **spans._asdict(),
        keys=keys,
        flatten_ids=flatten_ids,
        n_spans=n_spans,
        search_steps=n_spans.bit_length(),
        n_per_image=_rows_per_image(screen, grid),
        tile_width=grid.tile_width,
        n_tiles=grid.tiles_per_image,
        key_bias=key_bias,
        last_key=last_key,
        WRAPS=screen.periods is not None,
        ON_CPU=is_compiled_for_cpu(keys),
    )
    return keys, flatten_ids


def tile_lists(keys: Tensor, indices: Tensor, flatten_ids: Tensor, n_tiles: int, first_key: int) -> tuple[Tensor, ...]:
    """Makes the lists of tiles from sorted keys.

    Args:
        keys: [M], sorted.
        indices: [M] int32 or int64, index of each key before sorting.
        flatten_ids: [M] int32, row of each intersection before sorting.
        n_tiles, first_key: The number of tiles, and the key of the first tile.

    Returns:
        Rows [M] int32; indices in Gaussian-major order, before sorting, [M] int32; the first intersection of each tile,
        then M, [n_tiles + 1] int32.
    """
    n = keys.numel()
    sorted_ids, gaussian_major_indices = torch.empty_like(flatten_ids), torch.empty_like(flatten_ids)
    isect_offsets = flatten_ids.new_empty(n_tiles + 1)
    _tile_lists_kernel.launch_elementwise(
        max(n, n_tiles + 1),
        BLOCK,
        keys=keys,
        indices=indices,
        flatten_ids=flatten_ids,
        sorted_ids=sorted_ids,
        gaussian_major_indices=gaussian_major_indices,
        isect_offsets=isect_offsets,
        n=n,
        n_tiles=n_tiles,
        first_key=first_key,
        search_steps=n.bit_length(),
    )
    return sorted_ids, gaussian_major_indices, isect_offsets


def _rows_per_image(screen: ScreenGaussians, grid: TileGrid) -> int:
    """Returns the number of rows per image, at least 1, for rows [I, N]."""
    return max(screen.depth_order.numel() // max(grid.n_images, 1), 1)
