"""Arguments and constants of the kernels that walk lists. `BandTask` makes those that the launchers of a band share."""

import math
from typing import NamedTuple

from torch import Tensor

from ...config import ALPHA_MIN, TRANSMITTANCE_MIN
from ...data import CompositingSettings, Intersections, PartLists, Rays, Splats, TileGrid
from ..launch import has_fast_fp32, is_amd, prefetch_distance
from .footprints import FOOTPRINTS, Footprint, find_footprint
from .tuning import PartShape, walk_unroll


class Ranges(NamedTuple):
    """A kernel argument: assigns entries to the programs of a walk.

    Attributes:
        offsets: [lists + 1] int32, first entry of each list, then the number of entries.
        launch_order: [lists] int64, order in which programs take the lists; None for ascending order.
        walk_ends: [lists] int32, one past the last entry of each list that a pixel passed, output; or None.
        chunk_starts, chunk_lists: [lists + 1] and [n_chunks] int32, see ``PartLists``; None if no list is cut.
        n_chunks: Number of chunks, or an upper bound.
    """

    offsets: Tensor
    launch_order: Tensor | None
    walk_ends: Tensor | None
    chunk_starts: Tensor | None
    chunk_lists: Tensor | None
    n_chunks: int

    @classmethod
    def of(cls, lists: PartLists, launch_order: Tensor | None = None, walk_ends: Tensor | None = None) -> "Ranges":
        return cls(lists.offsets, launch_order, walk_ends, lists.chunk_starts, lists.chunk_lists, lists.n_chunks)


class Chunks(NamedTuple):
    """A kernel argument: inputs and outputs of chunks, one row per chunk. Fields that are not needed are None.

    Attributes:
        products: [n_chunks, pixels of a part], see ``chunk_products``.
        transmittances: [n_chunks, pixels of a part], T behind a chunk, negative where a pixel has stopped.
        pixel_ends: [n_chunks, pixels of a part] int32, see ``Images``; 0 if the pixel passed no entry of the chunk.
        colors: [n_chunks, features, pixels of a part], starting at the first feature of a channel group.
        median_rows: [n_chunks, pixels of a part] int32.
        v_rays: [n_chunks, 6, pixels of a part], gradients of rays.
    """

    products: Tensor | None = None
    transmittances: Tensor | None = None
    pixel_ends: Tensor | None = None
    colors: Tensor | None = None
    median_rows: Tensor | None = None
    v_rays: Tensor | None = None


class Entries(NamedTuple):
    """A kernel argument: rows and slots of the entries of lists in the backward pass.

    Attributes:
        listed: [n_entries] int64, row of each entry in the low 32 bits, slot in the high 32 bits. If the parts of a
            tile share slots: [M] int32, memory in which a program lists the intersections of one part after the other.
        rows, slots: [M] int32, row and slot of each intersection; None if ``listed`` has both.
        isect_offsets, bitmasks, bit_counts, n_words: Used to list parts, see ``PartLists``; None and 0 if ``listed``
            is complete.
    """

    listed: Tensor
    rows: Tensor | None = None
    slots: Tensor | None = None
    isect_offsets: Tensor | None = None
    bitmasks: Tensor | None = None
    bit_counts: Tensor | None = None
    n_words: int = 0


class ImageGradients(NamedTuple):
    """A kernel argument: gradients of images.

    Attributes:
        colors: [I, height, width, D]; with distortion, D includes it as the last channel.
        alphas: [I, height, width, 1], or None for zero.
        image_stride, pixel_stride, channel_stride: The strides of colors. Pixel rows have stride
            ``width * pixel_stride``.
    """

    colors: Tensor
    alphas: Tensor | None
    image_stride: int
    pixel_stride: int
    channel_stride: int

    @classmethod
    def of(cls, colors: Tensor, alphas: Tensor | None) -> "ImageGradients":
        return cls(colors, alphas, colors.stride(0), colors.stride(2), colors.stride(3))


class PartGrid(NamedTuple):
    """A kernel argument: the tiles of a band, from which the pixels of parts are computed.

    Attributes:
        n_tiles, first_tile: Number of tiles of the band, and flat index of its first tile.
        width, height: Image size in pixels.
        tile_width, tiles_per_image: Number of tiles of a tile row, and of an image.
    """

    n_tiles: int
    first_tile: int
    width: int
    height: int
    tile_width: int
    tiles_per_image: int


