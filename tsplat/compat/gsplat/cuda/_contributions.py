"""Which Gaussians contribute to which pixels, and compositing of such lists in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .... import ArgumentError, ShapeError
from ....arguments import check_size, check_tensor, check_tile_size
from ....config import ALPHA_MIN, DEFAULT_NUMERICS, TRANSMITTANCE_MIN, Numerics


@torch.no_grad()
def rasterize_to_indices_in_range(
    range_start: int,
    range_end: int,
    transmittances: Tensor,
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Lists the Gaussians that contribute to each pixel, for a range of each tile's intersections.

    The rules are those of :func:`tsplat.rasterize_to_pixels`. A pixel whose transmittance was too low in an earlier
    range is not remembered: fainter Gaussians of a later range may be listed.

    Args:
        range_start, range_end: Range of blocks of ``tile_size``^2 intersections of each tile, front to back; from 0 to
            a large number for all of them.
        transmittances: [..., H, W] before the range.
        means2d: [..., N, 2] pixels.
        conics: [..., N, 3] upper triangles of the inverse screen covariances. Gaussians whose conic is not positive
            semidefinite do not contribute.
        opacities: [..., N] after sigmoid.
        image_width, image_height: Image size in pixels.
        tile_size: Edge of a tile in pixels: 4, 8 or 16.
        isect_offsets, flatten_ids: From :func:`tsplat.isect_tiles` and :func:`tsplat.isect_offset_encode`.

    Returns:
        ``gaussian_ids``, ``pixel_ids`` (row times width plus column) and ``image_ids``, each [M] int64, sorted by image
        and pixel, then front to back. Not differentiable.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    check_size("image_width", image_width)
    check_size("image_height", image_height)
    check_tile_size(tile_size)
    for name, value in (("range_start", range_start), ("range_end", range_end)):
        if not isinstance(value, int) or value < 0:
            raise ArgumentError(f"{name}: expected an int of at least 0, found {value!r}")
    check_tensor("means2d", means2d, [*means2d.shape[:-1], 2], "[..., N, 2]")
    images, n = means2d.shape[:-2], means2d.shape[-2]
    check_tensor("conics", conics, [*images, n, 3], "[..., N, 3] as means2d")
    check_tensor("opacities", opacities, [*images, n], "[..., N] as means2d")
    check_tensor("transmittances", transmittances, [*images, image_height, image_width], "[..., H, W]")
    tiles = (math.ceil(image_height / tile_size), math.ceil(image_width / tile_size))
    if tuple(isect_offsets.shape) != (*images, *tiles):
        raise ShapeError(
            f"isect_offsets: expected {[*images, *tiles]} tiles of {tile_size} for images of "
            f"{image_width}x{image_height}, found {list(isect_offsets.shape)}"
        )
    splats = pack_splats(means2d, conics, opacities)
    remaining = transmittances.reshape(-1)
    rows, keys = [flatten_ids.new_zeros(0, dtype=torch.int64)], [flatten_ids.new_zeros(0, dtype=torch.int64)]
    blocks = (range_start, range_end)
    for tile in dense_tiles(isect_offsets, flatten_ids, image_width, image_height, tile_size, blocks):
        added = tile.weights(splats, DEFAULT_NUMERICS, remaining[tile.places]) > 0
        pixel, place = added.nonzero(as_tuple=True)
        rows.append(tile.rows[place])
        keys.append(tile.places[pixel])
    all_keys, order = torch.cat(keys).sort(stable=True)
    n_pixels = image_width * image_height
    return torch.cat(rows)[order] % max(n, 1), all_keys % n_pixels, all_keys // n_pixels


class TilePixels(NamedTuple):
    """Pixels of a tile, and the rows that intersect it.

    Attributes:
        centers: [P, 2] pixels.
        places: [P] int64, index of each pixel in the flat output.
        rows: [K] int64, front to back.
    """

    centers: Tensor
    places: Tensor
    rows: Tensor

    def weights(self, splats: Tensor, numerics: Numerics, transmittances: Tensor | None = None) -> Tensor:
        """Computes alpha times transmittance of each row at each pixel, 0 where the row does not contribute. [P, K]

        Args:
            splats: From :func:`pack_splats`.
            numerics: Whose upper bound of alpha to use.
            transmittances: [P] before the first row; None for 1.
        """
        own = splats[self.rows]
        alphas = _alphas(self.centers[:, None] - own[:, :2], own[:, 2:5], own[:, 5], numerics)
        alphas = torch.where(alphas >= ALPHA_MIN, alphas, 0.0)
        start = torch.ones_like(alphas[:, :1]) if transmittances is None else transmittances[:, None]
        behind = start * (1 - alphas).cumprod(-1)
        before = torch.cat([start, behind[:, :-1]], -1)
        # The transmittance never rises, so that nothing is added behind the Gaussian at which a pixel stops.
        return torch.where(behind > TRANSMITTANCE_MIN, alphas * before, 0.0)


def pack_splats(means2d: Tensor, conics: Tensor, opacities: Tensor) -> Tensor:
    """Packs mean x, y; conic a, b, c; opacity, 0 for Gaussians that do not contribute. [I N, 6]"""
    a, b, c = conics.unbind(-1)
    valid = (a >= 0) & (c >= 0) & (b * b <= a * c * 1.0001)
    opacities = torch.where(valid, opacities, 0.0)
    return torch.cat([means2d, torch.where(valid[..., None], conics, 0.0), opacities[..., None]], -1).reshape(-1, 6)


def dense_tiles(
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    blocks: tuple[int, int] | None = None,
) -> Iterator[TilePixels]:
    """Iterates over the tiles that have intersections. Pixels are placed in [I, H, W].

    Args:
        isect_offsets: [..., tile_height, tile_width].
        flatten_ids: [M].
        image_width, image_height: Image size in pixels.
        tile_size: Edge of a tile in pixels.
        blocks: Range of blocks of ``tile_size``^2 intersections of each tile; None for all.
    """
    tile_height, tile_width = isect_offsets.shape[-2:]
    bounds = [*isect_offsets.reshape(-1).tolist(), flatten_ids.numel()]
    for index in range(len(bounds) - 1):
        first, end = bounds[index], bounds[index + 1]
        if blocks is not None:
            first, end = first + blocks[0] * tile_size**2, min(end, first + blocks[1] * tile_size**2)
        if first >= end:
            continue
        image, tile = divmod(index, tile_height * tile_width)
        top, left = tile // tile_width * tile_size, tile % tile_width * tile_size
        y = torch.arange(top, min(top + tile_size, image_height), device=flatten_ids.device)
        x = torch.arange(left, min(left + tile_size, image_width), device=flatten_ids.device)
        centers = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2) + 0.5  # row by row
        places = ((image * image_height + y[:, None]) * image_width + x).reshape(-1)
        yield TilePixels(centers, places, flatten_ids[first:end].to(torch.int64))


def _alphas(offsets: Tensor, conics: Tensor, opacities: Tensor, numerics: Numerics) -> Tensor:
    """Alpha of Gaussians at offsets [..., 2] from their means, in pixels. [...]"""
    dx, dy = offsets.unbind(-1)
    a, b, c = conics.unbind(-1)
    sigmas = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    return (opacities * (-sigmas).exp()).clamp_max(numerics.alpha_max)


def accumulate(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor,
    gaussian_ids: Tensor,
    pixel_ids: Tensor,
    image_ids: Tensor,
    image_width: int,
    image_height: int,
) -> tuple[Tensor, Tensor]:
    """Composites the listed Gaussians in plain PyTorch, without a background.

    Args:
        means2d: [..., N, 2] pixels.
        conics: [..., N, 3] upper triangles of the inverse screen covariances.
        opacities: [..., N] after sigmoid.
        colors: [..., N, D].
        gaussian_ids, pixel_ids, image_ids: [M] integers from :func:`rasterize_to_indices_in_range`: entries of a pixel
            are adjacent, front to back.
        image_width, image_height: Image size in pixels.

    Returns:
        Colors [..., H, W, D] and alphas [..., H, W, 1]. Differentiable with respect to the first four arguments, except
        for geometry and opacity where alpha is clamped.

    Raises:
        ArgumentError: A shape or dtype is invalid.
    """
    check_size("image_width", image_width)
    check_size("image_height", image_height)
    check_tensor("means2d", means2d, [*means2d.shape[:-1], 2], "[..., N, 2]")
    leading = means2d.shape[:-1]
    images, n = leading[:-1], leading[-1]
    check_tensor("conics", conics, [*leading, 3], "[..., N, 3] as means2d")
    check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
    check_tensor("colors", colors, [*leading, None], "[..., N, D] as means2d")
    rows = image_ids * n + gaussian_ids
    centers = torch.stack([pixel_ids % image_width, pixel_ids // image_width], -1) + 0.5
    own = (means2d.reshape(-1, 2)[rows], conics.reshape(-1, 3)[rows], opacities.reshape(-1)[rows])
    alphas = _alphas(centers - own[0], own[1], own[2], DEFAULT_NUMERICS)
    pixels = image_ids * (image_width * image_height) + pixel_ids
    weights = alphas * _exclusive_products(1 - alphas, pixels)
    values = torch.cat([colors.reshape(-1, colors.shape[-1])[rows], torch.ones_like(weights)[:, None]], -1)
    renders = values.new_zeros(math.prod(images) * image_height * image_width, values.shape[-1])
    renders = renders.index_add(0, pixels, weights[:, None] * values)
    renders = renders.view(*images, image_height, image_width, values.shape[-1])
    return renders[..., :-1], renders[..., -1:]


def _exclusive_products(factors: Tensor, keys: Tensor) -> Tensor:
    """Products of the factors before each entry within its run of equal keys. [M], [M] -> [M]"""
    places = torch.arange(keys.numel(), device=keys.device)
    starts = torch.ones_like(keys, dtype=torch.bool)
    starts[1:] = keys[1:] != keys[:-1]
    # Number of entries before each one in its run.
    ranks = places - torch.where(starts, places, 0).cummax(0).values if keys.numel() else places
    products = torch.where(starts, 1.0, factors.roll(1))
    step, longest = 1, int(ranks.max()) if keys.numel() else 0
    while step <= longest:
        products = products * torch.where(ranks >= step, products.roll(step), 1.0)
        step *= 2
    return products
