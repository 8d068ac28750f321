"""Long lists of parts, cut into chunks: transmittances where chunks start, and the sum of what chunks add.

The product of 1 - alpha over each chunk gives the transmittance where the next one starts. Then chunks are
composited like lists that are not cut, by ``walks_forward`` or ``matrices_forward``, and added here.
"""

import torch
import triton.language as tl
from torch import Tensor

from ...config import TRANSMITTANCE_MIN
from ...data import PartLists, RenderBuffers
from ..device_math import constant
from ..launch import Int, kernel, programs
from .records import load_record
from .walk_steps import OPACITY, Band, alpha_at, load_range, part_pixels, store_list

CHANNELS = 8
"""Most channels per program that adds chunks."""

COMBINED = 4
"""Chunks of a list that are loaded at once, before they are added."""

STEP = 16
"""Gaussians between two checks whether all pixels of a part have stopped."""


@kernel
def _transmittance_kernel(
    records,  # [nnz, RECORD_WIDTH]
    offsets,  # [lists + 1] int32
    ids,  # [K] int32
    chunk_starts,  # [lists + 1] int32
    chunk_lists,  # [n_chunks] int32
    products,  # [n_chunks, WIDTH HEIGHT], output
    rays,  # [I, 6 or 3, height, width], see ``Rays``, or None
    origins,  # [I, 3] or None
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int", n_chunks: "Int",
    FOOTPRINT: tl.constexpr, RECORD_WIDTH: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    CHUNK: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    """The product of 1 - alpha over each chunk but the last of a list, also where pixels have stopped before."""
    dtype = records.dtype.element_ty
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    program = tl.program_id(0)
    index, start, begin, end, _, end_chunk, _ = load_range(
        program, None, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK
    )
    grid = (tiles, first_tile, width, height, tile_width, n_tiles)
    _, center, inside, _, own = part_pixels(index, 0, grid, rays, origins, TILE, WIDTH, HEIGHT, HEIGHT, dtype)
    if program + 1 < end_chunk:
        transmittance = tl.where(inside, 1.0, 0.0).to(dtype)
        ids += start
        record = load_record(records, tl.load(ids + begin), RECORD_WIDTH, VALUES, APPROX)
        next_row = tl.load(ids + begin + 1)
        if APPROX:
            ahead = ids + begin + 2  # loads with a pointer of their own come earlier; Triton for AMD cannot compile it
        done = begin
        alive = True
        while (done < end) & alive:
            stop = tl.minimum(done + STEP, end)
            for place in tl.range(done, stop, loop_unroll_factor=UNROLL):
                next_record = load_record(records, next_row, RECORD_WIDTH, VALUES, APPROX)
                if APPROX:
                    next_row = tl.load(ahead)
                    ahead += 1
                else:
                    next_row = tl.load(ids + place + 2)
                alpha = alpha_at(record, center, FOOTPRINT, LOG2_ALPHA_MIN, APPROX, AMD)[0]
                transmittance = tl.fma(alpha, transmittance * -1.0, transmittance)
                record = next_record
            done = stop
            # Where it is lower, pixels have stopped before the next chunk.
            highest = tl.max(transmittance)
            alive = highest > constant(TRANSMITTANCE_MIN, highest)
        tl.store(products + program.to(tl.int64) * (WIDTH * HEIGHT) + own, transmittance)


@kernel
def _combine_kernel(
    backgrounds,  # [I, n_colors] or None
    offsets,  # [lists + 1] int32
    render_colors,  # [I, height, width, n_features], output
    transmittances,  # [I, height, width], output
    alphas,  # [I, height, width], output, or None
    last_ids,  # [I, height, width] int32, output, or None
    median_rows,  # [I, height, width] int32, output, if DISTORTION
    ends,  # [lists] int32, see ``PartLists``, output, if there are last_ids
    chunk_starts,  # [lists + 1] int32
    chunk_lists,  # [n_chunks] int32
    chunk_transmittances,  # [n_chunks, WIDTH HEIGHT], negative where pixels have stopped
    chunk_colors,  # [n_chunks, n_features, WIDTH HEIGHT]; zeroed where pixels have stopped before
    chunk_last_ids,  # [n_chunks, WIDTH HEIGHT] int32, if there are last_ids
    chunk_median_rows,  # [n_chunks, WIDTH HEIGHT] int32, if DISTORTION
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_colors: "Int", n_features: "Int", passes: "Int",
    CHANNELS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, COMBINED: tl.constexpr,
    DISTORTION: tl.constexpr,
):  # fmt: skip
    """Adds the chunks of each list that is cut, up to the one in which a pixel stopped.

    The programs of a list's first chunk add all of its chunks: ``passes`` programs, of CHANNELS channels each. With
    DISTORTION, the last channel is distortion and the one before it z, see ``distortion``.
    """
    dtype = chunk_colors.dtype.element_ty
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0) // passes
    channel = tl.program_id(0) % passes * CHANNELS
    index = tl.load(chunk_lists + program)
    grid = (tiles, first_tile, width, height, tile_width, n_tiles)
    image, _center, inside, pixel, own = part_pixels(
        index, 0, grid, None, None, TILE, WIDTH, HEIGHT, HEIGHT, dtype, BY_COLUMN=False
    )
    first_chunk = tl.load(chunk_starts + index)
    end_chunk = tl.load(chunk_starts + index + 1)
    if (program == first_chunk) & (program < end_chunk):
        transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
        last = tl.zeros([HEIGHT, WIDTH], tl.int32)
        color = (tl.zeros([HEIGHT, WIDTH], dtype),) * CHANNELS
        if DISTORTION:
            z_in_front = tl.zeros([HEIGHT, WIDTH], dtype)
            median = tl.full([HEIGHT, WIDTH], -1, tl.int32)
        for base in range(first_chunk, end_chunk, COMBINED):
            # All loads come first, so that their latencies overlap.
            behind = ()
            added = ()
            last_added = ()
            z_added = ()
            median_added = ()
            for n in tl.static_range(COMBINED):
                own_chunk = tl.cast(base + n, tl.int64) * PIXELS + own
                exists = base + n < end_chunk
                behind = behind + (tl.load(chunk_transmittances + own_chunk, mask=exists),)
                if last_ids is not None:
                    last_added = last_added + (tl.load(chunk_last_ids + own_chunk, mask=exists),)
                if DISTORTION:
                    address = (tl.cast(base + n, tl.int64) * n_features + n_features - 2) * PIXELS + own
                    z_added = z_added + (tl.load(chunk_colors + address, mask=exists, other=0.0),)
                    median_added = median_added + (tl.load(chunk_median_rows + own_chunk, mask=exists, other=-1),)
                for k in tl.static_range(CHANNELS):
                    address = (tl.cast(base + n, tl.int64) * n_features + channel + k) * PIXELS + own
                    added = added + (tl.load(chunk_colors + address, mask=exists),)
            for n in tl.static_range(COMBINED):
                exists = base + n < end_chunk
                alive = (transmittance > 0.0) & exists
                front = transmittance
                transmittance = tl.where(alive, behind[n], front)
                if last_ids is not None:
                    last = tl.where(alive, tl.maximum(last_added[n], last), last)
                total = ()
                for k in tl.static_range(CHANNELS):
                    address = (tl.cast(base + n, tl.int64) * n_features + channel + k) * PIXELS + own
                    kept = tl.where(alive, added[n * CHANNELS + k], 0.0)
                    if DISTORTION:
                        is_distortion = alive & (channel + k == n_features - 1)
                        between = z_in_front * (front - tl.abs(transmittance))
                        kept = tl.where(is_distortion, tl.fma(-2.0, between, kept), kept)
                    tl.store(chunk_colors + address, kept, mask=exists)
                    total = total + (color[k] + kept,)
                color = total
                if DISTORTION:
                    z_in_front += tl.where(alive, z_added[n], 0.0)
                    median = tl.where(alive & (median_added[n] >= 0), median_added[n], median)
        transmittance = tl.abs(transmittance)
        for k in tl.static_range(CHANNELS):
            value = color[k]
            if backgrounds is not None:
                has_background = channel + k < n_colors
                background = tl.load(backgrounds + image * n_colors + channel + k, mask=has_background, other=0.0)
                value = tl.fma(transmittance, background, value)
            tl.store(render_colors + pixel * n_features + channel + k, value, mask=inside)
        is_first = channel == 0
        if DISTORTION:
            tl.store(median_rows + pixel, median, mask=inside & is_first)
        start = tl.load(offsets + index)
        store_list(
            transmittances, alphas, last_ids, ends, pixel, index, start, transmittance, last, inside & is_first,
            is_first,
        )  # fmt: skip


