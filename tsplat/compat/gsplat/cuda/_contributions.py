"""Lists the Gaussians that contribute to each pixel, and composites such lists."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .... import ArgumentError
from ....arguments import check_ids, check_tensor, compute_dtype
from ....config import DEFAULT_NUMERICS
from ....runtime.compilation import with_plain_tensors
from ....runtime.memory import check_images
from ....scalars import check_size, to_int
from ...contributions import Contributions
from ._tile_lists import check_splats, dense_contributions


@torch.no_grad()
@with_plain_tensors
def rasterize_to_indices_in_range(
    range_start: int, range_end: int, transmittances: Tensor,
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    image_width: int, image_height: int, tile_size: int, isect_offsets: Tensor, flatten_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Lists the Gaussians that contribute to each pixel, for a range of each tile's intersections.

    The compositing rules are those of :func:`tsplat.rasterize_to_pixels`. A call does not know whether a pixel became
    opaque in an earlier range, so it may list Gaussians of a later range that are not composited.

    Args:
        range_start, range_end: Range of blocks of ``tile_size ** 2`` intersections of each tile, front to back; from 0
            to a large number for all of them.
        transmittances: [..., H, W] transmittance in front of the range.
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
    splats, size = (means2d, conics, opacities), (image_width, image_height, tile_size)
    contributions = dense_contributions("isect_offsets", splats, isect_offsets, flatten_ids, size, DEFAULT_NUMERICS)
    return _indices_in_range(contributions, means2d, range_start, range_end, transmittances)


@torch.no_grad()
@with_plain_tensors
def rasterize_to_indices_in_range_2dgs(
    range_start: int, range_end: int, transmittances: Tensor,
    means2d: Tensor, ray_transforms: Tensor, opacities: Tensor,
    image_width: int, image_height: int, tile_size: int, isect_offsets: Tensor, flatten_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Lists the 2D Gaussians that contribute to each pixel, for a range of each tile's intersections.

    The compositing rules are those of :func:`tsplat.rasterize_to_pixels_2dgs`; other arguments, results and errors are
    those of :func:`rasterize_to_indices_in_range`.

    Args:
        ray_transforms: [..., N, 3, 3], from :func:`tsplat.fully_fused_projection_2dgs`.
    """
    splats, size = (means2d, ray_transforms, opacities), (image_width, image_height, tile_size)
    contributions = dense_contributions(
        "isect_offsets", splats, isect_offsets, flatten_ids, size, DEFAULT_NUMERICS, "surfel"
    )
    return _indices_in_range(contributions, means2d, range_start, range_end, transmittances)


