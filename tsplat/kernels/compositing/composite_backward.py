"""The backward walk over the lists of parts, for fewer than 16 channels; see ``composite_forward``."""

import triton
import triton.language as tl
from torch import Tensor

from ...data import Rays, SavedImages, Splats
from ..device_math import element, load_tuple, prefetch, where
from ..launch import has_fast_fp32, kernel
from .distortion import begin_distortion, distortion_of_chunks
from .pixel_sums import add_block, add_features, column_of_lane, fold, sum_block
from .rays import add_pixel_gradients, no_gradients, store_ray_gradients
from .records import OPACITY_VALUES, load_record
from .slot_layers import Layer, list_part
from .slots import PartSlots
from .tuning import walk_options
from .walk_arguments import BandTask, Chunks, Entries, ImageGradients, PartGrid, Ranges, Walk
from .walk_steps import (
    begin_backward,
    inverse_transmittance,
    load_chunk_transmittance,
    load_entry,
    load_range,
    part_coordinates,
    part_pixels,
    remove_gaussian,
)


@triton.jit
def _begin_pixels(pixels, images, v_images, backgrounds, part_grid, WALK: tl.constexpr):
    """Loads the state of the pixels of a block behind all Gaussians.

    Returns:
        T; ``behind``; the gradients of the pixels; the state of ``distortion``, or ().
    """
    FEATURES: tl.constexpr = WALK.FEATURES
    VALUES: tl.constexpr = FEATURES + WALK.DISTORTION
    image, inside, pixel = pixels.image, pixels.inside, pixels.index
    transmittance, behind, is_covered = begin_backward(pixels, images, v_images.alphas)
    v_image = v_images.colors + image * v_images.image_stride
    v_pixel = v_image + (pixel - image * part_grid.height * part_grid.width) * v_images.pixel_stride
    v = load_tuple(v_pixel, tl.cast(v_images.channel_stride, tl.int64), VALUES, inside)
    v_color = where(is_covered, v[:FEATURES])
    # behind = v . background - v_alpha
    if backgrounds is not None:
        COLORS: tl.constexpr = WALK.COLORS
        for k in tl.static_range(COLORS):
            behind = tl.fma(v_color[k], tl.load(backgrounds + image * COLORS + k), behind)
    state = ()
    if WALK.DISTORTION:
        v_distortion = tl.where(is_covered, v[FEATURES], 0.0)
        state = begin_distortion(images.depth_sums, pixel, inside, v_distortion, transmittance)
    return transmittance, behind, v_color, state


@triton.jit
def _add_chunks_behind(
    transmittance, behind, v_color, state, chunks, program, end_chunk, part_pixel, WALK: tl.constexpr
):  # fmt: skip
    """Returns T, ``behind`` and the state of ``distortion`` behind a chunk, given those behind all Gaussians.

    behind = (behind T_end + v . color of the chunks behind) / T behind this chunk
    """
    FEATURES: tl.constexpr = WALK.FEATURES
    VALUES: tl.constexpr = FEATURES + WALK.DISTORTION
    PIXELS: tl.constexpr = WALK.PART.WIDTH * WALK.PART.HEIGHT
    behind *= transmittance
    transmittance = load_chunk_transmittance(chunks, program, part_pixel, PIXELS)
    if WALK.DISTORTION:
        z_behind = tl.zeros_like(behind)
        distortion_behind = tl.zeros_like(behind)
    for step in range(end_chunk - 1 - program):
        later = chunks.colors + (end_chunk - 1 - step).to(tl.int64) * (VALUES * PIXELS) + part_pixel
        for k in tl.static_range(FEATURES):
            behind = tl.fma(v_color[k], tl.load(later + k * PIXELS), behind)
        if WALK.DISTORTION:
            z_behind += tl.load(later + (FEATURES - 1) * PIXELS)
            distortion_behind += tl.load(later + FEATURES * PIXELS)
    if WALK.DISTORTION:
        state, added = distortion_of_chunks(state, z_behind, distortion_behind, transmittance)
        behind += added
    behind *= inverse_transmittance(transmittance, WALK.FAST)
    return transmittance, behind, state