@kernel
def _combine_rays_kernel(
    chunk_starts,  # [lists + 1] int32
    chunk_lists,  # [n_chunks] int32
    chunk_v_rays,  # [n_chunks, 6, WIDTH HEIGHT]
    v_rays,  # [I, 6, height, width], output
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """Adds the gradients of rays of the chunks of each list that is cut, in the program of its first chunk."""
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0)
    index = tl.load(chunk_lists + program)
    grid = (tiles, first_tile, width, height, tile_width, n_tiles)
    image, _center, inside, pixel, own = part_pixels(
        index, 0, grid, None, None, TILE, WIDTH, HEIGHT, HEIGHT, chunk_v_rays.dtype.element_ty, BY_COLUMN=False
    )
    end_chunk = tl.load(chunk_starts + index + 1)
    if (program == tl.load(chunk_starts + index)) & (program < end_chunk):
        plane = width.to(tl.int64) * height
        for k in tl.static_range(6):
            total = tl.zeros([HEIGHT, WIDTH], chunk_v_rays.dtype.element_ty)
            for chunk in range(program, end_chunk):
                total += tl.load(chunk_v_rays + (chunk.to(tl.int64) * 6 + k) * PIXELS + own)
            tl.store(v_rays + pixel + (image * 5 + k) * plane, total, mask=inside)