def _indices_in_range(
    contributions: Contributions, means2d: Tensor, range_start: int, range_end: int, transmittances: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Lists the contributions in a range of blocks of each tile, as ids of Gaussians, pixels and images."""
    blocks = []
    for name, value in (("range_start", range_start), ("range_end", range_end)):
        block = to_int(value)
        if block is None or block < 0:
            raise ArgumentError(f"{name}: expected an int of at least 0, found {value!r}")
        blocks.append(block)
    first, end = (
        min(n * contributions.settings.tile_size**2, len(contributions.intersections.flatten_ids)) for n in blocks
    )
    check_tensor("transmittances", transmittances, contributions.shape, "[..., H, W]")
    in_front = transmittances.reshape(contributions.result_ids.shape).to(contributions.splats.means2d.dtype)
    result_ids, rows = contributions.entries(first, end, in_front)
    n_pixels = contributions.result_ids.shape[1:].numel()
    return rows % max(means2d.shape[-2], 1), result_ids % n_pixels, result_ids // n_pixels


@with_plain_tensors
def accumulate(
    means2d: Tensor, conics: Tensor, opacities: Tensor, colors: Tensor,
    gaussian_ids: Tensor, pixel_ids: Tensor, image_ids: Tensor, image_width: int, image_height: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Composites the listed Gaussians in plain PyTorch, without a background.

    Args:
        means2d: [..., N, 2] pixels.
        conics: [..., N, 3] upper triangles of the inverse screen covariances.
        opacities: [..., N] after sigmoid.
        colors: [..., N, D].
        gaussian_ids, pixel_ids, image_ids: [M] integers from :func:`rasterize_to_indices_in_range`; the entries of a
            pixel are adjacent, front to back.
        image_width, image_height: Image size in pixels.

    Returns:
        Colors [..., H, W, D] and alphas [..., H, W, 1]. Differentiable with respect to the first four arguments, except
        for geometry and opacity where alpha is clamped.

    Raises:
        ArgumentError: A shape or dtype is invalid, or an id is out of range.
    """
    check_splats(means2d, conics, opacities)
    entries = _Entries.check(means2d, colors, gaussian_ids, pixel_ids, image_ids, (image_width, image_height))
    dtype = compute_dtype(means2d, conics, opacities, colors)
    means2d, conics, opacities, colors = (t.to(dtype) for t in (means2d, conics, opacities, colors))
    a, b, c = entries.take(conics, 3).unbind(-1)
    dx, dy = (entries.centers - entries.take(means2d, 2)).unbind(-1)
    sigmas = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    return entries.accumulate(sigmas, opacities, colors)


@with_plain_tensors
def accumulate_2dgs(
    means2d: Tensor, ray_transforms: Tensor, opacities: Tensor, colors: Tensor, normals: Tensor,
    gaussian_ids: Tensor, pixel_ids: Tensor, image_ids: Tensor, image_width: int, image_height: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Composites the listed 2D Gaussians in plain PyTorch, without a background.

    Args:
        means2d: [..., N, 2] pixels, the centers of the low-pass filter.
        ray_transforms: [..., N, 3, 3], from :func:`tsplat.fully_fused_projection_2dgs`; the last entry must not be 0.
        opacities, colors: [..., N] after sigmoid, and [..., N, D].
        normals: [..., N, 3].
        gaussian_ids, pixel_ids, image_ids: [M] integers from :func:`rasterize_to_indices_in_range_2dgs`, as for
            :func:`accumulate`.
        image_width, image_height: Image size in pixels.

    Returns:
        Colors [..., H, W, D], alphas [..., H, W, 1] and normals [..., H, W, 3]. Differentiable with respect to the
        first five arguments, except for geometry and opacity where alpha is clamped.

    Raises:
        ArgumentError: A shape or dtype is invalid, or an id is out of range.
    """
    check_splats(means2d, ray_transforms, opacities, "surfel")
    entries = _Entries.check(means2d, colors, gaussian_ids, pixel_ids, image_ids, (image_width, image_height))
    check_tensor("normals", normals, [*means2d.shape[:-1], 3], "[..., N, 3] as means2d")
    dtype = compute_dtype(means2d, ray_transforms, opacities, colors, normals)
    means2d, ray_transforms, opacities = (t.to(dtype) for t in (means2d, ray_transforms, opacities))
    transforms = entries.take(ray_transforms, 9).view(-1, 3, 3)
    # Use coordinates relative to the projected centers, which are small.
    origins = transforms[:, :2, 2] / transforms[:, 2:, 2]
    relative = transforms[:, :2, :2] - origins[..., None] * transforms[:, 2:, :2]
    a, b, c, d = relative.flatten(1).unbind(-1)
    z = transforms[:, 2, 2]
    t0, t1 = transforms[:, 2, 0] / z, transforms[:, 2, 1] / z
    dx, dy = (entries.centers - origins).unbind(-1)
    p0, p1 = d * dx - b * dy, a * dy - c * dx
    w = (a * d - b * c) / z - t0 * p0 - t1 * p1
    on_disc = (p0 * p0 + p1 * p1) / (w * w)
    on_image = 2 * (entries.centers - entries.take(means2d, 2)).square().sum(-1)
    sigmas = 0.5 * torch.minimum(on_disc, on_image)
    renders, alphas = entries.accumulate(sigmas, opacities, torch.cat([colors.to(dtype), normals.to(dtype)], -1))
    return renders[..., :-3], alphas, renders[..., -3:]


class _Entries(NamedTuple):
    """Checked entries: rows of Gaussians [M], flat pixels of all images [M], pixel centers, and the shape of the
    images."""

    rows: Tensor
    pixels: Tensor
    centers: Tensor
    shape: tuple[int, ...]

    @classmethod
    def check(
        cls,
        means2d: Tensor,
        colors: Tensor,
        gaussian_ids: Tensor,
        pixel_ids: Tensor,
        image_ids: Tensor,
        size: tuple[int, int],
    ) -> "_Entries":
        width, height = check_size("image_width", size[0]), check_size("image_height", size[1])
        *images, n, _ = means2d.shape
        check_tensor("colors", colors, [*images, n, None], "[..., N, D] as means2d")
        check_ids("gaussian_ids", gaussian_ids, n, [None])
        check_ids("pixel_ids", pixel_ids, width * height, gaussian_ids.shape, "[M] as gaussian_ids")
        check_ids("image_ids", image_ids, math.prod(images), gaussian_ids.shape, "[M] as gaussian_ids")
        check_images(means2d.device, math.prod(images), width, height, colors.shape[-1], colors.dtype)
        centers = torch.stack([pixel_ids % width, pixel_ids // width], -1) + 0.5
        return cls(
            image_ids * n + gaussian_ids, image_ids * (width * height) + pixel_ids, centers, (*images, height, width)
        )

    def take(self, values: Tensor, size: int) -> Tensor:
        """Gathers values of the entries' Gaussians. [..., N, size] -> [M, size]"""
        return values.reshape(-1, size)[self.rows]

    def accumulate(self, sigmas: Tensor, opacities: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Composites values [..., N, D] of the entries, with alpha = opacity exp(-sigma)."""
        alphas = (opacities.flatten()[self.rows] * (-sigmas).exp()).clamp_max(DEFAULT_NUMERICS.alpha_max)
        weights = alphas * _exclusive_products(1 - alphas, self.pixels)
        own = torch.cat([self.take(values, values.shape[-1]), torch.ones_like(weights)[:, None]], -1)
        renders = own.new_zeros(math.prod(self.shape), own.shape[-1])
        renders = renders.index_add(0, self.pixels, weights[:, None] * own).view(*self.shape, own.shape[-1])
        return renders[..., :-1], renders[..., -1:]


def _exclusive_products(factors: Tensor, keys: Tensor) -> Tensor:
    """Returns the product of the preceding factors for each entry, within its run of equal keys. [M], [M] -> [M]"""
    indices = torch.arange(keys.numel(), device=keys.device)
    starts = torch.ones_like(keys, dtype=torch.bool)
    starts[1:] = keys[1:] != keys[:-1]
    # Index of each entry in its run.
    ranks = indices - torch.where(starts, indices, 0).cummax(0).values if keys.numel() else indices
    products = torch.where(starts, 1.0, factors.roll(1))
    step, longest = 1, int(ranks.max()) if keys.numel() else 0
    while step <= longest:
        products = products * torch.where(ranks >= step, products.roll(step), 1.0)
        step *= 2
    return products