@triton.jit
def _load_state(layer, inside, pixel, state):
    """Loads T, ``behind`` and the state of distortion of pixels, as stored by the layer behind."""
    address, n_pixels = layer.carry + pixel, tl.cast(layer.n_pixels, tl.int64)
    transmittance = tl.load(address, mask=inside, other=1.0)
    behind = tl.load(address + n_pixels, mask=inside, other=0.0)
    if len(state) > 0:
        state = state[:2] + (tl.load(address + 2 * n_pixels, mask=inside, other=0.0),)
    return transmittance, behind, state


@triton.jit
def _store_state(layer, inside, pixel, transmittance, behind, state):
    """Stores T, ``behind`` and the state of distortion of pixels for the layer in front."""
    address, n_pixels = layer.carry + pixel, tl.cast(layer.n_pixels, tl.int64)
    tl.store(address, transmittance, mask=inside)
    tl.store(address + n_pixels, behind, mask=inside)
    if len(state) > 0:
        tl.store(address + 2 * n_pixels, state[2], mask=inside)


@triton.jit
def _step(
    record, entry, centers, transmittance, behind, states, v_pixels, v_colors, pixel_ends, ABSGRAD: tl.constexpr,
    WALK: tl.constexpr,
):  # fmt: skip
    """Removes a Gaussian from the pixels of all blocks, back to front.

    Returns:
        T, ``behind``, the states of distortion and the gradients of rays in front of the Gaussian, per block; the sums
        of the footprint; the sums of features and slopes; the local coordinates of the pixels of the last block.
    """
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    new_transmittance = ()
    new_behind = ()
    new_states = ()
    new_v_pixels = ()
    sums = ()
    feature_sums = ()
    for b in tl.static_range(len(pixel_ends)):
        block_state = states[b] if WALK.DISTORTION else ()
        block_t, block_behind, weight, g, local, block_v, block_state = remove_gaussian(
            record, centers[b], transmittance[b], behind[b], pixel_ends[b], v_colors[b], block_state, entry, WALK
        )
        new_transmittance = new_transmittance + (block_t,)
        new_behind = new_behind + (block_behind,)
        if WALK.DISTORTION:
            new_states = new_states + (block_state,)
        sums = FOOTPRINT.add_gradients(sums, g, local)
        feature_sums = add_features(feature_sums, record, weight, g, local, block_v, FOOTPRINT, ABSGRAD)
        if len(v_pixels) > 0:
            added = add_pixel_gradients(v_pixels[b], record, g, local, FOOTPRINT, GROUPED=False)
            new_v_pixels = new_v_pixels + (added,)
    return new_transmittance, new_behind, new_states, new_v_pixels, sums, feature_sums, local


@triton.jit
def _not_before(index, first, PARTS_PER_PROGRAM: tl.constexpr):
    """Clamps an index to load ahead to the first entry, if the program has listed the part by itself."""
    if PARTS_PER_PROGRAM > 1:
        index = tl.maximum(index, first)
    return index


@triton.jit
def _store(
    out, sums, feature_sums, local, is_first, FOLD: tl.constexpr, PARTS_PER_PROGRAM: tl.constexpr, WALK: tl.constexpr
):
    """Stores the sums over the pixels of a part in a slot, or adds them if parts of a tile share slots."""
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    if FOLD:
        tl.store(out, fold(FOOTPRINT.expand(sums, local) + feature_sums), mask=is_first)
    elif PARTS_PER_PROGRAM > 1:
        add_block(out, sums, feature_sums, local, FOOTPRINT)
    else:
        columns = sum_block(sums, feature_sums, local, FOOTPRINT)
        for k in tl.static_range(len(columns)):
            tl.store(out + k, columns[k])


