"""Stage: which Gaussian touches which tile, in depth order. Nothing here is differentiable."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import check_absent, check_devices, check_numerics, check_size, check_tensor, check_tile_size
from ..config import DEFAULT_NUMERICS, Numerics
from ..data import GaussianMajor, Pairs, TileGrid
from ..errors import ArgumentError, ShapeError
from .backend import launchers


def depth_order(radii: Tensor, depths: Tensor) -> Tensor:
    """Rows front to back, ties by row, culled ones last. [R, 2], [R] -> [R] int64"""
    return torch.where((radii > 0).all(-1), depths, torch.inf).argsort(stable=True)


@torch.no_grad()
def list_intersections(
    means2d: Tensor,
    radii: Tensor,
    conics: Tensor | None,
    opacities: Tensor | None,
    order: Tensor,
    image_ids: Tensor | None,
    grid: TileGrid,
    band: tuple[int, int],
    *,
    numerics: Numerics = DEFAULT_NUMERICS,
    backend: str = "auto",
    sort: bool = True,
    admit: Callable[[int, int], None] | None = None,
) -> Pairs:
    """Pairs of row and tile in a band of flat tile rows, ordered by tile, then depth, then row.

    Args:
        means2d, radii: [R, 2], [R, 2] int32.
        conics, opacities: [R, 3], [R] to test the ellipse on which alpha is 1/255; None to test mean +- radii.
        order: [R] from :func:`depth_order`; emitted in this order, pairs need a stable sort by tile alone, whose keys
            are int16 while they fit.
        image_ids: [R] int64, or None where rows are [I, R / I].
        band: First and end flat tile row.
        sort: Whether to sort by tile; otherwise pairs come row by row.
        admit: Called with the numbers of items and of pairs before memory is taken for either; may raise.
    """
    launch = launchers(means2d.device, backend)
    n_rows = order.numel()
    if n_rows >= 2**31 or grid.n_tiles >= 2**31:
        raise ArgumentError(
            f"means: {n_rows} projected Gaussians on {grid.n_images} images of {grid.tile_width * grid.tile_height} "
            "tiles are more than 32-bit indices hold; render fewer cameras at a time"
        )
    n_per_image = n_rows // max(grid.n_images, 1)
    ellipse = (means2d, radii, conics, opacities, order)
    first_rows, n_tile_rows = launch.tile_rows(
        *ellipse,
        image_ids,
        n_per_image=n_per_image,
        tile_size=grid.tile_size,
        tile_height=grid.tile_height,
        band=band,
        extend=numerics.extend,
    )
    item_starts = _exclusive_sum(n_tile_rows)
    n_items = int(item_starts[-1])
    if admit:
        admit(n_items, 0)
    parents, first_columns, n_columns = launch.tile_columns(
        *ellipse,
        first_rows,
        item_starts,
        n_items,
        tile_size=grid.tile_size,
        tile_width=grid.tile_width,
        extend=numerics.extend,
    )
    slot_starts = _exclusive_sum(n_columns)
    n_pairs = int(slot_starts[-1])
    if admit:
        admit(n_items, n_pairs)
    first_tile, n_tiles = band[0] * grid.tile_width, (band[1] - band[0]) * grid.tile_width
    short = n_tiles <= 2**16
    key_bias = first_tile + (2**15 if short else 0)
    keys, rows = launch.tile_pairs(
        order,
        image_ids,
        first_rows,
        item_starts,
        parents,
        first_columns,
        slot_starts,
        n_pairs,
        n_per_image=n_per_image,
        tile_width=grid.tile_width,
        tile_height=grid.tile_height,
        key_dtype=torch.int16 if short else torch.int32,
        key_bias=key_bias,
    )
    slots = torch.arange(n_pairs, device=keys.device)
    isect_offsets = slots[:0]
    if sort:
        keys, slots = keys.sort(stable=True)
        rows = rows[slots]
        bounds = torch.arange(n_tiles + 1, device=keys.device) + (first_tile - key_bias)
        isect_offsets = torch.searchsorted(keys.to(torch.int32), bounds.to(torch.int32))
    return Pairs(first_tile, isect_offsets, rows, GaussianMajor(slots, slot_starts, item_starts, order), keys, key_bias)


def _exclusive_sum(counts: Tensor) -> Tensor:
    """[n] -> [n + 1] int64, starting at 0 and ending in the total."""
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int64), (1, 0))


def count_tiles(order: GaussianMajor) -> Tensor:
    """Pairs of each row, [R] int32."""
    counts = torch.empty(order.item_rows.numel(), dtype=torch.int32, device=order.slots.device)
    counts[order.item_rows] = order.slot_starts[order.item_starts].diff().to(torch.int32)
    return counts


def encode_ids(pairs: Pairs, depths: Tensor, grid: TileGrid) -> Tensor:
    """gsplat's 64-bit ids: image | tile | depth as fp32 bits, 32 of them for the depth. [M] int64"""
    assert pairs.keys is not None
    n_tiles = grid.tile_width * grid.tile_height
    tile_ids = pairs.keys.to(torch.int64) + pairs.key_bias
    bits = depths.detach().to(torch.float32)[pairs.flatten_ids].view(torch.int32).to(torch.int64)
    return (tile_ids // n_tiles << (32 + _tile_bits(n_tiles))) | (tile_ids % n_tiles << 32) | bits


def _tile_bits(n_tiles: int) -> int:
    return math.floor(math.log2(n_tiles)) + 1


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
    backend: str = "auto",
    numerics: str = "gsplat-1.5",
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of projected Gaussian and tile; same as gsplat 1.5.3's, and fewer where conics and opacities are given.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        radii: [..., N, 2] int32 pixels, or [nnz, 2]; zero where culled.
        depths: [..., N] or [nnz].
        tile_size: Pixels along a tile's edge: 4, 8 or 16.
        tile_width, tile_height: Tiles per image row and column.
        sort: Whether pairs come by image, tile and depth, ties by index; otherwise Gaussian by Gaussian.
        packed: Whether inputs are packed; then ``n_images`` and ``image_ids`` [nnz] are needed.
        gaussian_ids: Not needed; accepted because gsplat asks for it.
        conics, opacities: [..., N, 3] and [..., N], or packed. With both, only tiles that hold a pixel center inside
            the ellipse on which alpha is 1/255 are listed (compositing loses nothing); without, tiles that overlap
            mean +- radii.
        backend, numerics: As in :func:`tsplat.rasterization`; whose constants the radii were made with.

    Returns:
        ``tiles_per_gauss`` int32 [..., N] or [nnz]; ``isect_ids`` int64 [M], image | tile | depth; ``flatten_ids``
        int32 [M], indices into [I * N] or [nnz].

    Raises:
        ArgumentError: A shape, element type or value that has no meaning.
        NotImplementedError: ``segmented=True``, or a tile size that is not implemented.
    """
    check_absent({"segmented": (segmented, False)})
    check_tile_size(tile_size)
    check_size("tile_width", tile_width)
    check_size("tile_height", tile_height)
    check_tensor("depths", depths, [None] if packed else list(depths.shape), "[nnz], as packed is True")
    check_tensor("means2d", means2d, [*depths.shape, 2], "[..., N, 2] as depths")
    if radii.shape != means2d.shape:
        raise ShapeError(f"radii: expected {list(means2d.shape)} as means2d, found {list(radii.shape)}")
    if (conics is None) != (opacities is None):
        raise ArgumentError("conics: give conics and opacities together, or neither")
    if conics is not None and opacities is not None:
        check_tensor("conics", conics, [*depths.shape, 3], "[..., N, 3] as depths")
        check_tensor("opacities", opacities, list(depths.shape), "[..., N] as depths")
    check_devices(
        dict(means2d=means2d, radii=radii, depths=depths, conics=conics, opacities=opacities, image_ids=image_ids)
    )
    if packed:
        if n_images is None or image_ids is None:
            raise ArgumentError("image_ids: needed with n_images where packed is True")
    else:
        n_images, image_ids = math.prod(depths.shape[:-1]), None
    radii, depths_flat = radii.reshape(-1, 2).contiguous(), depths.reshape(-1).contiguous()
    order = depth_order(radii, depths_flat) if sort else torch.arange(depths_flat.numel(), device=depths.device)
    grid = TileGrid(n_images, tile_size, tile_width, tile_height)
    pairs = list_intersections(
        means2d.reshape(-1, 2).contiguous(),
        radii,
        None if conics is None else conics.reshape(-1, 3).contiguous(),
        None if opacities is None else opacities.reshape(-1).contiguous(),
        order,
        image_ids,
        grid,
        (0, grid.n_tile_rows),
        numerics=check_numerics(numerics),
        backend=backend,
        sort=sort,
    )
    assert pairs.gaussian_major is not None
    return count_tiles(pairs.gaussian_major).view(depths.shape), encode_ids(pairs, depths_flat, grid), pairs.flatten_ids


def isect_offset_encode(isect_ids: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
    """Where each tile's pairs begin among the sorted ids [M] of :func:`isect_tiles`. [I, tile_height, tile_width]"""
    n_tiles = tile_width * tile_height
    bits = _tile_bits(n_tiles)
    above = isect_ids >> 32
    tile_ids = (above >> bits) * n_tiles + (above & ((1 << bits) - 1))
    starts = torch.searchsorted(tile_ids, torch.arange(n_images * n_tiles, device=isect_ids.device))
    return narrow_offsets(starts, isect_ids.numel()).view(n_images, tile_height, tile_width)


def narrow_offsets(offsets: Tensor, n_pairs: int) -> Tensor:
    """int32, as gsplat's offsets are, while they fit."""
    return offsets.to(torch.int32) if n_pairs < 2**31 else offsets
