"""Which Gaussians contribute to which pixels, and compositing of such lists."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .... import ArgumentError
from ....arguments import check_ids, check_size, check_tensor, to_int
from ....config import DEFAULT_NUMERICS
from ....stages.compilation import with_plain_tensors
from ....stages.memory import check_images
from ._tile_lists import check_splats, dense_contributions


@torch.no_grad()
@with_plain_tensors
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
        range_start, range_end: Range of blocks of ``tile_size ** 2`` intersections of each tile, front to back; from 0
            to a large number for all of them.
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
    blocks = []
    for name, value in (("range_start", range_start), ("range_end", range_end)):
        block = to_int(value)
        if block is None or block < 0:
            raise ArgumentError(f"{name}: expected an int of at least 0, found {value!r}")
        blocks.append(block)
    found = dense_contributions(
        "isect_offsets", (means2d, conics, opacities), isect_offsets, flatten_ids, (image_width, image_height),
        tile_size, DEFAULT_NUMERICS,
    )  # fmt: skip
    images, n, n_pixels = means2d.shape[:-2], means2d.shape[-2], image_width * image_height
    check_tensor("transmittances", transmittances, [*images, image_height, image_width], "[..., H, W]")
    first, end = (min(number * tile_size**2, flatten_ids.numel()) for number in blocks)
    in_front = transmittances.reshape(found.places.shape).to(found.splats.means2d.dtype)
    places, rows = found.entries(first, end, in_front)
    return rows % max(n, 1), places % n_pixels, places // n_pixels


@with_plain_tensors
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
        ArgumentError: A shape or dtype is invalid, or an id is out of range.
    """
    check_size("image_width", image_width)
    check_size("image_height", image_height)
    check_splats(means2d, conics, opacities)
    *images, n, _ = means2d.shape
    check_tensor("colors", colors, [*images, n, None], "[..., N, D] as means2d")
    check_ids("gaussian_ids", gaussian_ids, n, [None])
    check_ids("pixel_ids", pixel_ids, image_width * image_height, gaussian_ids.shape, "[M] as gaussian_ids")
    check_ids("image_ids", image_ids, math.prod(images), gaussian_ids.shape, "[M] as gaussian_ids")
    rows = image_ids * n + gaussian_ids
    means, (a, b, c) = means2d.reshape(-1, 2)[rows], conics.reshape(-1, 3)[rows].unbind(-1)
    check_images(means2d.device, math.prod(images), image_width, image_height, colors.shape[-1], colors.dtype)
    centers = torch.stack([pixel_ids % image_width, pixel_ids // image_width], -1) + 0.5
    dx, dy = (centers - means).unbind(-1)
    falloff = (-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy).exp()
    alphas = (opacities.flatten()[rows] * falloff).clamp_max(DEFAULT_NUMERICS.alpha_max)
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
