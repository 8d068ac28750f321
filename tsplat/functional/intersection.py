"""Lists of the intersections of Gaussians and tiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..arguments import INTEGERS, check_bool, check_devices, check_ids, check_numerics, check_tensor, check_tile_size
from ..config import Backend, NumericsName
from ..data import IntersectionSettings, ScreenGaussians, TileGrid
from ..errors import ArgumentError
from ..runtime.compilation import eager, with_plain_tensors
from ..runtime.memory import INDEX_MAX, check_tiles
from ..scalars import check_size
from ..stages.intersection import count_tiles, encode_ids, tile_bits
from ..stages.listing import depth_order, find_spans, list_intersections


@eager
@with_plain_tensors
@torch.no_grad()
def isect_tiles(
    means2d: Tensor,
    radii: Tensor,
    depths: Tensor,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    sort: bool = True,
    segmented: bool = False,
    packed: bool = False,
    n_images: int | None = None,
    image_ids: Tensor | None = None,
    gaussian_ids: Tensor | None = None,
    *,
    conics: Tensor | None = None,
    opacities: Tensor | None = None,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor, Tensor]:
    """Lists the intersections of projected Gaussians and tiles. Same as gsplat 1.5.3; fewer with conics and opacities.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        radii: [..., N, 2] int32 pixels, or [nnz, 2]; zero where culled.
        depths: [..., N] or [nnz].
        tile_size: Side length of a tile in pixels: 4, 8 or 16.
        tile_width, tile_height: Number of tiles along each axis of an image.
        sort: Whether to sort by image, tile, depth and index. Otherwise intersections are listed Gaussian by Gaussian.
        segmented: Whether to sort each image separately. The result is the same.
        packed: Whether inputs are packed; requires ``n_images`` and ``image_ids`` [nnz].
        gaussian_ids: Unused, as in gsplat.
        conics, opacities: [..., N, 3] and [..., N], or packed. With both, only tiles with a pixel center inside the
            ellipse where alpha is 1/255 are listed, which does not change the image. Without, all tiles that overlap
            mean +- radii are listed.
        backend, numerics: As in :func:`tsplat.rasterization`. ``numerics`` must be the preset that the radii were
            computed with. It also determines the bits of ``isect_ids``; see :func:`isect_offset_encode`.

    Returns:
        ``tiles_per_gauss`` int32 [..., N] or [nnz]; ``isect_ids`` int64 [M], image | tile | depth; ``flatten_ids``
        int32 [M], indices into [I * N] or [nnz].

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: The tile size is not implemented.

    Example::

        import torch
        from tsplat import isect_tiles

        means2d = torch.tensor([[[16.0, 8]]])  # between two tiles
        radii = torch.tensor([[[4, 4]]], dtype=torch.int32)
        tiles_per_gauss, _, _ = isect_tiles(means2d, radii, torch.ones(1, 1), 16, 5, 4)
        assert tiles_per_gauss.item() == 2
    """
    tile_size = check_tile_size(tile_size)
    tile_width, tile_height = check_size("tile_width", tile_width), check_size("tile_height", tile_height)
    sort, segmented, packed = (
        check_bool(name, value) for name, value in (("sort", sort), ("segmented", segmented), ("packed", packed))
    )
    check_tensor("depths", depths, [None] if packed else [...], "[nnz], as packed is True")
    check_tensor("means2d", means2d, [*depths.shape, 2], "[..., N, 2] as depths")
    check_tensor("radii", radii, means2d.shape, "[..., N, 2] as means2d", dtypes=INTEGERS)
    if (conics is None) != (opacities is None):
        raise ArgumentError("conics: pass both conics and opacities, or neither")
    if conics is not None and opacities is not None:
        check_tensor("conics", conics, [*depths.shape, 3], "[..., N, 3] as depths")
        check_tensor("opacities", opacities, list(depths.shape), "[..., N] as depths")
    if packed:
        if n_images is None or image_ids is None:
            raise ArgumentError("image_ids: required with n_images if packed is True")
        n_images = check_size("n_images", n_images)
        check_ids("image_ids", image_ids, n_images, depths.shape, "[nnz] as depths")
    check_devices(
        dict(means2d=means2d, radii=radii, depths=depths, conics=conics, opacities=opacities, image_ids=image_ids)
    )
    if not packed or image_ids is None or n_images is None:
        n_images, image_ids = math.prod(depths.shape[:-1]), None
    else:
        image_ids = image_ids.to(torch.int64).contiguous()
    radii, depths_flat = radii.reshape(-1, 2).to(torch.int32).contiguous(), depths.reshape(-1).contiguous()
    if sort:
        visible_depths = torch.where((radii > 0).all(-1), depths_flat, torch.inf)
        order = depth_order(visible_depths, backend, image_ids, n_images if segmented else 1)
    else:
        order = torch.arange(depths_flat.numel(), device=depths.device)
    screen = ScreenGaussians(
        means2d.reshape(-1, 2).contiguous(),
        radii,
        None if conics is None else conics.reshape(-1, 3).contiguous(),
        None if opacities is None else opacities.reshape(-1).contiguous(),
        order,
        image_ids,
    )
    grid = TileGrid(n_images, tile_size, tile_width, tile_height)
    check_tiles(grid.n_tiles, means2d.device)
    preset = check_numerics(numerics)
    settings = IntersectionSettings(preset, backend, segmented=segmented)
    band = (0, grid.n_tile_rows)
    spans = find_spans(screen, grid, band, settings)
    lists = list_intersections(screen, grid, band, spans, settings, sort=sort)
    return count_tiles(lists).view(depths.shape), encode_ids(lists, depths_flat, grid, preset), lists.flatten_ids


@with_plain_tensors
def isect_offset_encode(
    isect_ids: Tensor, n_images: int, tile_width: int, tile_height: int, *, numerics: NumericsName = "gsplat-1.5"
) -> Tensor:
    """Returns the index of the first intersection of each tile, from the sorted ``isect_ids`` of :func:`isect_tiles`.

    Args:
        isect_ids: [M] sorted ids.
        n_images: Number of images I.
        tile_width, tile_height: Number of tiles along each axis of an image.
        numerics: The preset that the ids were computed with. With ``"gsplat-1.6"``, tile ids take one bit less if the
            number of tiles is a power of two.

    Returns:
        Offsets into the ids, [I, tile_height, tile_width]: int32, or int64 if 32 bits do not suffice.

    Raises:
        ArgumentError: A shape, dtype or value is invalid.
    """
    n_images = check_size("n_images", n_images)
    tile_width, tile_height = check_size("tile_width", tile_width), check_size("tile_height", tile_height)
    check_tensor("isect_ids", isect_ids, [None], "[M]", dtypes=INTEGERS)
    n_tiles = tile_width * tile_height
    check_tiles(n_images * n_tiles, isect_ids.device)
    bits = tile_bits(n_tiles, check_numerics(numerics))
    above = isect_ids >> 32
    tile_ids = (above >> bits) * n_tiles + (above & ((1 << bits) - 1))
    tiles, fits = torch.arange(n_images * n_tiles, device=isect_ids.device), isect_ids.numel() <= INDEX_MAX
    starts = torch.searchsorted(tile_ids, tiles, out_int32=fits)  # int32 as in gsplat
    return starts.view(n_images, tile_height, tile_width)
