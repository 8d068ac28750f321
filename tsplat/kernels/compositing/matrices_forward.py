"""Forward compositing of many channels. See ``matrices``."""

import math

import triton
import triton.language as tl
from torch import Tensor

from ...config import ALPHA_MIN, TRANSMITTANCE_MIN
from ...data import CompositingSettings, Intersections, PartLists, RenderBuffers, Splats, TileGrid
from ..device_math import constant, load_tuple
from ..launch import FEATURES_MIN, Int, PartShape, kernel, launch, part_order, programs
from .chunks import chunk_products, combine_chunks, first_transmittance, new_last_ids
from .footprints import FOOTPRINTS
from .lists import list_arguments, list_parts, part_arguments, walk_arguments
from .matrices import GROUP, load_features, product, product_options, put
from .pixel_math import OPACITY, absorb, clamped_alpha, load_range, part_pixels
from .records import pack_records

BLOCKS = 2
"""Blocks of FEATURES_MIN channels that a program accumulates if there are more than one."""


@kernel
def _features_fwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    masks,  # [I, n_tiles] bool or None
    offsets,  # [lists + 1] int32
    ids,  # [K] int32
    order,  # [lists] int64 or None
    render_colors,  # [I, height, width, n_colors + depth], output
    transmittances,  # [I, height, width], output
    last_ids,  # [I, height, width] int32, output, or None
    ends,  # [lists] int32, see ``PartLists``, output, if there are last_ids
    chunk_starts,  # [lists + 1] int32, or None, like all that follows, if no list is cut
    chunk_lists,  # [n_chunks] int32
    products,  # [n_chunks, WIDTH HEIGHT]
    chunk_transmittances,  # [n_chunks, WIDTH HEIGHT], negative where pixels have stopped, output
    chunk_colors,  # [n_chunks, n_colors + depth, WIDTH HEIGHT], output
    chunk_last_ids,  # [n_chunks, WIDTH HEIGHT] int32, output, if there are last_ids
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_chunks: "Int", n_colors: "Int", passes: "Int",
    FOOTPRINT: tl.constexpr, RECORD_WIDTH: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """``passes`` programs take BLOCKS blocks of CHANNELS channels of a part each."""
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    dtype = records.dtype.element_ty
    own_pass = tl.program_id(0) % passes
    program = tl.program_id(0) // passes
    index, start, begin, end, first_chunk, end_chunk, is_chunk = load_range(
        program, order, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK
    )
    tile = first_tile + index % tiles
    image, center_x, center_y, inside, pixel, own = part_pixels(
        tile, index // tiles, 0, width, height, tile_width, n_tiles, TILE, WIDTH, HEIGHT, HEIGHT, dtype
    )
    shown = True
    if masks is not None:
        shown = tl.load(masks + tile) != 0
    transmittance = first_transmittance(
        products, inside, own, program, first_chunk, is_chunk & shown, PIXELS, TRANSMITTANCE_MIN, dtype
    )
    color = ()
    for _ in tl.static_range(BLOCKS):
        color = color + (tl.zeros([PIXELS, CHANNELS], dtype),)
    last = tl.zeros([HEIGHT, WIDTH], tl.int32)
    first_channel = own_pass * (BLOCKS * CHANNELS) + tl.arange(0, CHANNELS)[None, :]
    ids += start
    alive = shown  # Triton 3.7 cannot compile the loop for a GPU if this comes first.
    done = begin
    while (done < end) & alive:
        # Past the end, repeats the last row with weight 0: other rows may hold NaN.
        rows = tl.load(ids + tl.minimum(done + tl.arange(0, GROUP), end - 1)).to(tl.int64)
        weights = tl.zeros([GROUP, HEIGHT, WIDTH], dtype)
        for k in tl.static_range(GROUP):
            row = tl.load(ids + tl.minimum(done + k, end - 1)).to(tl.int64)
            record = load_tuple(records + row * RECORD_WIDTH, 1, VALUES)
            e = FOOTPRINT.log2_alpha(record, FOOTPRINT.locate(record, (center_x, center_y)))
            kept = (e >= constant(LOG2_ALPHA_MIN, e)) & (done + k < end)
            alpha = tl.where(kept, clamped_alpha(e, record[VALUES - 1], APPROX), 0.0)
            weight, added, transmittance = absorb(transmittance, alpha, TRANSMITTANCE_MIN)
            weights = put(weights, k, tl.where(added, weight, 0.0))
            if last_ids is not None:
                last = tl.where(added, tl.minimum(done + k + 1, end), last)
        weights = tl.trans(tl.reshape(weights, [GROUP, PIXELS]))
        blended = ()
        for block in tl.static_range(BLOCKS):
            channel = first_channel + block * CHANNELS
            features = load_features(colors, depths, rows[:, None], channel, n_colors, dtype)
            blended = blended + (color[block] + product(weights, features, dtype, SPLIT, EXACT),)
        color = blended
        done += GROUP
        alive = tl.max(transmittance) > 0.0
    # Recomputed: addresses kept during the walk would occupy registers.
    program += tl.minimum(done, 0)
    index, start, _, _, first_chunk, end_chunk, is_chunk = load_range(
        program, order, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK
    )
    image, _, _, inside, pixel, own = part_pixels(
        first_tile + index % tiles, index // tiles, 0, width, height, tile_width, n_tiles,
        TILE, WIDTH, HEIGHT, HEIGHT, dtype,
    )  # fmt: skip
    n_features = n_colors + (depths is not None)
    pixel_in_images = tl.reshape(pixel, [PIXELS, 1])
    first_stored = own_pass == 0
    if chunk_lists is not None:
        if is_chunk:
            chunk = program.to(tl.int64)
            tl.store(chunk_transmittances + chunk * PIXELS + own, transmittance, mask=first_stored)
            if last_ids is not None:
                tl.store(chunk_last_ids + chunk * PIXELS + own, last, mask=first_stored)
            for block in tl.static_range(BLOCKS):
                channel = first_channel + block * CHANNELS
                address = (chunk * n_features + channel) * PIXELS + tl.arange(0, PIXELS)[:, None]
                tl.store(chunk_colors + address, color[block], mask=channel < n_features)
    is_whole = first_chunk == end_chunk
    inside = inside & is_whole
    transmittance = tl.abs(transmittance)
    for block in tl.static_range(BLOCKS):
        channel = first_channel + block * CHANNELS
        value = color[block]
        if backgrounds is not None:
            background = tl.load(backgrounds + image * n_colors + channel, mask=channel < n_colors, other=0.0)
            value = tl.fma(tl.reshape(transmittance, [PIXELS, 1]), background, value)
        stored = tl.reshape(inside, [PIXELS, 1]) & (channel < n_features)
        tl.store(render_colors + pixel_in_images * n_features + channel, value, mask=stored)
    tl.store(transmittances + pixel, transmittance, mask=inside & first_stored)
    if last_ids is not None:
        tl.store(last_ids + pixel, last, mask=inside & first_stored)
        tl.store(ends + index, (start + tl.max(last)).to(tl.int32), mask=is_whole & first_stored)


