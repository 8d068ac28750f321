"""Tile intersection in vectorized PyTorch; see ``kernels/intersection.py``."""

import torch
from torch import Tensor

from ..config import ALPHA_MIN
from ..data import NO_LIMIT, OVERFLOW, IntersectionSettings, Limit, ScreenGaussians, Spans, TileGrid


def _extents(
    means2d: Tensor, radii: Tensor, conics: Tensor | None, opacities: Tensor | None, extend: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns the half extents in x and y, whether rows are visible, and the determinant and the level of the ellipse.

    The ellipse is (dx, dy) conic (dx, dy)^T <= level. The determinant is 0 if rounding may dominate it. Without conics
    and opacities, determinant and level are None.
    """
    seen = (radii > 0).all(-1)
    extent_x, extent_y = radii.to(means2d.dtype).unbind(-1)
    if conics is None or opacities is None:
        return extent_x, extent_y, seen, None, None
    a, b, c = conics.unbind(-1)
    support = 2 * (opacities / ALPHA_MIN).clamp_min(1).log()
    # The radii bound the ellipse without cancellation, but only up to `extend` standard deviations.
    cut = 1.0001 * (support.sqrt() / extend).clamp_min(1)
    det = a * c - b * b
    condition = torch.where(det > 0, a * c / torch.where(det > 0, det, 1.0), torch.inf)
    thick = condition < 32768
    det = torch.where(thick, det, 0.0)
    safe = torch.where(thick, det, 1.0)
    level = support + (support + 1) * torch.where(thick, condition, 0.0) * 3e-5
    extent_x = torch.minimum(extent_x * cut, torch.where(thick, (level * c / safe).sqrt(), torch.inf))
    extent_y = torch.minimum(extent_y * cut, torch.where(thick, (level * a / safe).sqrt(), torch.inf))
    return extent_x, extent_y, seen & (opacities >= ALPHA_MIN), det, level


def _tile_range(low: Tensor, high: Tensor, n_tiles: int, tile_size: int, centers: bool) -> tuple[Tensor, Tensor]:
    """Returns the first tile and the number of tiles that overlap [low, high], or have a pixel center inside if
    ``centers``."""
    if centers:
        n_pixels = n_tiles * tile_size
        first = (low - 0.5).ceil().clamp(0, n_pixels).to(torch.int32)
        last = (high - 0.5).floor().clamp(-1, n_pixels - 1).to(torch.int32)
        first_tile = first // tile_size
        return first_tile, torch.where(last >= first, last // tile_size - first_tile + 1, 0)
    first_tile = (low / tile_size).floor().clamp(0, n_tiles).to(torch.int32)
    end = (high / tile_size).ceil().clamp(0, n_tiles).to(torch.int32)
    return first_tile, (end - first_tile).clamp_min(0)


def _wrapped_range(
    low: Tensor, high: Tensor, mean: Tensor, period: Tensor, grid: TileGrid, centers: bool
) -> tuple[Tensor, Tensor]:
    """Same as :func:`_tile_range`, for columns that wrap; see the device function of the same name."""
    low, high = torch.maximum(low, mean - 0.5 * period), torch.minimum(high, mean + 0.5 * period)
    n_tiles = grid.tile_width
    (first, count), (_, from_left), (from_right, after) = (
        _tile_range(low + k * period, high + k * period, n_tiles, grid.tile_size, centers) for k in (0, -1, 1)
    )
    end = torch.where(count > 0, first + count, 0)
    start = torch.where(after > 0, from_right, torch.where(count > 0, first, 0))
    total = torch.where(from_left > 0, torch.where((count > 0) | (after > 0), n_tiles - start, 0) + from_left, count)
    total = torch.where(after > 0, n_tiles - start + torch.maximum(end, from_left), total)
    return start, total.clamp_max(n_tiles)


def tile_rows(
    screen: ScreenGaussians, grid: TileGrid, band: tuple[int, int], settings: IntersectionSettings
) -> tuple[Tensor, Tensor, Tensor]:
    means2d, radii, conics, opacities, depth_order = screen[:5]
    _, extent_y, seen, _, _ = _extents(means2d, radii, conics, opacities, settings.numerics.extend)
    y = means2d[:, 1]
    first, count = _tile_range(y - extent_y, y + extent_y, grid.tile_height, grid.tile_size, conics is not None)
    image_ids = _image_ids(screen, grid)
    low = torch.maximum(band[0] - image_ids * grid.tile_height, first)
    high = torch.minimum(band[1] - image_ids * grid.tile_height, first + count)
    n_tile_rows = torch.where(seen, (high - low).clamp_min(0), 0)
    first_tile_rows, n_tile_rows = (t.to(torch.int32)[depth_order] for t in (low, n_tile_rows))
    return depth_order.to(torch.int32), first_tile_rows, _after_zero(n_tile_rows)


def tile_columns(
    screen: ScreenGaussians,
    grid: TileGrid,
    rows: Tensor,
    first_tile_rows: Tensor,
    span_starts: Tensor,
    n_spans: int,
    settings: IntersectionSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    size = grid.tile_size
    spans = torch.arange(n_spans, device=rows.device)
    positions = _parents(span_starts, spans)
    rows = rows[positions]
    mean, radii = screen.means2d[rows], screen.radii[rows]
    conics, opacities = (None if t is None else t[rows] for t in (screen.conics, screen.opacities))
    extent_x, extent_y, _, det, level = _extents(mean, radii, conics, opacities, settings.numerics.extend)
    low, high = mean[:, 0] - extent_x, mean[:, 0] + extent_x
    if conics is not None and det is not None and level is not None:
        local = spans - span_starts[positions]
        top_pixel = ((first_tile_rows[positions] + local) * size).to(mean.dtype) + 0.5
        top = torch.maximum(top_pixel - mean[:, 1], -extent_y)
        bottom = torch.minimum(top_pixel + (size - 1) - mean[:, 1], extent_y)
        thick = det > 0
        a, b, c = conics.unbind(-1)
        a = torch.where(thick, a, 1.0)
        # dy of the leftmost point of the ellipse. The rightmost point is at -dy. Both are clamped to the tile row.
        skew = b * (level / torch.where(thick, c * det, 1.0)).sqrt()
        dy_right = torch.minimum(torch.maximum(-skew, top), bottom)
        dy_left = torch.minimum(torch.maximum(skew, top), bottom)
        reach_right = (-b * dy_right + (level * a - det * dy_right * dy_right).clamp_min(0).sqrt()) / a
        reach_left = (b * dy_left + (level * a - det * dy_left * dy_left).clamp_min(0).sqrt()) / a
        high = torch.where(thick, torch.minimum(high, mean[:, 0] + reach_right), high)
        low = torch.where(thick, torch.maximum(low, mean[:, 0] - reach_left), low)
    if screen.periods is None:
        first, count = _tile_range(low, high, grid.tile_width, size, conics is not None)
    else:
        first, count = _wrapped_range(low, high, mean[:, 0], screen.periods[rows], grid, conics is not None)
    return positions.to(torch.int32), first, _after_zero(torch.where(spans < span_starts[-1], count, 0))


def tile_intersections(
    screen: ScreenGaussians, grid: TileGrid, spans: Spans, key_dtype: torch.dtype, key_bias: int, last_key: int
) -> tuple[Tensor, Tensor]:
    device = screen.depth_order.device
    indices = torch.arange(spans.n_intersections, device=device)
    span_ids = _parents(spans.isect_starts, indices)
    positions = spans.positions[span_ids]
    rows = spans.rows[positions].long()
    y = spans.first_tile_rows[positions] + span_ids - spans.span_starts[positions]
    x = spans.first_columns[span_ids] + indices - spans.isect_starts[span_ids]
    if screen.periods is not None:
        x = torch.where(x >= grid.tile_width, x - grid.tile_width, x)
    keys = _image_ids(screen, grid)[rows] * grid.tiles_per_image + y * grid.tile_width + x - key_bias
    return torch.where(indices < spans.isect_starts[-1], keys, last_key).to(key_dtype), rows.to(torch.int32)


def max_unread_spans(tensor: Tensor) -> int:
    return 0


def tile_lists(keys: Tensor, indices: Tensor, flatten_ids: Tensor, n_tiles: int, first_key: int) -> tuple[Tensor, ...]:
    bounds = torch.arange(first_key, first_key + n_tiles + 1, dtype=torch.int32, device=keys.device)
    isect_offsets = torch.searchsorted(keys.to(torch.int32), bounds, out_int32=True)
    return flatten_ids[indices], indices.to(torch.int32), isect_offsets


def max_ordered(tensor: Tensor) -> int:
    return 0


def order_values(values: Tensor) -> Tensor:
    return values.argsort(stable=True)


def max_gathered(tensor: Tensor, n_tiles: int) -> int:
    return 0


def gather_tiles(
    keys: Tensor, flatten_ids: Tensor, n_tiles: int, first_key: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sorted_keys, indices = keys.sort(stable=True)
    sorted_ids, indices, isect_offsets = tile_lists(sorted_keys, indices, flatten_ids, n_tiles, first_key)
    return sorted_keys, sorted_ids, indices, isect_offsets


def prefix_sums(
    lengths: Tensor, dtype: torch.dtype = torch.int32, limit: Limit = NO_LIMIT, bitmasks: Tensor | None = None
) -> Tensor:
    sums = lengths.cumsum(0)
    if limit.needed is not None:
        fits = sums[-1] <= limit.capacity
        if limit.resets:
            limit.needed.zero_()
        limit.needed[limit.element] = (sums[-1] + (limit.per_unit - 1)) // limit.per_unit
        limit.needed[OVERFLOW] |= ~fits
        sums = torch.where(fits, sums, 0)
        if bitmasks is not None:
            bitmasks *= fits
    return sums.to(dtype)


def _parents(starts: Tensor, children: Tensor) -> Tensor:
    """Returns the last p in [0, n) with starts[p] <= child, for starts [n + 1]; 0 for children after the last."""
    parents = torch.searchsorted(starts, children, right=True) - 1
    return torch.where(children < starts[-1], parents, 0)


def _after_zero(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(counts, (1, 0))


def _image_ids(screen: ScreenGaussians, grid: TileGrid) -> Tensor:
    """Returns the image of each row. [nnz]"""
    if screen.image_ids is not None:
        return screen.image_ids
    n_rows = screen.depth_order.numel()
    return torch.arange(n_rows, device=screen.depth_order.device) // max(n_rows // max(grid.n_images, 1), 1)
