"""Steps shared by walks: find the entries and pixels of a program, blend a Gaussian, and store the results.

The exponent of alpha has base 2 and includes the opacity: alpha = min(alpha_max, 2^e). Kernels call fma explicitly and
are compiled without contraction, so that both passes compute the same bits of alpha and skip the same Gaussians.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..device_math import constant, exp2, reciprocal
from .distortion import distortion_vjp
from .rays import has_ray, load_rays
from .records import OPACITY_VALUES

STEP = 16
"""Number of Gaussians between two checks of whether all pixels of a part have stopped."""


class EntryRange(NamedTuple):
    """The entries that a program composites: a chunk of a long list, or a list that is not cut.

    Attributes:
        list_index: Index of the list.
        start: First entry of the list, int64.
        begin, end: The range of entries, relative to ``start``.
        first_chunk, end_chunk: The list's first chunk, and the one after its last; equal if the list is not cut.
        is_chunk: Whether the program has a chunk. Programs beyond the last chunk have no entries and store nothing.
    """

    list_index: Any
    start: Any
    begin: Any
    end: Any
    first_chunk: Any
    end_chunk: Any
    is_chunk: Any


class BlockPixels(NamedTuple):
    """The pixels of a block, BLOCK_HEIGHT pixel rows of a part.

    Attributes:
        image: The image of the tile, int64.
        position: x [1, WIDTH] and y [BLOCK_HEIGHT, 1] in the image. ``part_pixels`` returns centers or rays instead.
        inside: [BLOCK_HEIGHT, WIDTH], whether pixels are inside the image.
        index: [BLOCK_HEIGHT, WIDTH] int64, flat index in the images.
        part_index: [BLOCK_HEIGHT, WIDTH], index in the part.
    """

    image: Any
    position: Any
    inside: Any
    index: Any
    part_index: Any


@triton.jit
def _nth_list(n, launch_order):
    """Returns the n-th list in the launch order [lists] int64, or n without a launch order."""
    if launch_order is not None:
        return tl.load(launch_order + n).to(tl.int32)
    else:
        return n


@triton.jit
def load_range(program, ranges, CHUNK: tl.constexpr, skipped=0):
    """Returns the :class:`EntryRange` of a program.

    Args:
        ranges: See :class:`Ranges`. There may be fewer chunks than ``n_chunks``.
        skipped: Added to the index of the list, if a program composites several parts; 0 if lists are cut.
    """
    if ranges.chunk_lists is None:
        index = _nth_list(program, ranges.launch_order) + skipped
    else:
        is_chunk = program < ranges.n_chunks
        if is_chunk:
            index = tl.load(ranges.chunk_lists + program)
        else:
            index = _nth_list(program - ranges.n_chunks, ranges.launch_order)
    start = tl.load(ranges.offsets + index)
    count = tl.load(ranges.offsets + index + 1) - start
    start = start.to(tl.int64)
    if ranges.chunk_lists is None:
        return EntryRange(
            list_index=index, start=start, begin=0, end=count, first_chunk=0, end_chunk=0, is_chunk=False
        )  # fmt: skip
    else:
        first_chunk = tl.load(ranges.chunk_starts + index)
        end_chunk = tl.load(ranges.chunk_starts + index + 1)
        is_beyond = is_chunk & (program >= end_chunk)
        first_chunk = tl.where(is_beyond, program, first_chunk)
        end_chunk = tl.where(is_beyond, program + 1, end_chunk)
        count = tl.where(is_beyond, 0, count)
        begin = tl.where(is_chunk, (program - first_chunk) * CHUNK, 0)
        # The program of a cut list has no entries: those of its chunks composite it.
        end = tl.where(is_chunk, tl.minimum(begin + CHUNK, count), tl.where(first_chunk < end_chunk, 0, count))
        return EntryRange(
            list_index=index, start=start, begin=begin, end=end, first_chunk=first_chunk, end_chunk=end_chunk,
            is_chunk=is_chunk & (is_beyond == 0),
        )  # fmt: skip


@triton.jit
def part_coordinates(
    index, block: tl.constexpr, part_grid, PART: tl.constexpr, BLOCK_HEIGHT: tl.constexpr,
    BY_COLUMN: tl.constexpr = True,
):  # fmt: skip
    """Returns the :class:`BlockPixels` of a block of the part whose list has the given index.

    BY_COLUMN adds a hint to the index in the part that lets a lane hold the pixels of a column. These share more of the
    work of a Gaussian than the pixels of a row.
    """
    TILE: tl.constexpr = PART.TILE
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    PARTS_ACROSS: tl.constexpr = TILE // WIDTH
    tile = part_grid.first_tile + index % part_grid.n_tiles
    part = index // part_grid.n_tiles
    image = (tile // part_grid.tiles_per_image).to(tl.int64)
    tile = tile % part_grid.tiles_per_image
    part_x = tl.arange(0, WIDTH)[None, :]
    part_y = block * BLOCK_HEIGHT + tl.arange(0, BLOCK_HEIGHT)[:, None]
    x = tile % part_grid.tile_width * TILE + part % PARTS_ACROSS * WIDTH + part_x
    y = tile // part_grid.tile_width * TILE + part // PARTS_ACROSS * HEIGHT + part_y
    inside = (x < part_grid.width) & (y < part_grid.height)
    pixel = (image * part_grid.height + y) * part_grid.width + x
    part_pixel = part_y * WIDTH + part_x
    if BY_COLUMN:
        part_pixel = tl.max_contiguous(part_pixel, [1, 1])
    return BlockPixels(image=image, position=(x, y), inside=inside, index=pixel, part_index=part_pixel)


@triton.jit
def part_pixels(
    index, block: tl.constexpr, part_grid, rays, PART: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, dtype: tl.constexpr,
    BY_COLUMN: tl.constexpr = True,
):  # fmt: skip
    """Same as ``part_coordinates``, with pixel centers or rays as positions."""
    pixels = part_coordinates(index, block, part_grid, PART, BLOCK_HEIGHT, BY_COLUMN)
    if rays.per_pixel is None:
        x, y = pixels.position
        position = (x.to(dtype) + 0.5, y.to(dtype) + 0.5)
    else:
        position = load_rays(rays, pixels.image, pixels.index, pixels.inside, part_grid)
    return BlockPixels(
        image=pixels.image, position=position, inside=pixels.inside, index=pixels.index, part_index=pixels.part_index
    )  # fmt: skip


@triton.jit
def begin_forward(
    program, ranges, masks, products, part_grid, rays, WALK: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """Finds the entries and pixels of a program, and T of its pixels in front of its entries.

    Args:
        masks: [I, tiles_per_image] bool or None.
        products: [n_chunks, WIDTH HEIGHT], see ``chunk_products``; None if no list is cut.

    Returns:
        The results of ``load_range`` and ``part_pixels``; whether the mask of the tile is true; T in front of the
        program's entries, negative for pixels that are outside, have no ray or have stopped before.
    """
    PART: tl.constexpr = WALK.PART
    entry_range = load_range(program, ranges, PART.CHUNK)
    index = entry_range.list_index
    pixels = part_pixels(index, 0, part_grid, rays, PART, PART.HEIGHT, dtype)
    is_unmasked = True
    if masks is not None:
        is_unmasked = tl.load(masks + (part_grid.first_tile + index % part_grid.n_tiles)) != 0
    transmittance = tl.where(has_ray(pixels.position, pixels.inside), 1.0, -1.0).to(dtype)
    if products is not None:
        if entry_range.is_chunk & is_unmasked:
            # T <- T times the product of 1 - alpha over each chunk in front
            for earlier in range(entry_range.first_chunk, program):
                address = products + tl.cast(earlier, tl.int64) * (PART.WIDTH * PART.HEIGHT) + pixels.part_index
                transmittance *= tl.load(address)
            alive = transmittance > constant(WALK.TRANSMITTANCE_MIN, transmittance)
            transmittance = tl.where(alive, transmittance, -tl.abs(transmittance))
    return entry_range, pixels, is_unmasked, transmittance


@triton.jit
def store_chunk(chunks, chunk, part_pixel, transmittance, pixel_end, mask, PIXELS: tl.constexpr):
    """Stores T and ``pixel_ends`` at the end of the walk of a chunk, by pixel of the part."""
    tl.store(chunks.transmittances + chunk * PIXELS + part_pixel, transmittance, mask=mask)
    if chunks.pixel_ends is not None:
        tl.store(chunks.pixel_ends + chunk * PIXELS + part_pixel, pixel_end, mask=mask)


@triton.jit
def store_list(images, walk_ends, pixel, index, start, transmittance, pixel_end, inside, is_whole):
    """Stores T, alpha and ``pixel_ends`` of pixels and ``walk_ends`` at the end of the walk of a whole list.

    Args:
        images: See ``Images``.
        index, start: Index and first entry of the list.
    """
    if images.transmittances is not None:
        tl.store(images.transmittances + pixel, transmittance, mask=inside)
    if images.alphas is not None:
        tl.store(images.alphas + pixel, 1.0 - transmittance, mask=inside)
    if images.pixel_ends is not None:
        tl.store(images.pixel_ends + pixel, pixel_end, mask=inside)
        tl.store(walk_ends + index, (start + tl.max(pixel_end)).to(tl.int32), mask=is_whole)


@triton.jit
def load_entry(entries, pointer, FAST: tl.constexpr):
    """Loads the row and the slot of an entry, given the pointer to it in ``listed``."""
    if entries.rows is not None:
        intersection = tl.load(pointer)
        return tl.load(entries.rows + intersection), tl.load(entries.slots + intersection)
    elif FAST:
        return tl.inline_asm_elementwise(
            "ld.global.v2.b32 {$0, $1}, [$2];", "=r,=r,l", [pointer.to(tl.int64)], dtype=(tl.int32, tl.int32),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        entry = tl.load(pointer)
        return entry.to(tl.int32), (entry >> 32).to(tl.int32)


@triton.jit
def load_entry_rows(entries, pointer, index):
    """Loads the rows of entries, given the pointer to the first one. Saves registers compared with ``load_entry``."""
    if entries.rows is not None:
        return tl.load(entries.rows + tl.load(pointer + index))
    else:
        return tl.load(pointer.to(tl.pointer_type(tl.int32)) + 2 * index)


@triton.jit
def load_entry_slots(entries, pointer, index):
    """Loads the slots of entries, int64, given the pointer to the first one."""
    if entries.rows is not None:
        return tl.load(entries.slots + tl.load(pointer + index)).to(tl.int64)
    else:
        slot = tl.load(pointer.to(tl.pointer_type(tl.int32)) + 2 * index + 1)
        return slot.to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit
def alpha_at(record, pixel, mask, WALK: tl.constexpr):
    """Evaluates a Gaussian at pixels.

    Returns:
        alpha = min(alpha_max, 2^e), 0 below ALPHA_MIN and where ``mask``, a scalar or per pixel, is false; e; the local
        coordinates of the pixels.
    """
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    local = FOOTPRINT.locate(record, pixel)
    e = FOOTPRINT.log2_alpha(record, local)
    limit = record[FOOTPRINT.VALUES + OPACITY_VALUES - 1]
    if WALK.FAST or WALK.AMD:
        alpha = tl.minimum(exp2(e, WALK.FAST), limit)
    else:
        # Subnormal numbers cost a CPU a hundred cycles. It has no minimum that ignores NaN.
        power = exp2(tl.maximum(e, -126.0), WALK.FAST)
        alpha = tl.where(power < limit, power, limit)
    return tl.where((e >= constant(WALK.LOG2_ALPHA_MIN, e)) & mask, alpha, 0.0), e, local


@triton.jit
def absorb(transmittance, alpha, WALK: tl.constexpr):
    """Blends a Gaussian front to back. Returns its weight alpha T, whether it is added, and T behind it.

    A pixel adds all Gaussians, also with alpha 0, until it stops. Then T remains, with a negative sign. On AMD GPUs,
    the weights of Gaussians that are not added are 0.
    """
    # w = alpha T;  T <- T - alpha T
    weight = alpha * transmittance
    # Rounded once: T - w would lose digits near alpha = 1. A factor of -1 is free, unlike a negation.
    after = tl.fma(alpha, transmittance * -1.0, transmittance)
    added = after > constant(WALK.TRANSMITTANCE_MIN, after)
    if WALK.AMD:
        # A select takes an instruction. One for the weight replaces one for each feature.
        weight = tl.where(added, weight, 0.0)
    return weight, added, tl.where(added, after, tl.abs(transmittance) * -1.0)


@triton.jit
def begin_backward(pixels, images, v_alphas):
    """Loads the state of the pixels of a block behind all Gaussians.

    Incoming gradients of pixels that no Gaussian covers may be NaN, for example those of 1 / depth. They count as zero.

    Returns:
        T; ``behind`` without background: -v_alpha; whether a Gaussian covers the pixel.
    """
    transmittance = tl.load(images.transmittances + pixels.index, mask=pixels.inside, other=1.0)
    is_covered = transmittance < 1.0
    behind = tl.zeros_like(transmittance)
    if v_alphas is not None:
        v_alpha = tl.load(v_alphas + pixels.index, mask=pixels.inside, other=0.0)
        behind = tl.where(is_covered, -v_alpha, 0.0)
    return transmittance, behind, is_covered


@triton.jit
def load_chunk_transmittance(chunks, program, part_pixel, PIXELS: tl.constexpr):
    """Loads T behind the chunk of a program, by pixel of the part."""
    return tl.abs(tl.load(chunks.transmittances + program.to(tl.int64) * PIXELS + part_pixel))


@triton.jit
def inverse_transmittance(transmittance, FAST: tl.constexpr):
    """Returns 1 / max(T, 1e-6). T of pixels that have not stopped is above this bound."""
    return reciprocal(tl.maximum(transmittance, 1e-6), FAST)


@triton.jit
def absorb_vjp(transmittance, alpha, e, behind, v_weight, WALK: tl.constexpr):
    """Removes a Gaussian from a pixel, back to front: the vector-Jacobian product of ``absorb``.

    Args:
        transmittance: T behind the Gaussian.
        alpha, e: See ``alpha_at``.
        behind: v . (color that is visible behind the Gaussian), with the gradient v of the pixel.
        v_weight: The gradient of the weight, v . (color of the Gaussian), and with distortion its term.

    Returns:
        T and ``behind`` in front of the Gaussian, its weight, and g = alpha dL/d alpha, 0 where alpha is clamped.
    """
    # T <- T / (1 - alpha);  w = alpha T
    transmittance = transmittance * reciprocal(1.0 - alpha, WALK.FAST)
    weight = alpha * transmittance
    # behind <- behind + alpha (v . c - behind);  g = w (v . c - behind)
    difference = v_weight - behind
    behind = tl.fma(alpha, difference, behind)
    g = tl.where(e <= constant(WALK.LOG2_ALPHA_MAX, e), weight * difference, 0.0)
    return transmittance, behind, weight, g


@triton.jit
def remove_gaussian(record, pixel, transmittance, behind, pixel_end, v_color, state, entry, WALK: tl.constexpr):
    """Removes a Gaussian from the pixels of a block, back to front. ``state`` is the state of ``distortion``, or ().

    Returns:
        T and ``behind`` in front of the Gaussian, its weight, g, the local coordinates of pixels, the gradient of its
        features divided by the weight, and the state in front of it.
    """
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    FIRST: tl.constexpr = FOOTPRINT.VALUES + OPACITY_VALUES
    # alpha = min(alpha_max, 2^e), 0 below 1/255 and behind the last entry of the pixel
    alpha, e, local = alpha_at(record, pixel, entry < pixel_end, WALK)
    features = FOOTPRINT.features(record, local, pixel, FIRST, len(v_color), FOOTPRINT)
    if len(state) > 0:
        front = transmittance * reciprocal(1.0 - alpha, WALK.FAST)
        z = features[len(v_color) - 1]
        state, v_color, of_distortion = distortion_vjp(state, v_color, z, alpha * front, front, transmittance)
    # v . c
    v_weight = v_color[0] * features[0]
    for k in tl.static_range(1, len(v_color)):
        v_weight = tl.fma(v_color[k], features[k], v_weight)
    if len(state) > 0:
        v_weight += of_distortion
    transmittance, behind, weight, g = absorb_vjp(transmittance, alpha, e, behind, v_weight, WALK)
    v_color, local = FOOTPRINT.features_vjp(record, local, pixel, weight, v_color, FIRST, FOOTPRINT)
    return transmittance, behind, weight, g, local, v_color, state