@kernel(strided=("v_images.colors",))
def _composite_bwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    backgrounds,  # [I, COLORS] or None
    ranges: "Ranges",
    entries: "Entries",
    images: "SavedImages",
    v_images: "ImageGradients",
    chunks: "Chunks",
    v_slots,  # [slots, COLUMNS], output
    layer: "Layer",
    rays: "Rays",  # and output
    part_grid: "PartGrid",
    BLOCK_HEIGHT: tl.constexpr, FOLD: tl.constexpr, ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr,
    PARTS_PER_PROGRAM: tl.constexpr, HAS_CARRY: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Walks the lists of parts back to front, and stores the sums of entries in slots.

    With FOLD, a lane holds one pixel of each block of a part, all in the same column. Otherwise, a part is one block.

    A program composites PARTS_PER_PROGRAM parts of a tile, one after the other. If there are several, they add to the
    same slots. The program walks one layer. With HAS_CARRY, it starts from the pixel state stored by the layer behind.
    """
    PART: tl.constexpr = WALK.PART
    dtype = records.dtype.element_ty
    VALUES: tl.constexpr = WALK.FOOTPRINT.VALUES + OPACITY_VALUES + WALK.FEATURES
    BLOCKS: tl.constexpr = PART.HEIGHT // BLOCK_HEIGHT
    UNROLL: tl.constexpr = WALK.UNROLL
    if layer.isect_starts is not None:
        # The memory begins with the first slot of the layer. Numbers of slots count from the first layer.
        v_slots += tl.cast(layer.first_slot, tl.int64) * -COLUMNS
    program = tl.program_id(0)
    for part in range(PARTS_PER_PROGRAM):
        entry_range = load_range(program, ranges, PART.CHUNK, part * part_grid.n_tiles)
        index, start = entry_range.list_index, entry_range.start
        begin, range_end = entry_range.begin, entry_range.end
        if PARTS_PER_PROGRAM > 1:
            start, begin, range_end = list_part(entries, layer, entry_range, part, part_grid.n_tiles)
        # Without an entry in this layer, the state stored by the layer behind remains valid for the layer in front.
        is_walked = (begin < range_end) if HAS_CARRY else True
        if is_walked:
            # Begin: T and behind of the pixels of each block, behind the entries of the part.
            centers = ()
            transmittance = ()
            behind = ()
            v_colors = ()
            states = ()
            v_pixels = ()
            pixel_ends = ()
            end = 0
            for block in tl.static_range(BLOCKS):
                pixels = part_pixels(index, block, part_grid, rays, PART, BLOCK_HEIGHT, dtype)
                block_t, block_behind, v_color, state = _begin_pixels(
                    pixels, images, v_images, backgrounds, part_grid, WALK
                )  # fmt: skip
                if ranges.chunk_lists is not None:
                    end_chunk = entry_range.end_chunk
                    if entry_range.is_chunk:
                        block_t, block_behind, state_of_chunk = _add_chunks_behind(
                            block_t, block_behind, v_color, state, chunks, program, end_chunk, pixels.part_index, WALK
                        )
                        if WALK.DISTORTION:
                            state = state_of_chunk
                block_end = tl.load(images.pixel_ends + pixels.index, mask=pixels.inside, other=0)
                if HAS_CARRY:
                    block_t, block_behind, state = _load_state(layer, pixels.inside, pixels.index, state)
                centers = centers + (pixels.position,)
                transmittance = transmittance + (block_t,)
                behind = behind + (block_behind,)
                v_colors = v_colors + (v_color,)
                if WALK.DISTORTION:
                    states = states + (state,)
                if rays.v_per_pixel is not None:
                    v_pixels = v_pixels + (no_gradients(block_t),)
                pixel_ends = pixel_ends + (block_end,)
                end = tl.maximum(end, tl.max(block_end))
            list_values = entries.listed + start
            first_out = v_slots
            is_first = True
            if FOLD:
                column, is_first = column_of_lane(COLUMNS)
                first_out += column
            end = tl.maximum(tl.minimum(end, range_end), begin)
            if begin < end:
                # Step: the next record is loaded while the current one is blended.
                row, slot = load_entry(entries, list_values + end - 1, WALK.FAST)
                record = load_record(records, row, WALK.RECORD_WIDTH, VALUES, WALK.FAST)
                next_entry = list_values + _not_before(end - 2, begin, PARTS_PER_PROGRAM)
                next_row, next_slot = load_entry(entries, next_entry, WALK.FAST)
                ahead = start + end - 3  # computing it from `entry` would make that 64-bit as well
                for step in tl.range(end - begin, loop_unroll_factor=UNROLL):
                    entry = end - 1 - step
                    next_record = load_record(records, next_row, WALK.RECORD_WIDTH, VALUES, WALK.FAST)
                    out = element(first_out, slot, COLUMNS, WALK.FAST)
                    slot = next_slot
                    next_entry = entries.listed + _not_before(ahead, start + begin, PARTS_PER_PROGRAM)
                    next_row, next_slot = load_entry(entries, next_entry, WALK.FAST)
                    ahead -= 1
                    if WALK.PREFETCH > 0:
                        later = list_values + tl.maximum(entry - WALK.PREFETCH, begin)
                        later_row, later_slot = load_entry(entries, later, WALK.FAST)
                        prefetch(records + later_row.to(tl.int64) * WALK.RECORD_WIDTH, VALUES)
                        prefetch(v_slots + later_slot.to(tl.int64) * COLUMNS, COLUMNS)
                    # T <- T / (1 - alpha);  behind <- behind + alpha (v . c - behind);  sums of g and of w v
                    transmittance, behind, states, v_pixels, sums, feature_sums, local = _step(
                        record,
                        entry,
                        centers,
                        transmittance,
                        behind,
                        states,
                        v_pixels,
                        v_colors,
                        pixel_ends,
                        ABSGRAD,
                        WALK,
                    )
                    _store(out, sums, feature_sums, local, is_first, FOLD, PARTS_PER_PROGRAM, WALK)
                    record = next_record
            # Store: the state in front of the entries, for the layer in front, and the gradients of rays.
            if layer.isect_starts is not None:
                if layer.number > 0:
                    for block in tl.static_range(BLOCKS):
                        # not `pixels`, whose type a branch may not change
                        at = part_coordinates(index, block, part_grid, PART, BLOCK_HEIGHT)
                        block_state = states[block] if WALK.DISTORTION else ()
                        _store_state(layer, at.inside, at.index, transmittance[block], behind[block], block_state)
            if rays.v_per_pixel is not None:
                for block in tl.static_range(BLOCKS):
                    pixels = part_coordinates(index, block, part_grid, PART, BLOCK_HEIGHT)
                    store_ray_gradients(
                        rays, chunks, v_pixels[block], program, entry_range, pixels, part_grid, PART.WIDTH * PART.HEIGHT
                    )


def walk_bwd(
    splats: Splats,
    records: Tensor,
    ranges: Ranges,
    chunks: Chunks,
    slots: PartSlots,
    layer: Layer,
    backgrounds: Tensor | None,
    images: SavedImages,
    v_images: ImageGradients,
    band: BandTask,
) -> None:
    """Computes the slots of a layer by the backward walk.

    Args:
        splats, backgrounds: As in ``composite_bwd``.
        records: Records with all channels.
        ranges, chunks, slots: The lists, chunks and slots of the band.
        layer: The layer whose slots to compute.
    """
    shape = band.shape
    is_last = slots.layers is None or layer.number == slots.layers.n - 1
    if slots.parts_per_program > 1 and not is_last:
        # The parts of a tile add to slots. The memory holds the sums of the layer behind.
        slots.v_slots.zero_()
    folds = has_fast_fp32(records) and shape.width * shape.height % 32 == 0
    _composite_bwd_kernel.launch(
        slots.n_programs,
        records=records,
        backgrounds=backgrounds,
        ranges=ranges,
        entries=slots.entries,
        images=images,
        v_images=v_images,
        chunks=chunks,
        v_slots=slots.v_slots,
        layer=layer._replace(first_positions=None),
        rays=band.rays_to_differentiate(),
        part_grid=band.part_grid(),
        BLOCK_HEIGHT=32 // shape.width if folds else shape.height,
        FOLD=folds,
        ABSGRAD=band.settings.absgrad,
        COLUMNS=slots.v_slots.shape[1],
        PARTS_PER_PROGRAM=slots.parts_per_program,
        HAS_CARRY=not is_last,
        WALK=Walk.of(records, band.settings, band.part, splats, normals=True, hits=True, distortion=True),
        **walk_options(records),
    )
