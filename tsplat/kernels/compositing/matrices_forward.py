"""Forward compositing of many channels. See ``matrices``."""

from typing import Any

import triton.language as tl
from torch import Tensor

from ...data import PartLists, RenderBuffers, Splats
from ..device_math import constant, load_tuple
from ..launch import FEATURES_MIN, Int, kernel, programs
from .matrices import GROUP, load_features, product, product_arguments, put
from .walk_steps import (
    OPACITY,
    Band,
    absorb,
    begin_forward,
    clamped_alpha,
    load_range,
    part_pixels,
    store_chunk,
    store_list,
)

BLOCKS = 2
"""Blocks of FEATURES_MIN channels that a program accumulates if there is more than one."""


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
    alphas,  # [I, height, width], output, or None
    last_ids,  # [I, height, width] int32, output, or None
    ends,  # [lists] int32, see ``PartLists``, output, if there are last_ids
    rays,  # [I, 6 or 3, height, width], see ``Rays``, or None
    origins,  # [I, 3] or None
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
    """Each of the ``passes`` programs of a part takes BLOCKS blocks of CHANNELS channels."""
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    dtype = records.dtype.element_ty
    own_pass = tl.program_id(0) % passes
    program = tl.program_id(0) // passes
    grid = (tiles, first_tile, width, height, tile_width, n_tiles)
    own_range, pixels, shown, transmittance = begin_forward(
        program, order, offsets, chunk_lists, chunk_starts, n_chunks, masks, products, grid, rays, origins,
        CHUNK, TILE, WIDTH, HEIGHT, TRANSMITTANCE_MIN, dtype,
    )  # fmt: skip
    _, start, begin, end, _, _, _ = own_range
    center = pixels[1]
    color = (tl.zeros([PIXELS, CHANNELS], dtype),) * BLOCKS
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
            e = FOOTPRINT.log2_alpha(record, FOOTPRINT.locate(record, center))
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
    image, _center, inside, pixel, own = part_pixels(index, 0, grid, None, None, TILE, WIDTH, HEIGHT, HEIGHT, dtype)
    n_features = n_colors + (depths is not None)
    pixel_in_images = tl.reshape(pixel, [PIXELS, 1])
    first_stored = own_pass == 0
    if chunk_lists is not None:
        if is_chunk:
            chunk = program.to(tl.int64)
            store_chunk(
                chunk_transmittances, chunk_last_ids, chunk, own, transmittance, last, first_stored, PIXELS
            )  # fmt: skip
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
    inside = inside & first_stored
    is_whole = is_whole & first_stored
    store_list(transmittances, alphas, last_ids, ends, pixel, index, start, transmittance, last, inside, is_whole)


def features_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    records: Tensor,
    lists: PartLists,
    buffers: RenderBuffers,
    band: Band,
    arguments: dict[str, Any],
) -> None:
    """Does what ``walk_fwd`` does, for ``FEATURES_MIN`` channels or more. Records have no channels."""
    blocks = BLOCKS if splats.n_features > FEATURES_MIN else 1
    passes = -(-splats.n_features // (blocks * FEATURES_MIN))
    _features_fwd_kernel.launch(
        programs((lists.n_chunks + lists.offsets.numel() - 1) * passes, 1),
        **arguments | product_arguments(records, splats, band),
        records=records,
        backgrounds=backgrounds,
        render_colors=buffers.colors,
        passes=passes,
        RECORD_WIDTH=records.shape[1],
        BLOCKS=blocks,
    )
