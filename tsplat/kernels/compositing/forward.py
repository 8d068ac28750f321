"""Forward compositing of the parts of tiles. See ``compositing``."""

import triton.language as tl
from torch import Tensor

from ...config import TRANSMITTANCE_MIN
from ...data import CompositingSettings, Intersections, PartLists, RenderBuffers, Splats, TileGrid
from ..device_math import constant, prefetch
from ..launch import Int, PartShape, kernel, launch, part_order, programs, walk_ahead
from .chunks import STEP, chunk_products, combine_chunks, first_transmittance, new_last_ids
from .lists import list_arguments, list_parts, part_arguments, walk_arguments
from .pixel_math import OPACITY, absorb, clamped_alpha, load_range, part_pixels
from .records import load_record, pack_records

PASS = 8
"""Channels accumulated in one pass over the lists."""


@kernel(strided=("backgrounds", "render_colors", "chunk_colors"))
def _composite_fwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    backgrounds,  # [I, stride], from the first channel of this pass on; or None
    masks,  # [I, n_tiles] bool or None
    offsets,  # [lists + 1] int32
    ids,  # [K] int32
    order,  # [lists] int64 or None
    render_colors,  # [I, height, width, stride], from the first channel of this pass on, output
    transmittances,  # [I, height, width], output, or None
    last_ids,  # [I, height, width] int32, output, or None
    ends,  # [lists] int32, see ``PartLists``, output, if there are last_ids
    chunk_starts,  # [lists + 1] int32, or None, like all that follows, if no list is cut
    chunk_lists,  # [n_chunks] int32
    products,  # [n_chunks, WIDTH HEIGHT]
    chunk_transmittances,  # [n_chunks, WIDTH HEIGHT], negative where pixels have stopped, output
    chunk_colors,  # [n_chunks, stride, WIDTH HEIGHT], from the first channel of this pass on, output
    chunk_last_ids,  # [n_chunks, WIDTH HEIGHT] int32, output, if there are last_ids
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_chunks: "Int", background_stride: "Int", stride: "Int",
    FOOTPRINT: tl.constexpr, COLORS: tl.constexpr, FEATURES: tl.constexpr, RECORD_WIDTH: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr, AHEAD: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    dtype = records.dtype.element_ty
    FIRST: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    VALUES: tl.constexpr = FIRST + FEATURES
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0)
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
    for _ in tl.static_range(FEATURES):
        color = color + (tl.zeros([HEIGHT, WIDTH], dtype),)
    last = tl.zeros([HEIGHT, WIDTH], tl.int32)
    alive = shown & (begin < end)
    ids += start
    if alive:
        record = load_record(records, tl.load(ids + begin), RECORD_WIDTH, VALUES, APPROX)
        next_row = tl.load(ids + begin + 1)
        if APPROX:
            ahead = ids + begin + 2  # loads with a pointer of their own come earlier; Triton for AMD cannot compile it
        done = begin
        while (done < end) & alive:
            stop = tl.minimum(done + STEP, end)
            for place in tl.range(done, stop, loop_unroll_factor=UNROLL):
                next_record = load_record(records, next_row, RECORD_WIDTH, VALUES, APPROX)
                if APPROX:
                    next_row = tl.load(ahead)
                    ahead += 1
                else:
                    next_row = tl.load(ids + place + 2)
                if AHEAD > 0:
                    row = tl.load(ids + tl.minimum(place + AHEAD, end - 1)).to(tl.int64)
                    prefetch(records + row * RECORD_WIDTH, VALUES)
                e = FOOTPRINT.log2_alpha(record, FOOTPRINT.locate(record, (center_x, center_y)))
                limit = record[FIRST - 1]
                alpha = tl.where(e >= constant(LOG2_ALPHA_MIN, e), clamped_alpha(e, limit, APPROX, AMD), 0.0)
                weight, added, transmittance = absorb(transmittance, alpha, TRANSMITTANCE_MIN, AMD)
                blended = ()
                for k in tl.static_range(FEATURES):
                    mixed = tl.fma(weight, record[FIRST + k], color[k])
                    if not AMD:
                        mixed = tl.where(added, mixed, color[k])
                    blended = blended + (mixed,)
                color = blended
                if last_ids is not None:
                    last = tl.where(added, place + 1, last)
                record = next_record
            done = stop
            alive = tl.max(transmittance) > 0.0
    if chunk_lists is not None:
        if is_chunk:
            chunk = program.to(tl.int64)
            tl.store(chunk_transmittances + chunk * PIXELS + own, transmittance)
            if last_ids is not None:
                tl.store(chunk_last_ids + chunk * PIXELS + own, last)
            for k in tl.static_range(FEATURES):
                tl.store(chunk_colors + (chunk * stride + k) * PIXELS + own, color[k])
    is_whole = first_chunk == end_chunk
    inside = inside & is_whole
    transmittance = tl.abs(transmittance)
    for k in tl.static_range(FEATURES):
        value = color[k]
        if (backgrounds is not None) and (k < COLORS):
            value = tl.fma(transmittance, tl.load(backgrounds + image * background_stride + k), value)
        tl.store(render_colors + pixel * stride + k, value, mask=inside)
    if transmittances is not None:
        tl.store(transmittances + pixel, transmittance, mask=inside)
    if last_ids is not None:
        tl.store(last_ids + pixel, last, mask=inside)
        tl.store(ends + index, (start + tl.max(last)).to(tl.int32), mask=is_whole)


