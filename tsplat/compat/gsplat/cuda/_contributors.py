"""Which Gaussians contribute to each pixel, and by how much: counts, all of them, and the largest. In plain PyTorch.

A Gaussian contributes to a pixel if compositing adds it: its alpha is at least 1/255, and the pixel has not stopped.
Its weight is alpha times the transmittance in front of it. Nothing here is differentiable.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from ....arguments import INTEGERS, check_numerics, check_size, check_tensor, check_tile_lists, compute_dtype
from ....config import Numerics, NumericsName
from ....stages.compilation import with_plain_tensors
from ._sparse_pixels import SparseLayout
from ._tile_lists import TileLists, check_splats, dense_tiles, pack_splats


@dataclasses.dataclass(frozen=True, eq=False)
class _Query:
    """Projected Gaussians, and the pixels whose contributors are to be found.

    Attributes:
        splats: [6, rows], see :func:`pack_splats`.
        n: N, or the number of rows if packed.
        lists: The tiles with their pixels.
        shape: Shape of the output; places of pixels are flat indices into it.
        numerics: Whose upper bound of alpha to use.
    """

    splats: Tensor
    n: int
    lists: TileLists
    shape: tuple[int, ...]
    numerics: Numerics

    def count(self) -> tuple[Tensor, Tensor]:
        """Counts contributors, int32, and sums their weights. Each of the shape of the output"""
        n_pixels = math.prod(self.shape)
        counts = torch.zeros(n_pixels, dtype=torch.int32, device=self.splats.device)
        alphas = self.splats.new_zeros(n_pixels)
        for batch in self.lists.batches():
            weights, pixels = batch.weights(self.splats, self.numerics), batch.places >= 0
            counts[batch.places[pixels]] = (weights > 0).sum(-1, dtype=torch.int32)[pixels]
            alphas[batch.places[pixels]] = weights.sum(-1)[pixels]
        return counts.view(self.shape), alphas.view(self.shape)

    def list_first(self, n_listed: int, *, largest: bool) -> tuple[Tensor, Tensor]:
        """Lists the first contributors of each pixel, front to back, or those with the largest weights.

        Returns:
            Gaussians int32, padded with -1, and weights, padded with 0. [*shape of the output, n_listed]
        """
        n_pixels = math.prod(self.shape)
        ids = torch.full((n_pixels, n_listed), -1, dtype=torch.int32, device=self.splats.device)
        listed = self.splats.new_zeros(n_pixels, n_listed)
        for batch in self.lists.batches():
            weights = batch.weights(self.splats, self.numerics)
            gaussians = (batch.rows % max(self.n, 1)).to(torch.int32)[:, None].expand(weights.shape)
            found = _contributors(gaussians.flatten(0, 1), weights.flatten(0, 1))
            if largest:
                found = _keep_largest(*found, n_listed)
            pixels = (batch.places >= 0).flatten()
            own, width = batch.places.flatten()[pixels], min(n_listed, found[0].shape[-1])
            ids[own, :width] = found[0][pixels, :width]
            listed[own, :width] = found[1][pixels, :width]
        return ids.view(*self.shape, n_listed), listed.view(*self.shape, n_listed)


def _contributors(gaussians: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Removes entries without weight from rows, and pads with -1 and 0. [P, K] -> [P, largest number of the others]"""
    contributes = weights > 0
    counts = contributes.sum(-1)
    filled = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    ids = torch.full(filled.shape, -1, dtype=gaussians.dtype, device=counts.device)
    ids.masked_scatter_(filled, gaussians.masked_select(contributes))
    return ids, weights.new_zeros(filled.shape).masked_scatter_(filled, weights.masked_select(contributes))


def _keep_largest(gaussians: Tensor, weights: Tensor, n_kept: int) -> tuple[Tensor, Tensor]:
    """Keeps the largest weights of each row, in their order; of equal weights the first ones. [P, K] -> [P, n_kept]"""
    order = weights.argsort(dim=-1, descending=True, stable=True)[:, :n_kept].sort(dim=-1).values
    return gaussians.gather(-1, order), weights.gather(-1, order)


def _query(
    splats: tuple[Tensor, Tensor, Tensor], lists: TileLists, shape: tuple[int, ...], numerics: NumericsName
) -> _Query:
    dtype = compute_dtype(*splats)
    packed = pack_splats(*(tensor.to(dtype) for tensor in splats))
    return _Query(packed, splats[0].shape[-2], lists, shape, check_numerics(numerics))


def _dense(
    splats: tuple[Tensor, Tensor, Tensor],
    tile_offsets: Tensor,
    flatten_ids: Tensor,
    size: tuple[int, int],
    tile_size: int,
    numerics: NumericsName,
) -> _Query:
    """Returns the query of all pixels of images of a size, width and height."""
    check_splats(*splats)
    lists = dense_tiles("tile_offsets", tile_offsets, flatten_ids, splats[0], size, tile_size)
    return _query(splats, lists, (*tile_offsets.shape[:-2], size[1], size[0]), numerics)


def _sparse(splats: tuple[Tensor, Tensor, Tensor], layout: SparseLayout, numerics: NumericsName) -> _Query:
    layout.check()
    check_splats(*splats)
    check_tile_lists("tile_offsets", layout.tile_offsets, layout.flatten_ids, math.prod(splats[0].shape[:-1]))
    return _query(splats, layout.tile_lists(), tuple(layout.pixel_map.shape), numerics)


def _largest_count(query: _Query, counts: Tensor) -> int:
    """Returns how many contributors to list, the largest of the given counts."""
    check_tensor("num_contributing_gaussians", counts, query.shape, "a count per pixel", dtypes=INTEGERS)
    return int(counts.max()) if counts.numel() else 0


@torch.no_grad()
@with_plain_tensors
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
@with_plain_tensors
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
@with_plain_tensors
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
@with_plain_tensors
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
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map: As for
            :func:`~tsplat.compat.gsplat.rasterize_to_pixels_sparse`.
        image_width, image_height, tile_size, tile_width, tile_height: As for the same function.

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
@with_plain_tensors
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
        means2d, conics, opacities, active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum: As
            for :func:`rasterize_num_contributing_gaussians_sparse`.
        pixel_map, image_width, image_height, tile_size, tile_width, tile_height, numerics: As for the same function.
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
@with_plain_tensors
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
        means2d, conics, opacities, active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum: As
            for :func:`rasterize_num_contributing_gaussians_sparse`.
        pixel_map, image_width, image_height, tile_size, tile_width, tile_height, numerics: As for the same function.
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