def chunk_products(records: Tensor, lists: PartLists, band: Band) -> Tensor | None:
    """Returns the product of 1 - alpha over each chunk, [n_chunks, pixels of a part]; None if no list is cut."""
    if lists.chunk_transmittances is None:
        return None
    products = torch.empty_like(lists.chunk_transmittances)
    _transmittance_kernel.launch(
        programs(lists.n_chunks, 1),
        records=records,
        offsets=lists.offsets,
        ids=lists.ids,
        chunk_starts=lists.chunk_starts,
        chunk_lists=lists.chunk_lists,
        products=products,
        n_chunks=lists.n_chunks,
        RECORD_WIDTH=records.shape[1],
        STEP=STEP,
        TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
        **band.ray_arguments(),
        **band.pixel_arguments(),
        **band.walk_arguments(band.settings, band.shape, records),
    )
    return products


def combine_chunks(
    lists: PartLists,
    chunk_last_ids: Tensor | None,
    chunk_median_rows: Tensor | None,
    backgrounds: Tensor | None,
    buffers: RenderBuffers,
    band: Band,
) -> None:
    """Writes the pixels of lists that are cut. Does nothing if there are none.

    Args:
        chunk_last_ids: [n_chunks, pixels of a part] int32, the last entry of each pixel; None if not needed.
        chunk_median_rows: The same, rows of medians; None without distortion.
        backgrounds, buffers: As for ``composite_fwd``.
    """
    if lists.n_chunks == 0:
        return
    n_features = buffers.colors.shape[3]
    channels = max(k for k in range(1, CHANNELS + 1) if n_features % k == 0)
    passes = n_features // channels
    _combine_kernel.launch(
        programs(lists.n_chunks * passes, 1),
        backgrounds=backgrounds,
        render_colors=buffers.colors,
        transmittances=buffers.transmittances,
        alphas=buffers.alphas,
        last_ids=buffers.last_ids,
        ends=lists.ends,
        median_rows=buffers.median_rows,
        chunk_last_ids=chunk_last_ids,
        chunk_median_rows=chunk_median_rows,
        n_colors=0 if backgrounds is None else backgrounds.shape[1],
        n_features=n_features,
        passes=passes,
        CHANNELS=channels,
        COMBINED=COMBINED,
        DISTORTION=band.settings.distortion,
        num_warps=1,
        offsets=lists.offsets,
        chunk_starts=lists.chunk_starts,
        chunk_lists=lists.chunk_lists,
        chunk_transmittances=lists.chunk_transmittances,
        chunk_colors=lists.chunk_colors,
        **band.pixel_arguments(),
    )


def combine_rays(lists: PartLists, chunk_v_rays: Tensor | None, v_rays: Tensor, band: Band) -> None:
    """Writes the gradients of rays [I, 6, H, W] of lists that are cut from those of chunks [n_chunks, 6, pixels]."""
    if chunk_v_rays is not None:
        _combine_rays_kernel.launch(
            programs(lists.n_chunks, 1),
            chunk_starts=lists.chunk_starts,
            chunk_lists=lists.chunk_lists,
            chunk_v_rays=chunk_v_rays,
            v_rays=v_rays,
            num_warps=1,
            **band.pixel_arguments(),
        )
