"""Renders chosen pixels only: their layout by tiles, the intersections of these tiles, and compositing.

A tile is *active* if it contains a chosen pixel. AT is the number of active tiles, P the number of chosen pixels.
"""

import dataclasses
import functools
import math

import torch
from torch import Tensor

from .... import ArgumentError, ShapeError, isect_offset_encode, isect_tiles, rasterize_to_pixels
from ....arguments import BOOLS, INTEGERS, check_tensor, check_tile_lists, check_tile_size, plain
from ....config import Backend, NumericsName
from ....functional.tile_lists import TileLists
from ....runtime.compilation import with_plain_tensors
from ....runtime.memory import check_tiles
from ....scalars import check_size
from ._tile_lists import check_splats

WORD = 64
"""Bits of a word of ``tile_pixel_mask``."""


@dataclasses.dataclass(frozen=True, eq=False)
class SparseLayout:
    """Chosen pixels, ordered by tile, then row by row, and the intersections of their tiles. The constructor checks
    them.

    The names are the arguments of :func:`rasterize_to_pixels_sparse`, except for the width and height of images.
    """

    active_tiles: Tensor
    tile_offsets: Tensor
    flatten_ids: Tensor
    tile_pixel_mask: Tensor
    tile_pixel_cumsum: Tensor
    pixel_map: Tensor
    width: int
    height: int
    tile_size: int
    tile_width: int
    tile_height: int

    def __post_init__(self) -> None:
        check_size("image_width", self.width)
        check_size("image_height", self.height)
        check_tile_size(self.tile_size)
        tiles = (math.ceil(self.width / self.tile_size), math.ceil(self.height / self.tile_size))
        if (self.tile_width, self.tile_height) != tiles:
            raise ArgumentError(
                f"tile_width: expected {tiles[0]}×{tiles[1]} tiles of {self.tile_size} for images of "
                f"{self.width}×{self.height}, found {self.tile_width}×{self.tile_height}"
            )
        check_tensor("active_tiles", self.active_tiles, [None], "[AT]", dtypes=INTEGERS)
        steps = torch.nn.functional.pad(self.active_tiles.to(torch.int64), (1, 0), value=-1).diff()
        if bool((steps <= 0).any()):
            raise ArgumentError("active_tiles: expected ascending tiles; pass those of build_sparse_tile_layout")
        n_active, mask = len(self.active_tiles), self.tile_pixel_mask
        if isinstance(mask, Tensor) and mask.dtype == torch.uint64:
            mask = plain("tile_pixel_mask", mask).view(torch.int64)  # more operations support int64
        for name, tensor, shape, meaning in (
            ("tile_offsets", self.tile_offsets, [n_active + 1], "[AT + 1]"),
            ("tile_pixel_mask", mask, [n_active, -(-(self.tile_size**2) // WORD)], "[AT, words]"),
            ("tile_pixel_cumsum", self.tile_pixel_cumsum, [max(n_active, 1)], "[AT]"),
        ):
            check_tensor(name, tensor, shape, meaning, dtypes=INTEGERS)
        counts = self.chosen_mask.sum(1).cumsum(0)
        if not torch.equal(counts, self.tile_pixel_cumsum[:n_active].to(torch.int64)):
            raise ArgumentError("tile_pixel_cumsum: expected the number of bits of tile_pixel_mask up to each tile")
        n_pixels = int(counts[-1]) if n_active else 0
        check_tensor("pixel_map", self.pixel_map, [n_pixels], "[P]", dtypes=INTEGERS)
        if not torch.equal(self.pixel_map.to(torch.int64).sort()[0], torch.arange(n_pixels, device=counts.device)):
            raise ArgumentError(f"pixel_map: expected a permutation of 0 to {n_pixels - 1}, found other values")
        _, rows, columns = self.pixels
        if bool(((rows >= self.height) | (columns >= self.width)).any()):
            raise ArgumentError(
                f"tile_pixel_mask: expected pixels inside images of {self.width}×{self.height}, found pixels outside"
            )

    @functools.cached_property
    def chosen_mask(self) -> Tensor:
        """Returns a mask of the chosen pixels of each active tile, row by row, [AT, tile_size^2] bool."""
        bits = torch.arange(WORD, device=self.tile_pixel_mask.device)
        chosen = (self.tile_pixel_mask.view(torch.int64)[..., None] >> bits) & 1
        return chosen.flatten(1)[:, : self.tile_size**2] == 1

    @functools.cached_property
    def pixels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns image, row and column of the chosen pixels, ordered by tile, [P] int64 each."""
        tile_index, pixel_index = self.chosen_mask.nonzero(as_tuple=True)
        tiles = self.active_tiles.to(torch.int64)[tile_index]
        rows = tiles // self.tile_width % self.tile_height * self.tile_size + pixel_index // self.tile_size
        columns = tiles % self.tile_width * self.tile_size + pixel_index % self.tile_size
        return tiles // (self.tile_width * self.tile_height), rows, columns

    def n_images(self) -> int:
        """Returns the number of images up to the last one with a chosen pixel."""
        images = self.pixels[0]
        return int(images[-1]) + 1 if len(images) else 0

    def flat_pixels(self) -> Tensor:
        """Returns the flat index of each chosen pixel in images [I, H, W], in the caller's order, [P] int64."""
        images, rows, columns = self.pixels
        flat = torch.empty_like(self.pixel_map, dtype=torch.int64)
        flat[self.pixel_map] = (images * self.height + rows) * self.width + columns
        return flat

    def lists(self, n_images: int, n_rows: int) -> TileLists:
        """Returns the lists of all tiles of `n_images` images; inactive tiles have empty lists. Checks that ids are
        below `n_rows`."""
        check_tile_lists("tile_offsets", self.tile_offsets, self.flatten_ids, n_rows)
        shape, device = (n_images, self.tile_height, self.tile_width), self.active_tiles.device
        check_tiles(math.prod(shape), device)
        # An inactive tile has the offset of the next active tile.
        following = torch.searchsorted(self.active_tiles.to(torch.int64), torch.arange(math.prod(shape), device=device))
        offsets = self.tile_offsets[following].view(shape)
        return TileLists.check(self.width, self.height, self.tile_size, offsets, self.flatten_ids, None, "tile_offsets")


@with_plain_tensors
def build_sparse_tile_layout(
    pixels: Tensor, image_ids: Tensor, n_images: int, tile_size: int, tile_width: int, tile_height: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Orders chosen pixels by tile.

    Args:
        pixels: [P, 2] integers, row and column of each pixel, without repetitions.
        image_ids: [P] integers, image of each pixel.
        n_images: Number of images I.
        tile_size: Edge of a tile in pixels: 4, 8 or 16.
        tile_width, tile_height: Number of tiles along each axis of an image.

    Returns:
        ``active_tiles`` [AT] int32, ascending; ``active_tile_mask`` [I, tile_height, tile_width] bool;
        ``tile_pixel_mask`` [AT, words] uint64, one bit per pixel, row by row; ``tile_pixel_cumsum`` [AT] int64,
        inclusive (a zero [1] if there are no pixels); ``pixel_map`` [P] int64, the pixels ordered by tile, then row by
        row.

    Raises:
        ArgumentError: A shape or dtype is invalid, or a pixel is outside the images or repeated.
    """
    check_tile_size(tile_size)
    for name, size in (("n_images", n_images), ("tile_width", tile_width), ("tile_height", tile_height)):
        check_size(name, size)
    check_tensor("pixels", pixels, [None, 2], "[P, 2]", dtypes=INTEGERS)
    check_tensor("image_ids", image_ids, pixels.shape[:1], "[P] as pixels", dtypes=INTEGERS)
    rows, columns = pixels.to(torch.int64).unbind(-1)
    images = image_ids.to(torch.int64)
    bounds = (("image_ids", images, n_images), ("pixels: rows", rows, tile_height * tile_size))
    for name, values, end in (*bounds, ("pixels: columns", columns, tile_width * tile_size)):
        outside = values[(values < 0) | (values >= end)]
        if outside.numel():
            raise ArgumentError(f"{name}: expected 0 to {end - 1}, found {int(outside[0])}")
    tiles = (images * tile_height + rows // tile_size) * tile_width + columns // tile_size
    positions = rows % tile_size * tile_size + columns % tile_size
    keys, pixel_map = (tiles * tile_size**2 + positions).sort()
    if bool((keys.diff() == 0).any()):
        raise ArgumentError("pixels: expected each pixel once, found a repeated one")
    active_tiles, ordinals, counts = torch.unique_consecutive(
        keys // tile_size**2, return_inverse=True, return_counts=True
    )
    active_mask = torch.zeros(n_images * tile_height * tile_width, dtype=torch.bool, device=pixels.device)
    active_mask[active_tiles] = True
    bits = keys % tile_size**2
    words = -(-(tile_size**2) // WORD)
    mask = keys.new_zeros(len(active_tiles) * words)
    # The sum of different bits is their union.
    mask.scatter_add_(0, ordinals * words + bits // WORD, torch.ones_like(bits) << (bits % WORD))
    return (
        active_tiles.to(torch.int32),
        active_mask.view(n_images, tile_height, tile_width),
        mask.view(-1, words).view(torch.uint64),
        counts.cumsum(0) if len(counts) else counts.new_zeros(1),
        pixel_map,
    )


@torch.no_grad()
@with_plain_tensors
def isect_tiles_sparse(
    means2d: Tensor, radii: Tensor, depths: Tensor,
    tile_mask: Tensor, active_tiles: Tensor, n_images: int, tile_size: int, tile_width: int, tile_height: int,
    image_ids: Tensor | None = None,
    *,
    conics: Tensor | None = None, opacities: Tensor | None = None,
    backend: Backend = "auto", numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Lists the intersections of projected Gaussians with active tiles.

    It first lists all intersections like :func:`tsplat.isect_tiles`, and then removes those with inactive tiles.

    Args:
        means2d, radii, depths: [..., N, 2], [..., N, 2] and [..., N], or packed [nnz, 2], [nnz, 2] and [nnz].
        tile_mask: [I, tile_height, tile_width] bool mask of the active tiles.
        active_tiles: [AT] flat indices of the active tiles, ascending.
        n_images: Number of images I.
        tile_size: Edge of a tile in pixels: 4, 8 or 16.
        tile_width, tile_height: Number of tiles along each axis of an image.
        image_ids: [nnz], required if packed.
        conics, opacities, backend, numerics: As for :func:`tsplat.isect_tiles`.

    Returns:
        ``tile_offsets`` [AT + 1] int32, the first intersection of each active tile, followed by M; ``flatten_ids`` [M]
        int32, indices into [I * N] or [nnz], by tile, front to back.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
    """
    check_tensor("means2d", means2d, [..., 2], "[..., N, 2] or [nnz, 2]")
    check_tensor(
        "tile_mask", tile_mask, [n_images, tile_height, tile_width], "[I, tile_height, tile_width]", dtypes=BOOLS
    )
    check_tensor("active_tiles", active_tiles, [None], "[AT]", dtypes=INTEGERS)
    active = tile_mask.flatten()
    if not torch.equal(active.nonzero().squeeze(1), active_tiles.to(torch.int64)):
        raise ArgumentError("active_tiles: expected the indices of the tiles that tile_mask has, ascending")
    packed = means2d.dim() == 2
    _, isect_ids, flatten_ids = isect_tiles(
        means2d, radii, depths, tile_size, tile_width, tile_height, packed=packed, n_images=n_images,
        image_ids=image_ids, conics=conics, opacities=opacities,
        backend=backend, numerics=numerics,
    )  # fmt: skip
    if not packed and math.prod(means2d.shape[:-2]) != n_images:
        raise ShapeError(f"means2d: expected n_images={n_images} images, found {list(means2d.shape)}")
    starts = isect_offset_encode(isect_ids, n_images, tile_width, tile_height, numerics=numerics).flatten()
    counts = torch.cat([starts, starts.new_tensor([flatten_ids.numel()])]).diff()
    kept = torch.repeat_interleave(active, counts)
    tile_offsets = torch.nn.functional.pad(counts[active].cumsum(0), (1, 0))
    return tile_offsets.to(torch.int32), flatten_ids[kept]


@with_plain_tensors
def rasterize_to_pixels_sparse(
    means2d: Tensor, conics: Tensor, colors: Tensor, opacities: Tensor, image_ids: Tensor,
    active_tiles: Tensor, tile_offsets: Tensor, flatten_ids: Tensor,
    tile_pixel_mask: Tensor, tile_pixel_cumsum: Tensor, pixel_map: Tensor,
    image_width: int, image_height: int, tile_size: int, tile_width: int, tile_height: int,
    backgrounds: Tensor | None = None, masks: Tensor | None = None, packed: bool = False, absgrad: bool = False,
    *,
    backend: Backend = "auto", numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Composites projected Gaussians into chosen pixels; values and gradients equal those of complete images.

    All pixels of active tiles are composited, and memory is allocated for complete images.

    Args:
        means2d, conics, colors, opacities: [..., N, 2], [..., N, 3], [..., N, D] and [..., N], or packed [nnz, ...];
            see :func:`tsplat.rasterize_to_pixels`.
        image_ids: [P] image of each chosen pixel, as for :func:`build_sparse_tile_layout`.
        tile_offsets, flatten_ids: From :func:`isect_tiles_sparse`.
        active_tiles, tile_pixel_mask, tile_pixel_cumsum, pixel_map: From :func:`build_sparse_tile_layout`.
        image_width, image_height: Image size in pixels.
        tile_size, tile_width, tile_height: As for :func:`build_sparse_tile_layout`.
        backgrounds: [I, D] background colors.
        masks: [I, tile_height, tile_width] bool; tiles where it is False show the background.
        packed, absgrad, backend, numerics: As for :func:`tsplat.rasterize_to_pixels`.

    Returns:
        Colors [P, D] and alphas [P, 1], in the order of the chosen pixels. Differentiable with respect to means2d,
        conics, colors, opacities and backgrounds.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
    """
    layout = SparseLayout(
        active_tiles, tile_offsets, flatten_ids, tile_pixel_mask, tile_pixel_cumsum, pixel_map, image_width,
        image_height, tile_size, tile_width, tile_height,
    )  # fmt: skip
    check_tensor("image_ids", image_ids, pixel_map.shape, "[P] as pixel_map", dtypes=INTEGERS)
    if not torch.equal(image_ids.to(torch.int64)[pixel_map], layout.pixels[0]):
        raise ArgumentError("image_ids: expected the image of each chosen pixel, as for build_sparse_tile_layout")
    check_tensor("means2d", means2d, [None, 2] if packed else [..., 2], "[..., N, 2] or [nnz, 2]")
    check_splats(means2d, conics, opacities)
    shape = tuple(means2d.shape[:-2])
    n_images = None if packed else math.prod(shape)
    if backgrounds is not None:
        check_tensor("backgrounds", backgrounds, [n_images, None], "[I, D]")
    if masks is not None:
        check_tensor("masks", masks, [n_images, tile_height, tile_width], "[I, tile_height, tile_width]", dtypes=BOOLS)
    if packed:
        shape = (max(1, layout.n_images(), *(len(given) for given in (backgrounds, masks) if given is not None)),)
    tiles = (*shape, tile_height, tile_width)
    lists = layout.lists(math.prod(shape), math.prod(means2d.shape[:-1]))
    render_colors, render_alphas = rasterize_to_pixels(
        means2d, conics, colors, opacities, image_width, image_height, tile_size,
        lists.isect_offsets.view(tiles), flatten_ids,
        None if backgrounds is None else backgrounds.reshape(*shape, backgrounds.shape[-1]),
        None if masks is None else masks.reshape(tiles), packed, absgrad, backend=backend, numerics=numerics,
    )  # fmt: skip
    pixels = layout.flat_pixels()
    return render_colors.reshape(-1, render_colors.shape[-1])[pixels], render_alphas.reshape(-1, 1)[pixels]
