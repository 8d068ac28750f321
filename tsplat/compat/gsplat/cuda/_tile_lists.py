"""The pixels and the intersections of tiles, and the weights of Gaussians at pixels, in plain PyTorch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .... import ShapeError
from ....arguments import INTEGERS, check_devices, check_size, check_tensor, check_tile_lists, check_tile_size
from ....config import ALPHA_MIN, TRANSMITTANCE_MIN, Numerics
from ....stages.memory import check_images

BATCH_SIZE = 1 << 18
"""Upper bound of pixels times intersections that are evaluated at a time."""


def check_splats(means2d: Tensor, conics: Tensor, opacities: Tensor) -> None:
    """Raises unless projected Gaussians match: [..., N, 2], [..., N, 3], [..., N], or packed [nnz, ...]."""
    check_tensor("means2d", means2d, [..., 2], "[..., N, 2] or [nnz, 2]")
    leading = means2d.shape[:-1]
    check_tensor("conics", conics, [*leading, 3], "[..., N, 3] as means2d")
    check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
    check_devices(dict(means2d=means2d, conics=conics, opacities=opacities))


def pack_splats(means2d: Tensor, conics: Tensor, opacities: Tensor) -> Tensor:
    """Packs mean x, y; conic a, b, c; opacity, 0 for Gaussians that do not contribute. [6, I N]"""
    a, b, c = conics.unbind(-1)
    valid = (a >= 0) & (c >= 0) & (b * b <= a * c * 1.0001)
    rows = [*means2d.unbind(-1), *torch.where(valid[..., None], conics, 0.0).unbind(-1)]
    return torch.stack([*rows, torch.where(valid, opacities, 0.0)]).flatten(1)


def alphas_at(x: Tensor, y: Tensor, splats: Tensor, numerics: Numerics) -> Tensor:
    """Computes alpha of Gaussians [6, ...] at pixels x, y [...], which broadcast. [...]"""
    mean_x, mean_y, a, b, c, opacities = splats
    dx, dy = x - mean_x, y - mean_y
    sigmas = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    alphas: Tensor = (opacities * (-sigmas).exp()).clamp_max(numerics.alpha_max)
    return alphas


class TileBatch(NamedTuple):
    """Some pixels of T tiles, and the rows that intersect these tiles.

    Attributes:
        x, y: [T, P] pixel centers.
        places: [T, P] int64, index of each pixel in the flat output; -1 for padding.
        rows: [T, K] int64, front to back; -1 for padding.
    """

    x: Tensor
    y: Tensor
    places: Tensor
    rows: Tensor

    def weights(self, splats: Tensor, numerics: Numerics, transmittances: Tensor | None = None) -> Tensor:
        """Computes alpha times transmittance of each row at each pixel, 0 where the row does not contribute. [T, P, K]

        Args:
            splats: From :func:`pack_splats`.
            numerics: Whose upper bound of alpha to use.
            transmittances: [I H W] before the first row; None for 1.
        """
        own = splats[:, self.rows.clamp_min(0), None].transpose(-1, -2)  # [6, T, 1, K]
        alphas = alphas_at(self.x[..., None], self.y[..., None], own, numerics)
        alphas = torch.where((alphas >= ALPHA_MIN) & (self.rows >= 0)[:, None], alphas, 0.0)
        start = alphas.new_ones(()) if transmittances is None else transmittances[self.places.clamp_min(0)]
        # Nothing contributes to padding.
        start = torch.where(self.places >= 0, start, 0.0)[..., None]
        behind = start * (1 - alphas).cumprod(-1)
        before = torch.cat([start, behind[..., :-1]], -1)
        # The transmittance never rises, so that nothing is added behind the Gaussian at which a pixel stops.
        return torch.where(behind > TRANSMITTANCE_MIN, alphas * before, 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class TileLists:
    """Pixels, ordered by tile, and the intersections of each tile.

    Attributes:
        rows, columns: [P] int64, of each pixel in its image.
        places: [P] int64, index of each pixel in the flat output.
        counts: [T] number of pixels of each tile.
        starts, ends: [T] first intersection of each tile, and the one after its last.
        flatten_ids: [M] row of each intersection, front to back.
    """

    rows: Tensor
    columns: Tensor
    places: Tensor
    counts: Tensor
    starts: Tensor
    ends: Tensor
    flatten_ids: Tensor

    def batches(self) -> Iterator[TileBatch]:
        """Iterates over the tiles that have intersections, several of about equal numbers of them at a time."""
        lengths = (self.ends - self.starts).clamp_min(0)
        order = lengths.argsort(descending=True, stable=True)
        longest = lengths[order].tolist()
        most = int(self.counts.max()) if len(order) else 0
        first = 0
        while first < len(order) and longest[first]:
            n_tiles = max(1, BATCH_SIZE // (most * longest[first]))
            tiles = order[first : first + n_tiles]
            ids, listed = _ranges(self.starts[tiles], lengths[tiles], 0, longest[first])
            rows = torch.where(listed, self.flatten_ids[ids].to(torch.int64), -1)
            # Of a single tile with a very long list, some of its pixels at a time.
            step = max(1, BATCH_SIZE // (len(tiles) * longest[first]))
            pixel_starts = (self.counts.cumsum(0) - self.counts)[tiles]
            for begin in range(0, most, step):
                pixels, inside = _ranges(pixel_starts, self.counts[tiles], begin, min(begin + step, most))
                places = torch.where(inside, self.places[pixels], -1)
                yield TileBatch(self.columns[pixels] + 0.5, self.rows[pixels] + 0.5, places, rows)
            first += n_tiles


def _ranges(starts: Tensor, lengths: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Entries ``begin`` to ``end`` of T ranges of indices, [T, end - begin], and which of them exist; others are 0."""
    places = torch.arange(begin, end, device=starts.device)
    exists = places < lengths[:, None]
    return torch.where(exists, starts[:, None] + places, 0), exists


