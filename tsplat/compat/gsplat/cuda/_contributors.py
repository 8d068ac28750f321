"""Counts and lists the Gaussians that contribute to each pixel: all of them, or those with the largest weights.

A Gaussian contributes to a pixel if compositing adds it. Its weight is alpha times the transmittance in front of it.
Each function exists for all pixels, and with the suffix ``_sparse`` for the pixels of a layout. Nothing here is
differentiable.
"""

import math

import torch
from torch import Tensor

from ....arguments import INTEGERS, check_numerics, check_tensor
from ....config import NumericsName
from ....runtime.compilation import with_plain_tensors
from ....scalars import check_size
from ...contributions import Contributions
from ._sparse_pixels import SparseLayout
from ._tile_lists import Projected, check_splats, contributions, dense_contributions


@torch.no_grad()
@with_plain_tensors
def rasterize_num_contributing_gaussians(
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    tile_offsets: Tensor, flatten_ids: Tensor,
    image_width: int, image_height: int, tile_size: int,
    *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
    size = image_width, image_height, tile_size
    return _for_all_pixels((means2d, conics, opacities), tile_offsets, flatten_ids, size, numerics).count()


@torch.no_grad()
@with_plain_tensors
def rasterize_contributing_gaussian_ids(
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    tile_offsets: Tensor, flatten_ids: Tensor,
    image_width: int, image_height: int, tile_size: int,
    num_contributing_gaussians: Tensor,
    *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lists the Gaussians that contribute to each pixel, front to back.

    Args:
        num_contributing_gaussians: [..., H, W] integers from :func:`rasterize_num_contributing_gaussians`; their
            maximum is the length of the lists. The other arguments are those of that function.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [..., H, W, largest count]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    size = image_width, image_height, tile_size
    contributing = _for_all_pixels((means2d, conics, opacities), tile_offsets, flatten_ids, size, numerics)
    return _list_all(contributing, means2d, num_contributing_gaussians)


@torch.no_grad()
@with_plain_tensors
def rasterize_top_contributing_gaussian_ids(
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    tile_offsets: Tensor, flatten_ids: Tensor,
    image_width: int, image_height: int, tile_size: int,
    num_depth_samples: int,
    *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lists the Gaussians with the largest weights at each pixel, front to back; nearer ones first for equal weights.

    Args:
        num_depth_samples: Number of Gaussians to list. The other arguments are those of
            :func:`rasterize_num_contributing_gaussians`.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [..., H, W,
        num_depth_samples]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    check_size("num_depth_samples", num_depth_samples)
    size = image_width, image_height, tile_size
    contributing = _for_all_pixels((means2d, conics, opacities), tile_offsets, flatten_ids, size, numerics)
    return _list_first(contributing, means2d, num_depth_samples, largest=True)


@torch.no_grad()
@with_plain_tensors
def rasterize_num_contributing_gaussians_sparse(
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    active_tiles: Tensor, tile_offsets: Tensor, flatten_ids: Tensor,
    tile_pixel_mask: Tensor, tile_pixel_cumsum: Tensor, pixel_map: Tensor,
    image_width: int, image_height: int, tile_size: int, tile_width: int, tile_height: int,
    *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Counts the Gaussians that contribute to chosen pixels.

    Args:
        means2d, conics, opacities, numerics: As for :func:`rasterize_num_contributing_gaussians`; the others as for
            :func:`~tsplat.compat.gsplat.rasterize_to_pixels_sparse`.

    Returns:
        Counts int32 and the rendered alphas, [P] each, in the order of the chosen pixels.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    layout = SparseLayout(
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
        image_height, tile_size, tile_width, tile_height,
    )  # fmt: skip
    return _for_sparse_pixels((means2d, conics, opacities), layout, numerics).count()


@torch.no_grad()
@with_plain_tensors
def rasterize_contributing_gaussian_ids_sparse(
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    active_tiles: Tensor, tile_offsets: Tensor, flatten_ids: Tensor,
    tile_pixel_mask: Tensor, tile_pixel_cumsum: Tensor, pixel_map: Tensor,
    num_contributing_gaussians: Tensor,
    image_width: int, image_height: int, tile_size: int, tile_width: int, tile_height: int,
    *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lists the Gaussians that contribute to chosen pixels, front to back.

    Args:
        num_contributing_gaussians: [P] integers from :func:`rasterize_num_contributing_gaussians_sparse`; their maximum
            is the length of the lists. The other arguments are those of that function.

    Returns:
        Gaussians int32 (rows if packed), padded with -1, and their weights, padded with 0. [P, largest count]

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    layout = SparseLayout(
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
        image_height, tile_size, tile_width, tile_height,
    )  # fmt: skip
    contributing = _for_sparse_pixels((means2d, conics, opacities), layout, numerics)
    return _list_all(contributing, means2d, num_contributing_gaussians)


@torch.no_grad()
@with_plain_tensors
def rasterize_top_contributing_gaussian_ids_sparse(
    means2d: Tensor, conics: Tensor, opacities: Tensor,
    active_tiles: Tensor, tile_offsets: Tensor, flatten_ids: Tensor,
    tile_pixel_mask: Tensor, tile_pixel_cumsum: Tensor, pixel_map: Tensor,
    image_width: int, image_height: int, tile_size: int, tile_width: int, tile_height: int,
    num_depth_samples: int,
    *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lists the Gaussians with the largest weights at chosen pixels, front to back; nearer ones first for equal
    weights.

    Args:
        num_depth_samples: Number of Gaussians to list. The other arguments are those of
            :func:`rasterize_num_contributing_gaussians_sparse`.

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
    contributing = _for_sparse_pixels((means2d, conics, opacities), layout, numerics)
    return _list_first(contributing, means2d, num_depth_samples, largest=True)


def _for_all_pixels(
    splats: Projected, tile_offsets: Tensor, flatten_ids: Tensor, size: tuple[int, int, int], numerics: NumericsName
) -> Contributions:
    """Returns the contributions to all pixels; `size` is the width, the height and the tile size."""
    return dense_contributions("tile_offsets", splats, tile_offsets, flatten_ids, size, check_numerics(numerics))


def _for_sparse_pixels(splats: Projected, layout: SparseLayout, numerics: NumericsName) -> Contributions:
    """Returns the contributions to the pixels of a layout, in the caller's order."""
    preset = check_numerics(numerics)
    check_splats(*splats)
    lists = layout.lists(layout.n_images(), math.prod(splats[0].shape[:-1]))
    return contributions(splats, lists, preset, chosen=layout.flat_pixels())


def _list_all(contributing: Contributions, means2d: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Lists all contributors of each pixel; the maximum of the counts is the length of the lists."""
    check_tensor("num_contributing_gaussians", counts, contributing.shape, "a count per pixel", dtypes=INTEGERS)
    return _list_first(contributing, means2d, int(counts.max()) if counts.numel() else 0)


def _list_first(
    contributing: Contributions, means2d: Tensor, n_listed: int, *, largest: bool = False
) -> tuple[Tensor, Tensor]:
    """Lists the first contributors, or those with the largest weights, as int32 ids, and their weights."""
    rows, weights = contributing.list_first(n_listed, largest=largest)
    return torch.where(rows < 0, -1, rows % max(means2d.shape[-2], 1)).to(torch.int32), weights
