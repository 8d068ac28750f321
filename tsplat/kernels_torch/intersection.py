"""Tile intersection in vectorized PyTorch; see `tsplat.kernels.intersection`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import ALPHA_MIN

Ellipse = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _extents(
    means2d: Tensor, radii: Tensor, conics: Tensor | None, opacities: Tensor | None, extend: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Half extents in x and y, whether seen; determinant (0 where it means nothing) and level of the ellipse."""
    seen = (radii > 0).all(-1)
    extent_x, extent_y = radii.to(means2d.dtype).unbind(-1)
    if conics is None or opacities is None:
        return extent_x, extent_y, seen, None, None
    a, b, c = conics.unbind(-1)
    support = 2 * (opacities / ALPHA_MIN).clamp_min(1).log()
    # The radii bound the ellipse without cancellation, but were cut at `extend` standard deviations.
    cut = 1.0001 * (support.sqrt() / extend).clamp_min(1)
    det = a * c - b * b
    condition = torch.where(det > 0, a * c / torch.where(det > 0, det, 1.0), torch.inf)
    sound = condition < 32768
    det = torch.where(sound, det, 0.0)
    safe = torch.where(sound, det, 1.0)
    level = support + (support + 1) * torch.where(sound, condition, 0.0) * 3e-5
    extent_x = torch.minimum(extent_x * cut, torch.where(sound, (level * c / safe).sqrt(), torch.inf))
    extent_y = torch.minimum(extent_y * cut, torch.where(sound, (level * a / safe).sqrt(), torch.inf))
    return extent_x, extent_y, seen & (opacities >= ALPHA_MIN), det, level


def _tile_range(low: Tensor, high: Tensor, n_tiles: int, tile_size: int, centers: bool) -> tuple[Tensor, Tensor]:
    """First tile of the interval [low, high] and their number: those with a pixel center inside, or that overlap."""
    if centers:
        n_pixels = n_tiles * tile_size
        first = (low - 0.5).ceil().clamp(0, n_pixels).to(torch.int32)
        last = (high - 0.5).floor().clamp(-1, n_pixels - 1).to(torch.int32)
        first_tile = first // tile_size
        return first_tile, torch.where(last >= first, last // tile_size - first_tile + 1, 0)
    first_tile = (low / tile_size).floor().clamp(0, n_tiles).to(torch.int32)
    end = (high / tile_size).ceil().clamp(0, n_tiles).to(torch.int32)
    return first_tile, (end - first_tile).clamp_min(0)


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
    _, extent_y, seen, _, _ = _extents(means2d, radii, conics, opacities, extend)
    y = means2d[:, 1]
    first, count = _tile_range(y - extent_y, y + extent_y, tile_height, tile_size, conics is not None)
    if image_ids is None:
        image_ids = torch.arange(y.numel(), device=y.device) // max(n_per_image, 1)
    low = torch.maximum(band[0] - image_ids * tile_height, first)
    high = torch.minimum(band[1] - image_ids * tile_height, first + count)
    n_rows = torch.where(seen, (high - low).clamp_min(0), 0)
    return low.to(torch.int32)[order], n_rows.to(torch.int32)[order]


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
    positions = torch.arange(order.numel(), device=order.device).repeat_interleave(
        row_starts.diff(), output_size=n_items
    )
    rows = order[positions]
    given = [None if t is None else t[rows] for t in (means2d, radii, conics, opacities)]
    mean, radii_ = given[0], given[1]
    assert mean is not None and radii_ is not None
    extent_x, extent_y, _, det, level = _extents(mean, radii_, given[2], given[3], extend)
    low, high = mean[:, 0] - extent_x, mean[:, 0] + extent_x
    if given[2] is not None and det is not None and level is not None:
        local = torch.arange(n_items, device=order.device) - row_starts[positions]
        top_pixel = ((first_rows[positions] + local) * tile_size).to(mean.dtype) + 0.5
        top = torch.maximum(top_pixel - mean[:, 1], -extent_y)
        bottom = torch.minimum(top_pixel + (tile_size - 1) - mean[:, 1], extent_y)
        thick = det > 0
        a, b, c = given[2].unbind(-1)
        a = torch.where(thick, a, 1.0)
        # dy where the whole ellipse reaches furthest left; furthest right is its mirror image.
        skew = b * (level / torch.where(thick, c * det, 1.0)).sqrt()
        dy_right = torch.minimum(torch.maximum(-skew, top), bottom)
        dy_left = torch.minimum(torch.maximum(skew, top), bottom)
        reach_right = (-b * dy_right + (level * a - det * dy_right * dy_right).clamp_min(0).sqrt()) / a
        reach_left = (b * dy_left + (level * a - det * dy_left * dy_left).clamp_min(0).sqrt()) / a
        high = torch.where(thick, torch.minimum(high, mean[:, 0] + reach_right), high)
        low = torch.where(thick, torch.maximum(low, mean[:, 0] - reach_left), low)
    first, count = _tile_range(low, high, tile_width, tile_size, conics is not None)
    return positions.to(torch.int32), first, count


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
    items = torch.arange(parents.numel(), device=order.device).repeat_interleave(
        column_starts.diff(), output_size=n_pairs
    )
    positions = parents[items].long()
    rows = order[positions]
    images = rows // max(n_per_image, 1) if image_ids is None else image_ids[rows]
    y = first_rows[positions] + items - row_starts[positions]
    x = first_columns[items] + torch.arange(n_pairs, device=order.device) - column_starts[items]
    keys = images * (tile_width * tile_height) + y * tile_width + x - key_bias
    return keys.to(key_dtype), rows.to(torch.int32)
