"""Which Gaussian touches which tile: the exact ellipse against the rows and columns of tiles.

A Gaussian is seen where opacity exp(-sigma) >= 1/255, that is inside the ellipse 2 sigma(dx, dy) <= 2 ln(255 opacity).
Its extent in y gives the tile rows; for each tile row, the extent in x of the part of the ellipse between the first and
the last pixel center of that row gives the tile columns (the maximum of a concave function over an interval, so a
clamped argument). The bound is widened by what fp32 rounds, so that no pair is lost that compositing would count.
Without conics the rectangle mean +- radii takes the ellipse's place, as in gsplat.

Three steps, each one lane per output: rows per Gaussian, columns per (Gaussian, tile row), tile per pair. The second
and the third find their parent by binary search in the prefix sum of the step before; nothing loops over tiles.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN
from .device_math import det2, load_tuple
from .launch import guard, programs

BLOCK = 128


@triton.jit
def _load_ellipse(means2d, radii, conics, opacities, row, mask, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr):
    """Mean, half extents, whether it can be seen; then conic, det and level of the ellipse 2 sigma = level.

    Where the conic is too thin for its determinant to mean anything, or not given, `det` comes back as 0 and the radii
    bound the Gaussian alone.
    """
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    radius_x = tl.load(radii + row * 2, mask=mask, other=0)
    radius_y = tl.load(radii + row * 2 + 1, mask=mask, other=0)
    seen = (radius_x > 0) & (radius_y > 0)
    extent_x = radius_x.to(mean[0].dtype)
    extent_y = radius_y.to(mean[0].dtype)
    if conics is None:
        zero = tl.zeros_like(extent_x)
        return mean, extent_x, extent_y, seen, (zero, zero, zero), zero, zero
    else:
        c = load_tuple(conics + row * 3, 1, 3, mask)
        opacity = tl.load(opacities + row, mask=mask, other=0.0)
        support = 2.0 * tl.log(tl.maximum(opacity / ALPHA_MIN, 1.0))
        # The radii bound the ellipse without cancellation, but were cut at EXTEND standard deviations.
        cut = 1.0001 * tl.maximum(tl.sqrt(support) / EXTEND, 1.0)
        det = det2(c)
        condition = tl.where(det > 0.0, c[0] * c[2] / tl.where(det > 0.0, det, 1.0), float("inf"))
        sound = condition < 32768.0
        det = tl.where(sound, det, 0.0)
        safe = tl.where(sound, det, 1.0)
        level = support + (support + 1.0) * tl.where(sound, condition, 0.0) * 3e-5
        extent_x = tl.minimum(extent_x * cut, tl.where(sound, tl.sqrt(level * c[2] / safe), float("inf")))
        extent_y = tl.minimum(extent_y * cut, tl.where(sound, tl.sqrt(level * c[0] / safe), float("inf")))
        return mean, extent_x, extent_y, seen & (opacity >= ALPHA_MIN), c, det, level


@triton.jit
def _tile_range(low, high, n_tiles, TILE: tl.constexpr, CENTERS: tl.constexpr):
    """First tile of the interval [low, high] and their number: those with a pixel center inside, or that overlap."""
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
def _parent(starts, n, child, steps):
    """The last p in [0, n) with starts[p] <= child."""
    low = child * 0
    high = low + n
    for _ in range(steps):
        middle = (low + high) // 2
        after = tl.load(starts + middle) <= child
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    return low


@triton.jit
def _tile_rows_kernel(
    means2d, radii, conics, opacities, order, image_ids, first_rows, n_rows_out,
    n, n_per_image, tile_height, begin, end,
    TILE: tl.constexpr, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = position < n
    row = tl.load(order + position, mask=mask, other=0)
    mean, _, extent_y, seen, _, _, _ = _load_ellipse(means2d, radii, conics, opacities, row, mask, ALPHA_MIN, EXTEND)
    first, count = _tile_range(mean[1] - extent_y, mean[1] + extent_y, tile_height, TILE, conics is not None)
    if image_ids is not None:
        image = tl.load(image_ids + row, mask=mask, other=0)
    else:
        image = row // n_per_image
    low = tl.maximum(begin - image * tile_height, first)
    high = tl.minimum(end - image * tile_height, first + count)
    tl.store(first_rows + position, low.to(tl.int32), mask=mask)
    tl.store(n_rows_out + position, tl.where(seen, tl.maximum(high - low, 0), 0).to(tl.int32), mask=mask)


@triton.jit
def _tile_columns_kernel(
    means2d, radii, conics, opacities, order, first_rows, row_starts, parents, first_columns, n_columns,
    n, n_items, steps, tile_width,
    TILE: tl.constexpr, ALPHA_MIN: tl.constexpr, EXTEND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = item < n_items
    item = tl.where(mask, item, 0)
    position = _parent(row_starts, n, item, steps)
    row = tl.load(order + position, mask=mask, other=0)
    mean, extent_x, extent_y, _, c, det, level = _load_ellipse(
        means2d, radii, conics, opacities, row, mask, ALPHA_MIN, EXTEND
    )
    low = mean[0] - extent_x
    high = mean[0] + extent_x
    if conics is not None:
        tile_row = tl.load(first_rows + position, mask=mask, other=0) + (item - tl.load(row_starts + position))
        top = tl.maximum((tile_row * TILE).to(mean[1].dtype) + 0.5 - mean[1], -extent_y)
        bottom = tl.minimum((tile_row * TILE + TILE - 1).to(mean[1].dtype) + 0.5 - mean[1], extent_y)
        thick = det > 0.0
        a = tl.where(thick, c[0], 1.0)
        # dy where the whole ellipse reaches furthest left; furthest right is its mirror image.
        skew = c[1] * tl.sqrt(level / tl.where(thick, c[2] * det, 1.0))
        dy_right = tl.minimum(tl.maximum(-skew, top), bottom)
        dy_left = tl.minimum(tl.maximum(skew, top), bottom)
        reach_right = (-c[1] * dy_right + tl.sqrt(tl.maximum(level * a - det * dy_right * dy_right, 0.0))) / a
        reach_left = (c[1] * dy_left + tl.sqrt(tl.maximum(level * a - det * dy_left * dy_left, 0.0))) / a
        high = tl.where(thick, tl.minimum(high, mean[0] + reach_right), high)
        low = tl.where(thick, tl.maximum(low, mean[0] - reach_left), low)
    first, count = _tile_range(low, high, tile_width, TILE, conics is not None)
    tl.store(parents + item, position.to(tl.int32), mask=mask)
    tl.store(first_columns + item, first, mask=mask)
    tl.store(n_columns + item, count, mask=mask)


@triton.jit
def _tile_pairs_kernel(
    order, image_ids, first_rows, row_starts, parents, first_columns, column_starts, keys, rows,
    n_items, n_pairs, steps, n_per_image, tile_width, n_tiles, key_bias, BLOCK: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = pair < n_pairs
    pair = tl.where(mask, pair, 0)
    item = _parent(column_starts, n_items, pair, steps)
    position = tl.load(parents + item).to(tl.int64)
    row = tl.load(order + position)
    if image_ids is not None:
        image = tl.load(image_ids + row)
    else:
        image = row // n_per_image
    y = tl.load(first_rows + position) + (item - tl.load(row_starts + position))
    x = tl.load(first_columns + item) + (pair - tl.load(column_starts + item))
    key = image * n_tiles + y * tile_width + x - key_bias
    tl.store(keys + pair, key.to(keys.dtype.element_ty), mask=mask)
    tl.store(rows + pair, row.to(tl.int32), mask=mask)


def tile_rows(
    means2d: Tensor,
    radii: Tensor,
    conics: Tensor | None,
    opacities: Tensor | None,
    order: Tensor,
    image_ids: Tensor | None,
    *,
    n_per_image: int,
    tile_size: int,
    tile_height: int,
    band: tuple[int, int],
    extend: float,
) -> tuple[Tensor, Tensor]:
    """First tile row and number of tile rows of the Gaussians in the given order, each [R] int32.

    Args:
        image_ids: [R] int64, or None where rows are [I, n_per_image].
        band: First and end flat tile row, [I, tile_height]; others are left out.
    """
    n = order.numel()
    first_rows = torch.empty(n, dtype=torch.int32, device=order.device)
    n_rows = torch.empty_like(first_rows)
    if n > 0:
        with guard(means2d):
            _tile_rows_kernel[(programs(n, BLOCK),)](
                means2d, radii, conics, opacities, order, image_ids, first_rows, n_rows,
                n, n_per_image, tile_height, *band,
                TILE=tile_size, ALPHA_MIN=ALPHA_MIN, EXTEND=extend, BLOCK=BLOCK,
            )  # fmt: skip
    return first_rows, n_rows


def tile_columns(
    means2d: Tensor,
    radii: Tensor,
    conics: Tensor | None,
    opacities: Tensor | None,
    order: Tensor,
    first_rows: Tensor,
    row_starts: Tensor,
    n_items: int,
    *,
    tile_size: int,
    tile_width: int,
    extend: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """For each (Gaussian, tile row): the Gaussian's position in `order`, first tile column, number of tile columns.

    Args:
        row_starts: [R + 1] int64, exclusive prefix sum of the numbers of tile rows; `n_items` is its last entry.
    """
    parents = torch.empty(n_items, dtype=torch.int32, device=order.device)
    first_columns = torch.empty_like(parents)
    n_columns = torch.empty_like(parents)
    if n_items > 0:
        n = order.numel()
        with guard(means2d):
            _tile_columns_kernel[(programs(n_items, BLOCK),)](
                means2d, radii, conics, opacities, order, first_rows, row_starts, parents, first_columns, n_columns,
                n, n_items, n.bit_length(), tile_width,
                TILE=tile_size, ALPHA_MIN=ALPHA_MIN, EXTEND=extend, BLOCK=BLOCK,
            )  # fmt: skip
    return parents, first_columns, n_columns


def tile_pairs(
    order: Tensor,
    image_ids: Tensor | None,
    first_rows: Tensor,
    row_starts: Tensor,
    parents: Tensor,
    first_columns: Tensor,
    column_starts: Tensor,
    n_pairs: int,
    *,
    n_per_image: int,
    tile_width: int,
    tile_height: int,
    key_dtype: torch.dtype,
    key_bias: int,
) -> tuple[Tensor, Tensor]:
    """For each pair, Gaussian by Gaussian in the given order: flat tile as a sorting key [M], and the row [M] int32.

    Args:
        column_starts: [n_items + 1] int64, exclusive prefix sum of the numbers of tile columns, ending in `n_pairs`.
        key_bias: Subtracted from each key.
    """
    keys = torch.empty(n_pairs, dtype=key_dtype, device=order.device)
    rows = torch.empty(n_pairs, dtype=torch.int32, device=order.device)
    if n_pairs > 0:
        n_items = parents.numel()
        with guard(order):
            _tile_pairs_kernel[(programs(n_pairs, BLOCK),)](
                order, image_ids, first_rows, row_starts, parents, first_columns, column_starts, keys, rows,
                n_items, n_pairs, n_items.bit_length(), n_per_image, tile_width, tile_width * tile_height,
                key_bias, BLOCK=BLOCK,
            )  # fmt: skip
    return keys, rows
