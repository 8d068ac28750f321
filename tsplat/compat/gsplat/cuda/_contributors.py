"""Which Gaussians contribute to each pixel, and by how much: counts, all of them, and the largest. In plain PyTorch.

A Gaussian contributes to a pixel if compositing adds it: its alpha is at least 1/255, and the pixel has not stopped.
Its weight is alpha times the transmittance in front of it. Nothing here is differentiable.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from .... import ArgumentError, ShapeError
from ....arguments import check_devices, check_numerics, check_size, check_tensor, check_tile_size, compute_dtype
from ....config import Numerics, NumericsName
from ._contributions import TilePixels, dense_tiles, pack_splats
from ._sparse_pixels import SparseLayout


@dataclasses.dataclass(frozen=True)
class _Query:
    """Projected Gaussians, and the pixels whose contributors are to be found.

    Attributes:
        splats: [rows, 6], see :func:`pack_splats`.
        n: N, or the number of rows if packed.
        tiles: The tiles with their pixels.
        shape: Shape of the output; places of pixels are flat indices into it.
        numerics: Whose upper bound of alpha to use.
    """

    splats: Tensor
    n: int
    tiles: Iterable[TilePixels]
    shape: tuple[int, ...]
    numerics: Numerics

    def weights(self) -> Iterator[tuple[TilePixels, Tensor]]:
        """Iterates over the tiles and the weights [P, K] of their rows, 0 where a row does not contribute."""
        for tile in self.tiles:
            yield tile, tile.weights(self.splats, self.numerics)

    def count(self) -> tuple[Tensor, Tensor]:
        """Counts contributors, int32, and sums their weights. Each of the shape of the output"""
        n_pixels = math.prod(self.shape)
        counts = torch.zeros(n_pixels, dtype=torch.int32, device=self.splats.device)
        alphas = self.splats.new_zeros(n_pixels)
        for tile, weights in self.weights():
            counts[tile.places] = (weights > 0).sum(-1).to(torch.int32)
            alphas[tile.places] = weights.sum(-1)
        return counts.view(self.shape), alphas.view(self.shape)

    def list_first(self, n_listed: int, *, largest: bool) -> tuple[Tensor, Tensor]:
        """Lists the first contributors of each pixel, front to back, or those with the largest weights.

        Returns:
            Gaussians int32, padded with -1, and weights, padded with 0. [*shape of the output, n_listed]
        """
        n_pixels = math.prod(self.shape)
        ids = torch.full((n_pixels, n_listed), -1, dtype=torch.int32, device=self.splats.device)
        listed = self.splats.new_zeros(n_pixels, n_listed)
        for tile, weights in self.weights():
            if largest:
                # Stable, so that of equal weights the nearer ones are kept.
                order = weights.argsort(dim=-1, descending=True, stable=True)[:, :n_listed]
                kept = torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, order, True)
                weights = torch.where(kept, weights, 0.0)
            places = (weights == 0).to(torch.uint8).argsort(dim=-1, stable=True)[:, :n_listed]
            found = weights.gather(-1, places)
            gaussians = (tile.rows % max(self.n, 1)).to(torch.int32)[places]
            ids[tile.places, : places.shape[1]] = torch.where(found > 0, gaussians, -1)
            listed[tile.places, : places.shape[1]] = found
        return ids.view(*self.shape, n_listed), listed.view(*self.shape, n_listed)


def _query(
    splats: tuple[Tensor, Tensor, Tensor], tiles: Iterable[TilePixels], shape: tuple[int, ...], numerics: NumericsName
) -> _Query:
    means2d, conics, opacities = splats
    leading = means2d.shape[:-1]
    check_tensor("means2d", means2d, [*leading, 2], "[..., N, 2] or [nnz, 2]")
    check_tensor("conics", conics, [*leading, 3], "[..., N, 3] as means2d")
    check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
    check_devices(dict(means2d=means2d, conics=conics, opacities=opacities))
    dtype = compute_dtype(*splats)
    packed = pack_splats(means2d.to(dtype), conics.to(dtype), opacities.to(dtype))
    return _Query(packed, means2d.shape[-2], tiles, shape, check_numerics(numerics))


def _dense(
    splats: tuple[Tensor, Tensor, Tensor],
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    size: tuple[int, int],
    tile_size: int,
    numerics: NumericsName,
) -> _Query:
    """Returns the query of all pixels of images of a size, width and height."""
    check_size("image_width", size[0])
    check_size("image_height", size[1])
    check_tile_size(tile_size)
    tiles = (math.ceil(size[1] / tile_size), math.ceil(size[0] / tile_size))
    images = tuple(tile_offsets.shape[:-2])
    if tuple(tile_offsets.shape[-2:]) != tiles or (splats[0].dim() > 2 and splats[0].shape[:-2] != images):
        raise ShapeError(
            f"tile_offsets: expected {[*images, *tiles]}, images as those of means2d and tiles of {tile_size} for "
            f"images of {size[0]}x{size[1]}, found {list(tile_offsets.shape)}"
        )
    found = dense_tiles(tile_offsets, flatten_ids, *size, tile_size)
    return _query(splats, found, (*images, size[1], size[0]), numerics)


def _sparse(splats: tuple[Tensor, Tensor, Tensor], layout: SparseLayout, numerics: NumericsName) -> _Query:
    layout.check()
    return _query(splats, layout.tiles(), tuple(layout.pixel_map.shape), numerics)


def _largest_count(query: _Query, counts: Tensor) -> int:
    """Returns how many contributors to list, the largest of the given counts."""
    if tuple(counts.shape) != query.shape or counts.is_floating_point():
        raise ArgumentError(
            f"num_contributing_gaussians: expected integers {list(query.shape)}, found {counts.dtype} "
            f"{list(counts.shape)}"
        )
    return int(counts.max()) if counts.numel() else 0


@torch.no_grad()
def rasterize_num_contributing_gaussians(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    *,
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Counts the Gaussians that contribute to each pixel.

    Args:
        means2d, conics, opacities: [..., N, 2], [..., N, 3] and [..., N], or packed [nnz, 2], [nnz, 3] and [nnz].
        tile_offsets, flatten_ids: From :func:`tsplat.isect_offset_encode` and :func:`tsplat.isect_tiles`, [...,
            tile_height, tile_width] and [M].
        image_width, image_height: Image size in pixels.
        tile_size: Edge of a tile in pixels: 4, 8 or 16.
        numerics: As in :func:`tsplat.rasterization`.

    Returns:
        Counts int32 and the rendered alphas, [..., H, W] each.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    splats, size = (means2d, conics, opacities), (image_width, image_height)
    return _dense(splats, tile_offsets, flatten_ids, size, tile_size, numerics).count()


@torch.no_grad()
def rasterize_contributing_gaussian_ids(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    num_contributing_gaussians: Tensor,
    *,
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Lists the Gaussians that contribute to each pixel, front to back.

    Args:
        means2d, conics, opacities, tile_offsets, flatten_ids, image_width, image_height, tile_size, numerics: As for
            :func:`rasterize_num_contributing_gaussians`.
        num_contributing_gaussians: [..., H, W] integers from that function; as many are listed as the largest is.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [..., H, W, largest count]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    splats, size = (means2d, conics, opacities), (image_width, image_height)
    query = _dense(splats, tile_offsets, flatten_ids, size, tile_size, numerics)
    return query.list_first(_largest_count(query, num_contributing_gaussians), largest=False)


@torch.no_grad()
def rasterize_top_contributing_gaussian_ids(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    num_depth_samples: int,
    *,
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Lists the Gaussians with the largest weights at each pixel, front to back; of equal weights the nearer ones.

    Args:
        means2d, conics, opacities, tile_offsets, flatten_ids, image_width, image_height, tile_size, numerics: As for
            :func:`rasterize_num_contributing_gaussians`.
        num_depth_samples: Number of Gaussians to list.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [..., H, W,
        num_depth_samples]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    check_size("num_depth_samples", num_depth_samples)
    splats, size = (means2d, conics, opacities), (image_width, image_height)
    query = _dense(splats, tile_offsets, flatten_ids, size, tile_size, numerics)
    return query.list_first(num_depth_samples, largest=True)


@torch.no_grad()
def rasterize_num_contributing_gaussians_sparse(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    *,
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Counts the Gaussians that contribute to chosen pixels.

    Args:
        means2d, conics, opacities, numerics: As for :func:`rasterize_num_contributing_gaussians`.
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
            image_height, tile_size, tile_width, tile_height: As for :func:`rasterize_to_pixels_sparse`.

    Returns:
        Counts int32 and the rendered alphas, [P] each, in the order of the chosen pixels.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    layout = SparseLayout(
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
        image_height, tile_size, tile_width, tile_height,
    )  # fmt: skip
    return _sparse((means2d, conics, opacities), layout, numerics).count()


@torch.no_grad()
def rasterize_contributing_gaussian_ids_sparse(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    num_contributing_gaussians: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    *,
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Lists the Gaussians that contribute to chosen pixels, front to back.

    Args:
        means2d, conics, opacities, active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum,
            pixel_map, image_width, image_height, tile_size, tile_width, tile_height, numerics: As for
            :func:`rasterize_num_contributing_gaussians_sparse`.
        num_contributing_gaussians: [P] integers from that function; as many are listed as the largest is.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [P, largest count]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    layout = SparseLayout(
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
        image_height, tile_size, tile_width, tile_height,
    )  # fmt: skip
    query = _sparse((means2d, conics, opacities), layout, numerics)
    return query.list_first(_largest_count(query, num_contributing_gaussians), largest=False)


@torch.no_grad()
def rasterize_top_contributing_gaussian_ids_sparse(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    active_tiles: Tensor,
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    tile_pixel_mask: Tensor,
    tile_pixel_cumsum: Tensor,
    pixel_map: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    num_depth_samples: int,
    *,
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Lists the Gaussians with the largest weights at chosen pixels, front to back; of equal weights the nearer ones.

    Args:
        means2d, conics, opacities, active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum,
            pixel_map, image_width, image_height, tile_size, tile_width, tile_height, numerics: As for
            :func:`rasterize_num_contributing_gaussians_sparse`.
        num_depth_samples: Number of Gaussians to list.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [P, num_depth_samples]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    check_size("num_depth_samples", num_depth_samples)
    layout = SparseLayout(
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
        image_height, tile_size, tile_width, tile_height,
    )  # fmt: skip
    return _sparse((means2d, conics, opacities), layout, numerics).list_first(num_depth_samples, largest=True)