def features_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    shape: PartShape,
    settings: CompositingSettings,
) -> PartLists:
    """Does what ``walk_fwd`` does, for ``FEATURES_MIN`` channels or more."""
    grid = TileGrid.cover(len(buffers.colors), settings.width, settings.height, settings.tile_size)
    pixels = part_arguments(intersections, grid, shape, settings)
    records = pack_records(splats._replace(colors=None, depths=None), settings)
    has_ends = buffers.last_ids is not None
    lists = list_parts(records, intersections, grid, shape, settings, splats.n_features, has_ends)
    products = chunk_products(records, lists, {**walk_arguments(records, shape, settings), **pixels})
    chunk_last_ids = new_last_ids(products, buffers)
    blocks = BLOCKS if splats.n_features > FEATURES_MIN else 1
    passes = triton.cdiv(splats.n_features, blocks * FEATURES_MIN)
    launch(
        _features_fwd_kernel,
        programs((lists.n_chunks + lists.offsets.numel() - 1) * passes, 1),
        records=records,
        colors=splats.colors,
        depths=splats.depths,
        backgrounds=backgrounds,
        masks=masks,
        ids=lists.ids,
        order=part_order(lists.offsets, intersections.isect_offsets),
        render_colors=buffers.colors,
        transmittances=buffers.transmittances,
        last_ids=buffers.last_ids,
        ends=lists.ends,
        products=products,
        chunk_last_ids=chunk_last_ids,
        n_colors=splats.n_colors,
        passes=passes,
        FOOTPRINT=FOOTPRINTS[settings.footprint],
        RECORD_WIDTH=records.shape[1],
        CHUNK=shape.chunk,
        CHANNELS=FEATURES_MIN,
        BLOCKS=blocks,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
        **list_arguments(lists),
        **pixels,
        **product_options(records, splats, shape),
    )
    combine_chunks(lists, chunk_last_ids, backgrounds, buffers, splats.n_colors, pixels)
    return lists
