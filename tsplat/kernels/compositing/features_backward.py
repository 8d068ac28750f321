"""Backward compositing of many channels by matrix products. See ``matrices``.

Slots have the same layout as in ``composite_backward``. The values of a group of Gaussians are summed at once, first
along the columns of a part, as dx is constant in a column.
"""

import torch
import triton
import triton.language as tl
from einops import rearrange
from torch import Tensor

from ...config import FEATURES_MIN
from ...data import Rays, SavedImages, Splats
from ..device_math import load_tuple
from ..launch import Int, kernel
from .matrices import CHANNELS, GROUP, Products, kth, lanes_last, load_features, product, set_kth
from .rays import add_pixel_gradients, no_gradients, store_ray_gradients
from .slot_layers import Layer, list_part
from .slots import PartSlots
from .tuning import group_options
from .walk_arguments import BandTask, Chunks, Entries, ImageGradients, PartGrid, Ranges, Walk
from .walk_steps import (
    absorb_vjp,
    alpha_at,
    begin_backward,
    inverse_transmittance,
    load_chunk_transmittance,
    load_entry_rows,
    load_entry_slots,
    load_range,
    part_pixels,
)


@triton.jit
def _v_dot(v_part, block, values, PART: tl.constexpr):
    """Returns v . values of pixels [HEIGHT, WIDTH] over a block of channels, for values [1 or pixels, CHANNELS]."""
    v = tl.load(v_part + block * (PART.WIDTH * PART.HEIGHT * CHANNELS))
    return tl.reshape(tl.sum(v * values, 1), [PART.HEIGHT, PART.WIDTH])


@triton.jit
def _begin_pixels(pixels, images, v_render_alphas, v_part, backgrounds, n_colors, blocks, PART: tl.constexpr):
    """Returns T and ``behind`` of the pixels of a part behind all Gaussians."""
    # behind = v . background - v_alpha
    transmittance, behind, _ = begin_backward(pixels, images, v_render_alphas)
    if backgrounds is not None:
        for block in range(blocks):
            channel = block * CHANNELS + tl.arange(0, CHANNELS)[None, :]
            address = backgrounds + pixels.image * n_colors + channel
            behind += _v_dot(v_part, block, tl.load(address, mask=channel < n_colors, other=0.0), PART)
    return transmittance, behind


@triton.jit
def _add_chunks_behind(
    transmittance, behind, chunks, program, end_chunk, part_pixel, v_part, n_features, blocks, WALK: tl.constexpr
):  # fmt: skip
    """Returns T and ``behind`` behind a chunk, given those behind all Gaussians.

    behind = (behind T_end + v . color of the chunks behind) / T behind this chunk
    """
    PART: tl.constexpr = WALK.PART
    PIXELS: tl.constexpr = PART.WIDTH * PART.HEIGHT
    behind *= transmittance
    transmittance = load_chunk_transmittance(chunks, program, part_pixel, PIXELS)
    for block in range(blocks):
        channel = block * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        color = tl.zeros([PIXELS, CHANNELS], behind.dtype)
        for step in range(end_chunk - 1 - program):
            later = (end_chunk - 1 - step).to(tl.int64) * n_features + channel
            address = chunks.colors + later * PIXELS + tl.arange(0, PIXELS)[:, None]
            color += tl.load(address, mask=channel < n_features, other=0.0)
        behind += _v_dot(v_part, block, color, PART)
    behind *= inverse_transmittance(transmittance, WALK.FAST)
    return transmittance, behind


@triton.jit
def _load_group(records, rows, in_range, WALK: tl.constexpr):
    """Loads records of rows [GROUP], as values [GROUP, 1, 1]. Gaussians out of range get opacity 0."""
    VALUES: tl.constexpr = WALK.FOOTPRINT.VALUES
    pointer = records + rows[:, None, None] * WALK.RECORD_WIDTH
    log2_opacity = tl.load(pointer + VALUES, mask=in_range[:, None, None], other=-1e4)
    return load_tuple(pointer, 1, VALUES) + (log2_opacity, tl.load(pointer + VALUES + 1))


@triton.jit
def _by_column(values):
    """Reshapes values [GROUP, 1, WIDTH], one per column of pixels, to [GROUP, WIDTH]; leaves others unchanged."""
    columns = ()
    for k in tl.static_range(len(values)):
        value = values[k]
        if value.shape[1] == 1:
            value = tl.reshape(value, [value.shape[0], value.shape[2]])
        columns = columns + (value,)
    return columns


@triton.jit
def _of_group(pixel):
    """Adds a first dimension for the Gaussians of a group to values of pixels; leaves scalars unchanged."""
    values = ()
    for k in tl.static_range(len(pixel)):
        value = pixel[k]
        if len(value.shape) > 0:
            value = value[None]
        values = values + (value,)
    return values