def dense_tiles(
    name: str,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    means2d: Tensor,
    size: tuple[int, int],
    tile_size: int,
) -> TileLists:
    """Returns the lists of all tiles of images. Pixels are placed in [I, H, W].

    Args:
        name: Name of ``isect_offsets`` in messages.
        isect_offsets: [..., tile_height, tile_width].
        flatten_ids: [M].
        means2d: [..., N, 2], or packed [nnz, 2].
        size: Width and height of the images in pixels.
        tile_size: Edge of a tile in pixels.

    Raises:
        ArgumentError: A size is invalid, the tiles are not those of the images, or lists are out of range.
    """
    width, height = size
    check_size("image_width", width)
    check_size("image_height", height)
    check_tile_size(tile_size)
    tiles = (math.ceil(height / tile_size), math.ceil(width / tile_size))
    check_tensor(name, isect_offsets, [..., None, None], "[..., tile_height, tile_width]", dtypes=INTEGERS)
    images = means2d.shape[:-2] if means2d.dim() > 2 else isect_offsets.shape[:-2]
    if tuple(isect_offsets.shape) != (*images, *tiles):
        raise ShapeError(
            f"{name}: expected {[*images, *tiles]}, images as those of means2d and tiles of {tile_size} for images of "
            f"{width}x{height}, found {list(isect_offsets.shape)}"
        )
    check_tile_lists(name, isect_offsets, flatten_ids, math.prod(means2d.shape[:-1]))
    n_images, device = math.prod(images), flatten_ids.device
    # Row, column and place of each pixel.
    check_images(device, n_images, width, height, 1, torch.int64)
    # [tile rows, tile columns, rows of a tile, columns of a tile]
    rows = torch.arange(tiles[0] * tile_size, device=device).view(tiles[0], 1, tile_size, 1)
    columns = torch.arange(tiles[1] * tile_size, device=device).view(1, tiles[1], 1, tile_size)
    inside = ((rows < height) & (columns < width)).flatten(0, 1)
    first_places = torch.arange(n_images, device=device)[:, None] * (width * height)
    own_rows, own_columns = (t.expand(*tiles, tile_size, tile_size).flatten(0, 1)[inside] for t in (rows, columns))
    starts = isect_offsets.flatten().to(torch.int64)
    return TileLists(
        own_rows.repeat(n_images),
        own_columns.repeat(n_images),
        (first_places + own_rows * width + own_columns).flatten(),
        inside.sum((1, 2)).repeat(n_images),
        starts,
        torch.cat([starts[1:], starts.new_tensor([flatten_ids.numel()])]),
        flatten_ids,
    )
