"""The forward walk over the lists of parts, for fewer than 16 channels. See the package's docstring.

A program composites a part, with its whole list or one chunk of it. The grid has a program for each chunk, followed by
one for each list, which does nothing if the list is cut.
"""

from typing import Any

import triton.language as tl
from torch import Tensor

from ...data import CompositingSettings, PartLists, RenderBuffers, Splats
from ..device_math import prefetch
from ..launch import Int, kernel, programs, walk_ahead
from .chunks import STEP
from .distortion import add_distortion, store_medians
from .records import load_record, pack_records
from .walk_steps import OPACITY, Band, absorb, alpha_at, begin_forward, store_chunk, store_list

PASS = 8
"""Most channels accumulated in one pass over the lists."""


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
    alphas,  # [I, height, width], output, or None
    last_ids,  # [I, height, width] int32, output, or None
    median_rows,  # [I, height, width] int32, output, if DISTORTION
    ends,  # [lists] int32, see ``PartLists``, output, if there are last_ids
    rays,  # [I, 6 or 3, height, width], see ``Rays``, or None
    origins,  # [I, 3] or None
    chunk_starts,  # [lists + 1] int32, or None, like all that follows, if no list is cut
    chunk_lists,  # [n_chunks] int32
    products,  # [n_chunks, WIDTH HEIGHT]
    chunk_transmittances,  # [n_chunks, WIDTH HEIGHT], negative where pixels have stopped, output
    chunk_colors,  # [n_chunks, stride, WIDTH HEIGHT], from the first channel of this pass on, output
    chunk_last_ids,  # [n_chunks, WIDTH HEIGHT] int32, output, if there are last_ids
    chunk_median_rows,  # [n_chunks, WIDTH HEIGHT] int32, output, if DISTORTION
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_chunks: "Int", background_stride: "Int", stride: "Int",
    FOOTPRINT: tl.constexpr, COLORS: tl.constexpr, FEATURES: tl.constexpr, RECORD_WIDTH: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr, AHEAD: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr, AMD: tl.constexpr,
    DISTORTION: tl.constexpr,
):  # fmt: skip
    dtype = records.dtype.element_ty
    FIRST: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    VALUES: tl.constexpr = FIRST + FEATURES
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0)
    grid = (tiles, first_tile, width, height, tile_width, n_tiles)
    own_range, pixels, shown, transmittance = begin_forward(
        program, order, offsets, chunk_lists, chunk_starts, n_chunks, masks, products, grid, rays, origins,
        CHUNK, TILE, WIDTH, HEIGHT, TRANSMITTANCE_MIN, dtype,
    )  # fmt: skip
    index, start, begin, end, first_chunk, end_chunk, is_chunk = own_range
    image, center, inside, pixel, own = pixels
    color = (tl.zeros([HEIGHT, WIDTH], dtype),) * (FEATURES + DISTORTION)
    last = tl.zeros([HEIGHT, WIDTH], tl.int32)
    if DISTORTION:
        color = color + (1.0 - tl.abs(transmittance),)
        median = tl.zeros([HEIGHT, WIDTH], tl.int32)
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
                alpha, at = alpha_at(record, center, FOOTPRINT, LOG2_ALPHA_MIN, APPROX, AMD)
                front = transmittance
                weight, added, transmittance = absorb(front, alpha, TRANSMITTANCE_MIN, AMD)
                features = FOOTPRINT.features(record, at, center, FIRST, FEATURES, FOOTPRINT)
                blended = ()
                for k in tl.static_range(FEATURES):
                    mixed = tl.fma(weight, features[k], color[k])
                    if not AMD:
                        mixed = tl.where(added, mixed, color[k])
                    blended = blended + (mixed,)
                if DISTORTION:
                    z = record[VALUES - 1]
                    blended, median = add_distortion(blended, color, median, place, z, weight, added, front)
                color = blended
                if last_ids is not None:
                    last = tl.where(added, place + 1, last)
                record = next_record
            done = stop
            alive = tl.max(transmittance) > 0.0
    if chunk_lists is not None:
        if is_chunk:
            chunk = program.to(tl.int64)
            store_chunk(chunk_transmittances, chunk_last_ids, chunk, own, transmittance, last, None, PIXELS)
            for k in tl.static_range(FEATURES + DISTORTION):
                tl.store(chunk_colors + (chunk * stride + k) * PIXELS + own, color[k])
    is_whole = first_chunk == end_chunk
    inside = inside & is_whole
    transmittance = tl.abs(transmittance)
    if DISTORTION:
        store_medians(
            median_rows, chunk_median_rows, ids, median, pixel, own, inside, program.to(tl.int64), is_chunk, PIXELS
        )  # fmt: skip
    for k in tl.static_range(FEATURES + DISTORTION):
        value = color[k]
        if (backgrounds is not None) and (k < COLORS):
            value = tl.fma(transmittance, tl.load(backgrounds + image * background_stride + k), value)
        tl.store(render_colors + pixel * stride + k, value, mask=inside)
    store_list(transmittances, alphas, last_ids, ends, pixel, index, start, transmittance, last, inside, is_whole)


def _pass_size(settings: CompositingSettings) -> int:
    """Most channels of a pass. A normal is composited whole."""
    return max(min(settings.channel_chunk, PASS), 3 * settings.normals)


def pass_channels(splats: Splats, first: int, settings: CompositingSettings) -> Splats:
    """Returns projected Gaussians with the channels of the pass over the lists that begins at channel ``first``."""
    end, n_features = first + _pass_size(settings), splats.n_features
    if first == 0 and end >= n_features:
        return splats
    colors = None if splats.colors is None else splats.colors[:, first:end]
    return splats._replace(colors=colors, depths=splats.depths if end >= n_features else None)


def walk_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    records: Tensor,
    lists: PartLists,
    buffers: RenderBuffers,
    band: Band,
    arguments: dict[str, Any],
) -> None:
    """Composites a band of tiles, in passes over its lists with as many channels as registers hold.

    Args:
        splats, backgrounds, buffers: As for ``composite_fwd``.
        records, lists: Of the first pass, and of the band; lists get what chunks add.
        arguments: Those of the kernel that are the same for ``features_fwd``.
    """
    n_features, n_colors, stride = splats.n_features, splats.n_colors, buffers.colors.shape[3]
    settings = band.settings
    colors = buffers.colors
    for first in range(0, n_features, _pass_size(settings)):
        passed = pass_channels(splats, first, settings)
        is_last = first + passed.n_features == n_features
        if first > 0:
            records, colors = pack_records(passed, settings), buffers.colors[..., first:]
            backgrounds = None if backgrounds is None else backgrounds[:, _pass_size(settings) :]
            arguments = arguments | dict.fromkeys(("transmittances", "alphas", "last_ids", "ends", "chunk_last_ids"))
            if lists.chunk_colors is not None:
                arguments["chunk_colors"] = lists.chunk_colors[:, first:]
        _composite_fwd_kernel.launch(
            programs(lists.n_chunks + lists.offsets.numel() - 1, 1),
            **arguments,
            records=records,
            backgrounds=backgrounds,
            render_colors=colors,
            background_stride=n_colors,
            stride=stride,
            **Band.pixels_of(settings, band.shape),
            **Band.walk_arguments(settings, band.shape, records, normals=first == 0, hits=is_last),
            COLORS=passed.n_colors,
            FEATURES=passed.n_features,
            RECORD_WIDTH=records.shape[1],
            STEP=STEP,
            AHEAD=walk_ahead(records),
            DISTORTION=settings.distortion and is_last,
        )