@triton.jit
def _add_to_slots(address, values, mask, PARTS_PER_PROGRAM: tl.constexpr):
    """Stores values, or adds them if parts of a tile share slots."""
    if PARTS_PER_PROGRAM > 1:
        values += tl.load(address, mask=mask, other=0.0)
    tl.store(address, values, mask=mask)


@kernel
def _features_bwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    ranges: "Ranges",
    entries: "Entries",
    images: "SavedImages",
    chunks: "Chunks",
    layer: "Layer",
    v_parts,  # [lists, blocks, WIDTH HEIGHT, CHANNELS]
    v_render_alphas,  # [I, height, width], or None for zero
    v_slots,  # [slots, FOOTPRINT.SUMS + n_colors + depth + 2 ABSGRAD], output
    rays: "Rays",  # and output
    part_grid: "PartGrid",
    n_colors: "Int",
    WARPS: tl.constexpr, ABSGRAD: tl.constexpr, PARTS_PER_PROGRAM: tl.constexpr, PRODUCTS: tl.constexpr,
    WALK: tl.constexpr,
):  # fmt: skip
    """Walks the lists of parts back to front, in groups of Gaussians, by matrix products. Stores sums in slots.

    The sums over the pixels of each of WARPS warps are computed separately, then added.

    A program composites PARTS_PER_PROGRAM parts of a tile, one after the other. If there are several, they add to the
    same slots.
    """
    PART: tl.constexpr = WALK.PART
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    SUMS: tl.constexpr = FOOTPRINT.SUMS
    LANES: tl.constexpr = PIXELS if PIXELS < 32 else 32  # not min, which Triton 3.5 does not fold
    DEPTHS: tl.constexpr = depths is not None
    dtype = records.dtype.element_ty
    n_features = n_colors + DEPTHS
    slot_width = SUMS + n_features + 2 * ABSGRAD
    blocks = tl.cdiv(n_features, CHANNELS)
    channels = tl.arange(0, CHANNELS)[None, :]
    column = tl.arange(0, GROUP)
    pixel_in_part = tl.arange(0, PIXELS)[:, None]
    program = tl.program_id(0)
    for part in range(PARTS_PER_PROGRAM):
        entry_range = load_range(program, ranges, PART.CHUNK, part * part_grid.n_tiles)
        index, start = entry_range.list_index, entry_range.start
        begin, range_end = entry_range.begin, entry_range.end
        if PARTS_PER_PROGRAM > 1:
            start, begin, range_end = list_part(entries, layer, entry_range, part, part_grid.n_tiles)
        pixels = part_pixels(
            index, 0, part_grid, rays, PART, HEIGHT, dtype,
            BY_COLUMN=not ABSGRAD,  # with absgrad, there are too few registers
        )  # fmt: skip
        v_part = v_parts + index.to(tl.int64) * blocks * PIXELS * CHANNELS + pixel_in_part * CHANNELS + channels
        # Begin: T and behind of the pixels, behind the entries of the part.
        transmittance, behind = _begin_pixels(
            pixels, images, v_render_alphas, v_part, backgrounds, n_colors, blocks, PART
        )
        if ranges.chunk_lists is not None:
            if entry_range.is_chunk:
                transmittance, behind = _add_chunks_behind(
                    transmittance, behind, chunks, program, entry_range.end_chunk, pixels.part_index, v_part,
                    n_features, blocks, WALK,
                )  # fmt: skip
        pixel_end = tl.load(images.pixel_ends + pixels.index, mask=pixels.inside, other=0)
        end = tl.maximum(tl.minimum(tl.max(pixel_end), range_end), begin)
        if rays.v_per_pixel is not None:
            v_pixels = no_gradients(transmittance)
        list_values = entries.listed + start
        for done in range(0, end - begin, GROUP):
            # Entries back to front. Before the start, repeats the first row with weight 0.
            entry = end - 1 - done - column
            in_range = entry >= begin
            rows = load_entry_rows(entries, list_values, tl.maximum(entry, begin)).to(tl.int64)
            out = v_slots + load_entry_slots(entries, list_values, tl.maximum(entry, begin)) * slot_width
            # v . c for all pixels and Gaussians: V F^T, block by block
            v_dot_c = tl.zeros([PIXELS, GROUP], dtype)
            for block in range(blocks):
                channel = block * CHANNELS + channels
                v = tl.load(v_part + block * PIXELS * CHANNELS)
                features = load_features(colors, depths, rows[:, None], channel, n_colors, dtype)
                v_dot_c += product(v, tl.trans(features), dtype, PRODUCTS.SPLIT, PRODUCTS.EXACT)
            v_weights = tl.reshape(tl.trans(v_dot_c), [GROUP, PIXELS // LANES, LANES])
            v_weights = tl.reshape(lanes_last(v_weights), [GROUP, HEIGHT, WIDTH])
            record = _load_group(records, rows, in_range, WALK)
            is_passed = entry[:, None, None] < pixel_end[None]
            alphas, e, local = alpha_at(record, _of_group(pixels.position), is_passed, WALK)
            # Blend the Gaussians one after the other, for w and g:
            # T <- T / (1 - alpha);  w = alpha T;  g = w (v . c - behind), 0 where alpha is clamped;
            # behind <- behind + alpha (v . c - behind)
            weights = tl.zeros([GROUP, HEIGHT, WIDTH], dtype)
            g = tl.zeros([GROUP, HEIGHT, WIDTH], dtype)
            for k in tl.static_range(GROUP):
                transmittance, behind, weight, g_k = absorb_vjp(
                    transmittance, kth(alphas, k), kth(e, k), behind, kth(v_weights, k), WALK
                )
                weights = set_kth(weights, k, weight)
                g = set_kth(g, k, g_k)
            if rays.v_per_pixel is not None:
                v_pixels = add_pixel_gradients(v_pixels, record, g, local, FOOTPRINT, GROUPED=True)
            # Sums over pixels: of the footprint, of slopes, and of features, v_F = W^T V
            sums = ()
            added = FOOTPRINT.add_gradients(sums, g, local)
            for k in tl.static_range(len(added)):
                sums = sums + (lanes_last(tl.sum(added[k], 1)),)
            sums = FOOTPRINT.expand(sums, _by_column(local))
            for k in tl.static_range(SUMS):
                _add_to_slots(out + k, tl.sum(sums[k], 1), in_range, PARTS_PER_PROGRAM)
            if ABSGRAD:
                slopes = FOOTPRINT.slopes(record, g, local)
                for k in tl.static_range(2):
                    slope = tl.sum(lanes_last(tl.sum(slopes[k], 1)), 1)
                    _add_to_slots(out + SUMS + n_features + k, slope, in_range, PARTS_PER_PROGRAM)
            weights = tl.permute(tl.reshape(weights, [GROUP, WARPS, PIXELS // WARPS]), (1, 0, 2))
            for block in range(blocks):
                channel = block * CHANNELS + channels
                v = tl.reshape(tl.load(v_part + block * PIXELS * CHANNELS), [WARPS, PIXELS // WARPS, CHANNELS])
                v_features = tl.sum(product(weights, v, dtype, PRODUCTS.SPLIT, False), 0)
                in_slot = in_range[:, None] & (channel < n_features)
                _add_to_slots(out[:, None] + SUMS + channel, v_features, in_slot, PARTS_PER_PROGRAM)
        if rays.v_per_pixel is not None:
            store_ray_gradients(rays, chunks, v_pixels, program, entry_range, pixels, part_grid, PIXELS)


def features_bwd(
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
    """Same as ``walk_bwd``, for at least ``FEATURES_MIN`` channels and one layer. Records have no channels."""
    options = group_options(records, band.shape)
    # Without a Gaussian, incoming gradients may be NaN, for example those of 1 / depth.
    v_colors = torch.where(images.transmittances[..., None] < 1, v_images.colors, 0.0)
    _features_bwd_kernel.launch(
        slots.n_programs,
        records=records,
        colors=splats.colors,
        depths=splats.depths,
        backgrounds=backgrounds,
        ranges=ranges,
        entries=slots.entries,
        images=images._replace(depth_sums=None),
        chunks=chunks,
        layer=layer,
        v_parts=_by_part(v_colors, band),
        v_render_alphas=v_images.alphas,
        v_slots=slots.v_slots,
        rays=band.rays_to_differentiate(),
        part_grid=band.part_grid(),
        n_colors=splats.n_colors,
        WARPS=options["num_warps"],
        ABSGRAD=band.settings.absgrad,
        PARTS_PER_PROGRAM=slots.parts_per_program,
        PRODUCTS=Products.of(records, splats),
        WALK=Walk.of(records, band.settings, band.part),
        **options,
    )


def _by_part(image: Tensor, band: BandTask) -> Tensor:
    """Rearranges images [I, H, W, D] to [lists, blocks, pixels of a part, FEATURES_MIN], padded with zeros."""
    grid, first_tile = band.grid, band.intersections.first_tile
    height, width, channels = image.shape[1:]
    size, blocks = grid.tile_size, -(-channels // FEATURES_MIN)
    first_image = first_tile // grid.tiles_per_image
    image = image[first_image : (first_tile + band.n_tiles - 1) // grid.tiles_per_image + 1]
    margins = (blocks * FEATURES_MIN - channels, grid.tile_width * size - width, grid.tile_height * size - height)
    if any(margins):
        image = torch.nn.functional.pad(image, (0, margins[0], 0, margins[1], 0, margins[2]))
    first_tile -= first_image * grid.tiles_per_image
    tiles = rearrange(
        image,
        "i (tile_y part_y y) (tile_x part_x x) (block c) -> (part_y part_x) (i tile_y tile_x) block (y x) c",
        y=band.shape.height,
        x=band.shape.width,
        part_y=size // band.shape.height,
        part_x=size // band.shape.width,
        c=FEATURES_MIN,
    )
    return tiles[:, first_tile : first_tile + band.n_tiles].flatten(0, 1).contiguous()
