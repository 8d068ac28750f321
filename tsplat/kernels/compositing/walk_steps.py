"""What all walks share: the entries and pixels of a program, one step of blending, and what is stored at the end.

The exponent of alpha is in base 2 and includes the opacity: alpha = min(alpha_max, 2^e). Kernels call fma explicitly
and are compiled without contraction, so that both passes compute the same bits of alpha and skip the same Gaussians.

``grid`` is a tuple of a kernel's arguments: ``tiles`` and ``first_tile`` of the band, ``width`` and ``height`` of
images in pixels, ``tile_width`` and ``n_tiles`` of an image.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...config import ALPHA_MIN
from ...data import CompositingSettings, Intersections, PartLists, Rays, TileGrid
from ..device_math import constant, exp2, reciprocal
from ..launch import PartShape, approximate, is_amd, walk_options, walk_unroll
from .distortion import distortion_vjp
from .footprints import FOOTPRINTS, Footprint, find_footprint
from .rays import has_ray, load_rays

OPACITY = tl.constexpr(2)
"""Values of a record after those of its footprint: log2(opacity), and the opacity clamped to alpha_max. Features may
follow."""


@triton.jit
def _nth_list(n, order):
    """The n-th list in an order [lists] int64; list n without an order."""
    if order is not None:
        return tl.load(order + n).to(tl.int32)
    else:
        return n


@triton.jit
def load_range(program, order, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK: tl.constexpr, skipped=0):
    """The entries that a program composites: a chunk of a long list, or a list that is not cut.

    Args:
        order: [lists] int64, or None for the order of lists.
        offsets: [lists + 1] int32.
        chunk_lists: [n_chunks] int32 and ``chunk_starts`` [lists + 1] int32, see ``PartLists``; None if no list is cut.
        skipped: Added to the index of the list, where a program composites several parts; 0 if lists are cut.

    Returns:
        The index of the list; its first entry; begin and end of the range, counted from there; the list's first chunk
        and the one after its last, equal if it is not cut; whether the program has a chunk. Programs beyond the last
        chunk have no entries and store nothing: ``n_chunks`` may be a bound.
    """
    if chunk_lists is None:
        index = _nth_list(program, order) + skipped
    else:
        is_chunk = program < n_chunks
        if is_chunk:
            index = tl.load(chunk_lists + program)
        else:
            index = _nth_list(program - n_chunks, order)
    start = tl.load(offsets + index)
    count = tl.load(offsets + index + 1) - start
    start = start.to(tl.int64)
    if chunk_lists is None:
        return index, start, 0, count, 0, 0, False
    else:
        first_chunk = tl.load(chunk_starts + index)
        end_chunk = tl.load(chunk_starts + index + 1)
        is_beyond = is_chunk & (program >= end_chunk)
        first_chunk = tl.where(is_beyond, program, first_chunk)
        end_chunk = tl.where(is_beyond, program + 1, end_chunk)
        count = tl.where(is_beyond, 0, count)
        begin = tl.where(is_chunk, (program - first_chunk) * CHUNK, 0)
        # A list that is cut is left to the programs of its chunks.
        end = tl.where(is_chunk, tl.minimum(begin + CHUNK, count), tl.where(first_chunk < end_chunk, 0, count))
        return index, start, begin, end, first_chunk, end_chunk, is_chunk & (is_beyond == 0)


@triton.jit
def part_pixels(
    index, block: tl.constexpr, grid, rays, origins, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    BLOCK_HEIGHT: tl.constexpr, dtype: tl.constexpr, BY_COLUMN: tl.constexpr = True,
):  # fmt: skip
    """Pixels of a block, BLOCK_HEIGHT pixel rows of the part whose list has the given index.

    If BY_COLUMN, the index in the part has a hint that lets a lane hold pixels of a column, which share more of the
    work of a Gaussian than those of a pixel row.

    Args:
        rays, origins: See ``Rays``; None for footprints on the image plane.

    Returns:
        The tile's image; what footprints call a pixel: centers in x [1, WIDTH] and y [BLOCK_HEIGHT, 1], or rays;
        whether pixels are inside the image, their flat index in the images, and their index in the part,
        [BLOCK_HEIGHT, WIDTH].
    """
    PARTS_ACROSS: tl.constexpr = TILE // WIDTH
    tiles, first_tile, width, height, tile_width, n_tiles = grid
    tile = first_tile + index % tiles
    part = index // tiles
    image = (tile // n_tiles).to(tl.int64)
    tile = tile % n_tiles
    own_x = tl.arange(0, WIDTH)[None, :]
    own_y = block * BLOCK_HEIGHT + tl.arange(0, BLOCK_HEIGHT)[:, None]
    x = tile % tile_width * TILE + part % PARTS_ACROSS * WIDTH + own_x
    y = tile // tile_width * TILE + part // PARTS_ACROSS * HEIGHT + own_y
    inside = (x < width) & (y < height)
    pixel = (image * height + y) * width + x
    own = own_y * WIDTH + own_x
    if BY_COLUMN:
        own = tl.max_contiguous(own, [1, 1])
    if rays is None:
        return image, (x.to(dtype) + 0.5, y.to(dtype) + 0.5), inside, pixel, own
    else:
        return image, load_rays(rays, origins, image, pixel, inside, grid), inside, pixel, own


@triton.jit
def begin_forward(
    program, order, offsets, chunk_lists, chunk_starts, n_chunks, masks, products, grid, rays, origins,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    TRANSMITTANCE_MIN: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """What a forward walk starts from.

    Args:
        masks: [I, n_tiles] bool or None.
        products: [n_chunks, WIDTH HEIGHT], see ``chunk_products``; None if no list is cut.

    Returns:
        What ``load_range`` and ``part_pixels`` do; whether the tile is shown; the transmittance in front of the
        program's entries, negative where pixels are outside, have no ray or have stopped before.
    """
    own_range = load_range(program, order, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK)
    index, _, _, _, first_chunk, _, is_chunk = own_range
    pixels = part_pixels(index, 0, grid, rays, origins, TILE, WIDTH, HEIGHT, HEIGHT, dtype)
    _, center, inside, _, own = pixels
    tiles, first_tile = grid[:2]
    shown = True
    if masks is not None:
        shown = tl.load(masks + (first_tile + index % tiles)) != 0
    transmittance = tl.where(has_ray(center, inside), 1.0, -1.0).to(dtype)
    if products is not None:
        if is_chunk & shown:
            for earlier in range(first_chunk, program):
                transmittance *= tl.load(products + tl.cast(earlier, tl.int64) * (WIDTH * HEIGHT) + own)
            alive = transmittance > constant(TRANSMITTANCE_MIN, transmittance)
            transmittance = tl.where(alive, transmittance, -tl.abs(transmittance))
    return own_range, pixels, shown, transmittance


@triton.jit
def store_chunk(chunk_transmittances, chunk_last_ids, chunk, own, transmittance, last, mask, PIXELS: tl.constexpr):
    """Stores where the walk of a chunk ended: T and the last entry of its pixels, by their index in the part."""
    tl.store(chunk_transmittances + chunk * PIXELS + own, transmittance, mask=mask)
    if chunk_last_ids is not None:
        tl.store(chunk_last_ids + chunk * PIXELS + own, last, mask=mask)


@triton.jit
def store_list(transmittances, alphas, last_ids, ends, pixel, index, start, transmittance, last, inside, is_whole):
    """Stores where the walk of a whole list ended: T, alpha and the last entry of pixels, and the end of the list."""
    if transmittances is not None:
        tl.store(transmittances + pixel, transmittance, mask=inside)
    if alphas is not None:
        tl.store(alphas + pixel, 1.0 - transmittance, mask=inside)
    if last_ids is not None:
        tl.store(last_ids + pixel, last, mask=inside)
        tl.store(ends + index, (start + tl.max(last)).to(tl.int32), mask=is_whole)


@triton.jit
def load_entry(at, PTX: tl.constexpr):
    """Row and slot of an entry of a list of the backward pass."""
    if PTX:
        return tl.inline_asm_elementwise(
            "ld.global.v2.b32 {$0, $1}, [$2];", "=r,=r,l", [at.to(tl.int64)], dtype=(tl.int32, tl.int32),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        entry = tl.load(at)
        return entry.to(tl.int32), (entry >> 32).to(tl.int32)


@triton.jit
def load_row(entries, index):
    """Rows of the entries at an index, where registers are too few for the slots as well."""
    return tl.load(entries.to(tl.pointer_type(tl.int32)) + 2 * index)


@triton.jit
def load_slot(entries, index):
    """Slots of the entries at an index. int64"""
    slot = tl.load(entries.to(tl.pointer_type(tl.int32)) + 2 * index + 1)
    return slot.to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit
def clamped_alpha(e, limit, APPROX: tl.constexpr, AMD: tl.constexpr = False):
    """2^e clamped to the limit. Callers replace results below the threshold of alpha."""
    if not (APPROX or AMD):
        # Numbers close to 0 (denormal ones) cost a CPU a hundred cycles.
        e = tl.maximum(e, -126.0)
    return tl.minimum(exp2(e, APPROX), limit)


@triton.jit
def alpha_at(
    record, pixel, FOOTPRINT: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr, AMD: tl.constexpr
):  # fmt: skip
    """Alpha of a record at pixels, 0 below the threshold, and where they are in the splat."""
    at = FOOTPRINT.locate(record, pixel)
    e = FOOTPRINT.log2_alpha(record, at)
    limit = record[FOOTPRINT.VALUES + OPACITY - 1]
    return tl.where(e >= constant(LOG2_ALPHA_MIN, e), clamped_alpha(e, limit, APPROX, AMD), 0.0), at


@triton.jit
def absorb(transmittance, alpha, TRANSMITTANCE_MIN: tl.constexpr, AMD: tl.constexpr = False):
    """One step front to back. Returns the weight alpha T, whether the Gaussian is added, and T behind it.

    A pixel adds all until it stops, if only with alpha 0. Then it keeps T, with a negative sign; if AMD, weights are 0.
    """
    weight = alpha * transmittance
    # Rounded once: subtracting the weight would lose digits near alpha = 1. Unlike a minus, a factor of -1 is free.
    after = tl.fma(alpha, transmittance * -1.0, transmittance)
    added = after > constant(TRANSMITTANCE_MIN, after)
    if AMD:
        # Each select takes an instruction there: one for the weight replaces one for each feature.
        weight = tl.where(added, weight, 0.0)
    return weight, added, tl.where(added, after, tl.abs(transmittance) * -1.0)


@triton.jit
def inverse_transmittance(transmittance, APPROX: tl.constexpr):
    """1 / T; finite also where T is lower than in any pixel that has not stopped."""
    return reciprocal(tl.maximum(transmittance, 1e-6), APPROX)


@triton.jit
def absorb_vjp(transmittance, alpha, behind, v_dot_c, APPROX: tl.constexpr):
    """One step back to front.

    Args:
        transmittance: T behind the Gaussian.
        behind: The gradient of the pixel times the color that shows behind the Gaussian.
        v_dot_c: The gradient of the pixel times the Gaussian's color.

    Returns:
        T and ``behind`` in front of the Gaussian, its weight, and alpha dL/d alpha.
    """
    transmittance = transmittance * reciprocal(1.0 - alpha, APPROX)
    weight = alpha * transmittance
    difference = v_dot_c - behind
    return transmittance, tl.fma(alpha, difference, behind), weight, weight * difference


@triton.jit
def blend_vjp(
    record, pixel, transmittance, behind, last, v_color, state, place, FOOTPRINT: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    """One Gaussian at the pixels of a block, back to front. ``state`` is that of ``distortion``, or ().

    Returns:
        T and ``behind`` in front of it, its weight, g, where the pixels are in the splat, the gradient of its features
        divided by the weight, and the state in front of it.
    """
    FIRST: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    at = FOOTPRINT.locate(record, pixel)
    e = FOOTPRINT.log2_alpha(record, at)
    kept = (e >= constant(LOG2_ALPHA_MIN, e)) & (place < last)
    alpha = tl.where(kept, clamped_alpha(e, record[FIRST - 1], APPROX, AMD), 0.0)
    if len(state) > 0:
        front = transmittance * reciprocal(1.0 - alpha, APPROX)
        z = record[FIRST + len(v_color) - 1]
        state, v_color, of_distortion = distortion_vjp(state, v_color, z, alpha * front, front, transmittance)
    features = FOOTPRINT.features(record, at, pixel, FIRST, len(v_color), FOOTPRINT)
    v_weight = v_color[0] * features[0]
    for k in tl.static_range(1, len(v_color)):
        v_weight = tl.fma(v_color[k], features[k], v_weight)
    if len(state) > 0:
        v_weight += of_distortion
    transmittance, behind, weight, g = absorb_vjp(transmittance, alpha, behind, v_weight, APPROX)
    g = tl.where(e <= constant(LOG2_ALPHA_MAX, e), g, 0.0)
    v_color, at = FOOTPRINT.features_vjp(record, at, pixel, weight, v_color, FIRST, FOOTPRINT)
    return transmittance, behind, weight, g, at, v_color, state


class Band(NamedTuple):
    """A band of tiles and how it is composited."""

    intersections: Intersections
    grid: TileGrid
    shape: PartShape
    settings: CompositingSettings
    rays: Rays | None = None

    @property
    def footprint(self) -> Footprint:
        return FOOTPRINTS[self.settings.footprint]

    @property
    def tiles(self) -> int:
        """Number of tiles of the band."""
        return self.intersections.isect_offsets.numel() - 1

    @property
    def parts(self) -> int:
        """Number of parts of a tile."""
        return self.grid.tile_size**2 // (self.shape.width * self.shape.height)

    def ray_arguments(self) -> dict[str, Tensor | None]:
        """Returns the arguments of kernels that evaluate footprints at pixels."""
        return {
            "rays": None if self.rays is None else self.rays.values,
            "origins": None if self.rays is None else self.rays.origins,
        }

    def tile_arguments(self) -> dict[str, int]:
        """Returns the arguments of kernels that say which tiles the band has."""
        return {"tiles": self.tiles, "first_tile": self.intersections.first_tile}

    def pixel_arguments(self) -> dict[str, int]:
        """Returns the arguments of kernels that say which pixels the parts have."""
        return self.tile_arguments() | self.pixels_of(self.settings, self.shape)

    @staticmethod
    def pixels_of(settings: CompositingSettings, shape: PartShape) -> dict[str, int]:
        """Returns those of ``pixel_arguments`` that are the same for all bands."""
        camera, tile_size = settings.camera, settings.tile_size
        grid = TileGrid.cover(1, camera.width, camera.height, tile_size)
        return {
            "width": camera.width,
            "height": camera.height,
            "tile_width": grid.tile_width,
            "n_tiles": grid.tiles_per_image,
            "TILE": tile_size,
            "WIDTH": shape.width,
            "HEIGHT": shape.height,
        }

    @staticmethod
    def walk_arguments(
        settings: CompositingSettings, shape: PartShape, tensor: Tensor, normals: bool = False, hits: bool = False
    ) -> dict[str, Any]:
        """Returns the arguments, and compiler options, of kernels that walk lists one Gaussian after the other.

        Args:
            normals, hits: Whether the channels begin with normals, and end with distances along rays, if there are any.
        """
        # The scalar registers of AMD GPUs do not hold several records of surfels with normals and depth.
        unrolled = not (is_amd(tensor) and settings.footprint == "surfel")
        return {
            "FOOTPRINT": find_footprint(settings.footprint, normals and settings.normals, hits and settings.hits),
            "CHUNK": shape.chunk,
            "UNROLL": walk_unroll(tensor) if unrolled else 1,
            "LOG2_ALPHA_MIN": math.log2(ALPHA_MIN),
            "APPROX": approximate(tensor),
            "AMD": is_amd(tensor),
            **walk_options(tensor),
        }


def list_arguments(lists: PartLists) -> dict[str, Any]:
    """Returns the arguments of kernels that composite lists and their chunks."""
    return {
        "offsets": lists.offsets,
        "chunk_starts": lists.chunk_starts,
        "chunk_lists": lists.chunk_lists,
        "chunk_transmittances": lists.chunk_transmittances,
        "chunk_colors": lists.chunk_colors,
        "n_chunks": lists.n_chunks,
    }
