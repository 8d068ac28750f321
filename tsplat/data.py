"""What the stages hand to each other: rows and pairs.

A *row* is an image and a Gaussian. Packed rows are the visible ones in ascending order of image, then Gaussian;
otherwise there is a row for every image and Gaussian, and culled ones are zero. A *pair* is a row and a tile.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, overload

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Rows:
    """Projected Gaussians.

    Attributes:
        n_cameras, n_gaussians: C and N.
        row_ids: [R] int64, flat index into [B, C, N] of each row; None where every pair is a row.
        radii: [R, 2] int32, half width and height in pixels, zero where culled.
        means2d: [R, 2] pixels.
        depths: [R], camera-space z.
        conics: [R, 3] upper triangle of the inverse screen covariance, 1/pixel^2.
        compensations: [R] antialiasing factor, or None.
        opacities: [R] opacity times compensation, or None where no opacities were given.
    """

    n_cameras: int
    n_gaussians: int
    row_ids: Tensor | None
    radii: Tensor
    means2d: Tensor
    depths: Tensor
    conics: Tensor
    compensations: Tensor | None
    opacities: Tensor | None

    def indices(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Batch, camera and Gaussian of each packed row, [nnz] int64 each; None where rows are not packed."""
        if self.row_ids is None:
            return None, None, None
        n_gaussians = max(self.n_gaussians, 1)
        image_ids = self.row_ids // n_gaussians
        return image_ids // self.n_cameras, image_ids % self.n_cameras, self.row_ids % n_gaussians

    def image_ids(self) -> Tensor | None:
        """Image of each packed row, [nnz] int64; None where rows are [I, N]."""
        return None if self.row_ids is None else self.row_ids // max(self.n_gaussians, 1)

    def color_ids(self, *, per_camera: bool) -> Tensor | None:
        """Which of colors [B N, D], or [B C N, D] per camera, each row has; None where it is its own index."""
        if per_camera:
            return self.row_ids
        row_ids = self.row_ids
        if row_ids is None:
            row_ids = torch.arange(self.depths.numel(), device=self.depths.device)
        if self.n_cameras == 1 and self.row_ids is None:
            return None
        n_gaussians = max(self.n_gaussians, 1)
        return row_ids // (self.n_cameras * n_gaussians) * n_gaussians + row_ids % n_gaussians


class GaussianMajor(NamedTuple):
    """Another order of the pairs: row by row, and within a row by *item*, a row in one tile row of its image.

    Attributes:
        slots: [M] int64, place of each pair in this order.
        slot_starts: [items + 1] int64, where each item's slots begin, and M.
        item_starts, item_rows: [R + 1] int64 and [R]: items item_starts[i] to item_starts[i + 1] belong to the row
            item_rows[i]; every row occurs once.
    """

    slots: Tensor
    slot_starts: Tensor
    item_starts: Tensor
    item_rows: Tensor


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """Tiles of I images: flat tile rows are [I, tile_height], flat tiles [I, tile_height, tile_width]."""

    n_images: int
    tile_size: int
    tile_width: int
    tile_height: int

    @property
    def n_tile_rows(self) -> int:
        return self.n_images * self.tile_height

    @property
    def n_tiles(self) -> int:
        return self.n_tile_rows * self.tile_width


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Rows and the tiles they touch in a band of flat tile rows: M pairs, tile by tile and front to back.

    Attributes:
        first_tile: Flat index of the band's first tile.
        isect_offsets: [tiles of the band + 1] int64, where each tile's pairs begin, and M.
        flatten_ids: [M] int32, row of each pair.
        gaussian_major: The same pairs row by row; None where only the backward pass would need it, and can work it out.
        keys: [M] the flat tile of each pair less `key_bias`, or None where only the offsets are known.
    """

    first_tile: int
    isect_offsets: Tensor
    flatten_ids: Tensor
    gaussian_major: GaussianMajor | None
    keys: Tensor | None = None
    key_bias: int = 0


def sum_rows(values: Tensor, ids: Tensor, n: int) -> Tensor:
    """Sums of the rows of values [R, ...] that share an id, [n, ...]; in the order of rows, so that bits repeat.

    `index_add_` and its like would add in any order where they run in parallel.
    """
    ids, order = ids.sort(stable=True)
    bounds = torch.searchsorted(ids, torch.arange(n + 1, device=ids.device))
    flat = values[..., None].flatten(1)[order]
    sums = torch.segment_reduce(flat, "sum", lengths=bounds.diff(), axis=0, unsafe=True)
    return sums.view(n, *values.shape[1:])


@overload
def flatten_batch(tensor: Tensor, n_batch_dims: int, dtype: torch.dtype) -> Tensor: ...
@overload
def flatten_batch(tensor: None, n_batch_dims: int, dtype: torch.dtype) -> None: ...
def flatten_batch(tensor: Tensor | None, n_batch_dims: int, dtype: torch.dtype) -> Tensor | None:
    """[..., own] -> [B, own] in the given element type."""
    if tensor is None:
        return None
    return tensor.to(dtype).reshape(math.prod(tensor.shape[:n_batch_dims]), *tensor.shape[n_batch_dims:])