def walk_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    shape: PartShape,
    settings: CompositingSettings,
) -> PartLists:
    """Composites a band of tiles part by part, as many channels at a time as registers hold.

    Args:
        shape: Of the parts. Others as for ``composite_fwd``.
    """
    n_features, n_colors = splats.n_features, splats.n_colors
    grid = TileGrid.cover(len(buffers.colors), settings.width, settings.height, settings.tile_size)
    pixels = part_arguments(intersections, grid, shape, settings)
    walk = {**walk_arguments(buffers.colors, shape, settings), **pixels}
    lists = None
    pass_width = min(settings.channel_chunk, PASS)
    for first in range(0, n_features, pass_width):
        end = min(first + pass_width, n_features)
        channels = slice(first, min(end, n_colors))
        colors = None if splats.colors is None else splats.colors[:, channels]
        depths = splats.depths if end > n_colors else None
        records = pack_records(splats._replace(colors=colors, depths=depths), settings)
        if lists is None:
            has_ends = buffers.last_ids is not None
            lists = list_parts(records, intersections, grid, shape, settings, n_features, has_ends)
            order = part_order(lists.offsets, intersections.isect_offsets)
            products = chunk_products(records, lists, walk)
            chunk_last_ids = new_last_ids(products, buffers)
        own_channels = lists
        if lists.chunk_colors is not None:
            own_channels = lists._replace(chunk_colors=lists.chunk_colors[:, first:])
        launch(
            _composite_fwd_kernel,
            programs(lists.n_chunks + lists.offsets.numel() - 1, 1),
            records=records,
            backgrounds=None if backgrounds is None else backgrounds[:, channels],
            masks=masks,
            ids=lists.ids,
            order=order,
            render_colors=buffers.colors[..., first:],
            transmittances=buffers.transmittances if first == 0 else None,
            last_ids=buffers.last_ids if first == 0 else None,
            ends=lists.ends if first == 0 else None,
            products=products,
            chunk_last_ids=chunk_last_ids,
            background_stride=n_colors,
            stride=n_features,
            COLORS=max(channels.stop - channels.start, 0),
            FEATURES=end - first,
            RECORD_WIDTH=records.shape[1],
            STEP=STEP,
            AHEAD=walk_ahead(records),
            TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
            **list_arguments(own_channels),
            **walk,
        )
    assert lists is not None
    combine_chunks(lists, chunk_last_ids, backgrounds, buffers, n_colors, pixels)
    return lists
