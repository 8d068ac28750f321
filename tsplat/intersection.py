"""Stage: which Gaussian touches which tile, in depth order. Nothing here is differentiable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .backend import launchers
from .checks import ArgumentError, ShapeError, check_absent, check_devices, check_size, check_tensor, check_tile_size
from .config import DEFAULT_NUMERICS, Numerics
from .rows import GaussianMajor, Pairs


@torch.no_grad()
def intersect(
    means2d: Tensor,
    radii: Tensor,
    depths: Tensor,
    conics: Tensor | None,
    opacities: Tensor | None,
    image_ids: Tensor | None,
    *,
    n_images: int,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    numerics: Numerics = DEFAULT_NUMERICS,
    sort: bool = True,
    backend: str = "auto",
) -> Pairs:
    """Pairs of row and tile, ordered by tile, then depth, then row.

    Args:
        means2d, radii, depths: [R, 2], [R, 2] int32, [R].
        conics, opacities: [R, 3], [R] to test the ellipse on which alpha is 1/255; None to test mean +- radii.
        image_ids: [R] int64, or None where rows are [I, R / I].
        sort: Whether to sort at all; otherwise pairs come row by row.

    Rows are brought into depth order first, so that a stable sort of the pairs by tile alone finishes the order; its
    keys are int16 while they fit.
    """
    launch = launchers(means2d.device, backend)
    n_rows = depths.numel()
    n_tiles = tile_width * tile_height
    if n_rows >= 2**31 or n_images * n_tiles >= 2**31:
        raise ArgumentError(
            f"means: {n_rows} projected Gaussians on {n_images} images of {n_tiles} tiles are more than 32-bit "
            "indices hold; render fewer cameras at a time"
        )
    if sort:
        behind = torch.where((radii > 0).all(-1), depths, torch.inf)
        order = behind.argsort(stable=True)
    else:
        order = torch.arange(n_rows, device=depths.device)
    ellipse = (means2d, radii, conics, opacities, order)
    first_rows, n_tile_rows = launch.tile_rows(
        *ellipse, tile_size=tile_size, tile_height=tile_height, extend=numerics.extend
    )
    row_starts = _exclusive_sum(n_tile_rows)
    parents, first_columns, n_columns = launch.tile_columns(
        *ellipse,
        first_rows,
        row_starts,
        int(row_starts[-1]),
        tile_size=tile_size,
        tile_width=tile_width,
        extend=numerics.extend,
    )
    column_starts = _exclusive_sum(n_columns)
    short = n_images * n_tiles <= 2**16
    key_bias = 2**15 if short else 0
    keys, rows = launch.tile_pairs(
        order,
        image_ids,
        first_rows,
        row_starts,
        parents,
        first_columns,
        column_starts,
        int(column_starts[-1]),
        n_per_image=n_rows // max(n_images, 1),
        tile_width=tile_width,
        tile_height=tile_height,
        key_dtype=torch.int16 if short else torch.int32,
        key_bias=key_bias,
    )
    segment_starts = column_starts[row_starts]
    tiles_per_gauss = torch.empty(n_rows, dtype=torch.int32, device=order.device)
    tiles_per_gauss[order] = segment_starts.diff().to(torch.int32)
    if sort:
        keys, slots = keys.sort(stable=True)
        rows = rows[slots]
    else:
        slots = torch.arange(keys.numel(), device=keys.device)
    bounds = torch.arange(n_images * n_tiles + 1, device=keys.device) - key_bias
    return Pairs(
        tile_width,
        tile_height,
        tiles_per_gauss,
        keys.to(torch.int64) + key_bias,
        rows,
        torch.searchsorted(keys.to(torch.int32), bounds.to(torch.int32)) if sort else bounds[:0],
        GaussianMajor(slots, segment_starts, order),
    )


def _exclusive_sum(counts: Tensor) -> Tensor:
    """[n] -> [n + 1] int64, starting at 0 and ending in the total."""
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int64), (1, 0))


def encode_ids(pairs: Pairs, depths: Tensor) -> Tensor:
    """gsplat's 64-bit ids: image | tile | depth as fp32 bits, 32 of them for the depth. [M] int64"""
    n_tiles = pairs.tile_width * pairs.tile_height
    image, tile = pairs.tile_ids // n_tiles, pairs.tile_ids % n_tiles
    bits = depths.detach().to(torch.float32)[pairs.flatten_ids].view(torch.int32).to(torch.int64)
    return (image << (32 + _tile_bits(n_tiles))) | (tile << 32) | bits


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
        conics, opacities: [..., N, 3] and [..., N], or packed. With both, only tiles that hold a pixel centre inside
            the ellipse on which alpha is 1/255 are listed (compositing loses nothing); without, tiles that overlap
            mean +- radii.
        backend: As in :func:`tsplat.rasterization`.

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
    pairs = intersect(
        means2d.reshape(-1, 2).contiguous(),
        radii.reshape(-1, 2).contiguous(),
        depths.reshape(-1).contiguous(),
        None if conics is None else conics.reshape(-1, 3).contiguous(),
        None if opacities is None else opacities.reshape(-1).contiguous(),
        image_ids,
        n_images=n_images,
        tile_size=tile_size,
        tile_width=tile_width,
        tile_height=tile_height,
        sort=sort,
        backend=backend,
    )
    return pairs.tiles_per_gauss.view(depths.shape), encode_ids(pairs, depths.reshape(-1)), pairs.flatten_ids


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