class Part(NamedTuple):
    """Constants of kernels: side length of a tile, width and height of a part in pixels, and entries of a chunk."""

    TILE: int
    WIDTH: int
    HEIGHT: int
    CHUNK: int


class Walk(NamedTuple):
    """Constants of kernels that evaluate splats at pixels: walks, also those by matrix products, and ``alphas``.

    Attributes:
        FOOTPRINT: The footprint.
        PART: See :class:`Part`; None if a kernel is given pixels. Kernels assign it to a variable, as Triton 3.6 cannot
            pass a field that is a bundle.
        RECORD_WIDTH, COLORS, FEATURES: Number of values of a record, of ``Splats.colors``, and of these and depth.
        UNROLL, PREFETCH: Unroll factor of the loop, and number of entries by which it prefetches; 0 for none.
        LOG2_ALPHA_MIN, LOG2_ALPHA_MAX, TRANSMITTANCE_MIN: Bounds of alpha and of T.
        FAST: Whether values are fp32 on an NVIDIA GPU, see ``has_fast_fp32``.
        AMD: Whether the GPU is an AMD GPU.
        DISTORTION: Whether the distortion of the last feature is a channel after the features.
    """

    FOOTPRINT: Footprint
    PART: Part | None
    RECORD_WIDTH: int
    COLORS: int
    FEATURES: int
    UNROLL: int
    PREFETCH: int
    LOG2_ALPHA_MIN: float
    LOG2_ALPHA_MAX: float
    TRANSMITTANCE_MIN: float
    FAST: bool
    AMD: bool
    DISTORTION: bool

    @classmethod
    def of(
        cls,
        records: Tensor,
        settings: CompositingSettings,
        part: Part | None = None,
        splats: Splats | None = None,
        *,
        normals: bool = False,
        hits: bool = False,
        distortion: bool = False,
    ) -> "Walk":
        """Chooses constants for a device.

        Args:
            splats: The splats whose channels are in the records; None without channels.
            normals, hits: Whether this group of channels contains the normals, and the hits, if these are rendered.
            distortion: Whether this group contains the last channel, of which distortion is computed if rendered.
        """
        footprint = find_footprint(settings.footprint, normals and settings.normals, hits and settings.hits)
        return cls(
            FOOTPRINT=footprint,
            PART=part,
            RECORD_WIDTH=records.shape[1],
            COLORS=0 if splats is None else splats.n_colors,
            FEATURES=0 if splats is None else splats.n_features,
            UNROLL=1 if is_amd(records) and footprint.WIDE else walk_unroll(records),
            PREFETCH=prefetch_distance(records),
            LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
            LOG2_ALPHA_MAX=math.log2(settings.numerics.alpha_max),
            TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
            FAST=has_fast_fp32(records),
            AMD=is_amd(records),
            DISTORTION=settings.distortion and distortion,
        )


NO_RAYS = Rays(None, None)
"""Argument of kernels for footprints on the image plane."""


class BandTask(NamedTuple):
    """A band of tiles, and how it is composited: the arguments that the launchers of a band share."""

    intersections: Intersections
    grid: TileGrid
    shape: PartShape
    settings: CompositingSettings
    rays: Rays | None = None

    @property
    def footprint(self) -> Footprint:
        return FOOTPRINTS[self.settings.footprint]

    @property
    def n_tiles(self) -> int:
        """Number of tiles of the band."""
        return self.intersections.isect_offsets.numel() - 1

    @property
    def parts_per_tile(self) -> int:
        """Number of parts of a tile."""
        return self.grid.tile_size**2 // (self.shape.width * self.shape.height)

    @property
    def part(self) -> Part:
        return Part(self.settings.tile_size, self.shape.width, self.shape.height, self.shape.chunk)

    def rays_to_read(self) -> Rays:
        """Returns the rays of pixels without gradients, or NO_RAYS."""
        return NO_RAYS if self.rays is None else self.rays._replace(v_per_pixel=None)

    def rays_to_differentiate(self) -> Rays:
        """Returns the rays of pixels with gradients, or NO_RAYS."""
        return NO_RAYS if self.rays is None else self.rays

    def part_grid(self) -> PartGrid:
        """Returns the kernel argument from which the pixels of parts are computed."""
        camera, grid = self.settings.camera, self.grid
        first_tile = self.intersections.first_tile
        return PartGrid(self.n_tiles, first_tile, camera.width, camera.height, grid.tile_width, grid.tiles_per_image)
