"""Chunks of long lists: transmittances at the start of chunks, and the sum of the colors of chunks.

The product of 1 - alpha over each chunk gives the transmittance at the start of the next one. Then chunks are
composited like lists that are not cut, by ``composite_forward`` or ``features_forward``, and added up here.
"""

import torch
import triton.language as tl
from torch import Tensor

from ...data import Images, PartLists, Rays
from ..device_math import constant
from ..launch import Int, kernel, programs
from .records import OPACITY_VALUES, first_record, next_record
from .tuning import walk_options
from .walk_arguments import BandTask, Chunks, PartGrid, Ranges, Walk
from .walk_steps import STEP, alpha_at, load_range, part_coordinates, part_pixels, store_list

CHANNELS = 8
"""Maximum number of channels of a program that adds up chunks."""

COMBINED = 4
"""Number of chunks that are loaded at a time, before they are added."""


@kernel
def _transmittance_kernel(
    records,  # [nnz, RECORD_WIDTH]
    ranges: "Ranges",
    ids,  # [n_entries] int32
    products,  # [n_chunks, WIDTH HEIGHT], output
    rays: "Rays",
    part_grid: "PartGrid",
    STEP: tl.constexpr,
    WALK: tl.constexpr,
):
    """Computes the product of 1 - alpha over each chunk of a list except the last one, also for stopped pixels."""
    PART: tl.constexpr = WALK.PART
    dtype = records.dtype.element_ty
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY_VALUES
    UNROLL: tl.constexpr = WALK.UNROLL
    program = tl.program_id(0)
    entry_range = load_range(program, ranges, PART.CHUNK)
    begin, end = entry_range.begin, entry_range.end
    pixels = part_pixels(entry_range.list_index, 0, part_grid, rays, PART, PART.HEIGHT, dtype)
    if program + 1 < entry_range.end_chunk:
        transmittance = tl.where(pixels.inside, 1.0, 0.0).to(dtype)
        ids += entry_range.start
        record, row_behind, ahead = first_record(records, ids, begin, VALUES, WALK)
        done = begin
        alive = True
        while (done < end) & alive:
            stop = tl.minimum(done + STEP, end)
            for entry in tl.range(done, stop, loop_unroll_factor=UNROLL):
                record_behind, row_behind, ahead = next_record(records, row_behind, ids, entry, ahead, VALUES, WALK)
                alpha, _, _ = alpha_at(record, pixels.position, True, WALK)
                # T <- T - alpha T
                transmittance = tl.fma(alpha, transmittance * -1.0, transmittance)
                record = record_behind
            done = stop
            # Once all products are lower than this, no pixel reaches the next chunk.
            highest = tl.max(transmittance)
            alive = highest > constant(WALK.TRANSMITTANCE_MIN, highest)
        tl.store(products + program.to(tl.int64) * (PART.WIDTH * PART.HEIGHT) + pixels.part_index, transmittance)


@kernel
def _combine_kernel(
    backgrounds,  # [I, n_colors] or None
    ranges: "Ranges",
    images: "Images",  # output
    chunks: "Chunks",  # colors are set to zero where a pixel has stopped before the chunk
    part_grid: "PartGrid",
    n_colors: "Int", n_features: "Int", channel_groups: "Int",
    CHANNELS: tl.constexpr, COMBINED: tl.constexpr, DISTORTION: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Adds up the chunks of each cut list, up to the chunk in which a pixel stopped.

    The programs of the first chunk of a list add all of its chunks: ``channel_groups`` programs with CHANNELS channels
    each. With DISTORTION, the last channel is distortion and the second last is z, see ``distortion``.
    """
    dtype = chunks.colors.dtype.element_ty  # type: ignore[union-attr]
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0) // channel_groups
    channel = tl.program_id(0) % channel_groups * CHANNELS
    index = tl.load(ranges.chunk_lists + program)
    pixels = part_coordinates(index, 0, part_grid, PART, HEIGHT, BY_COLUMN=False)
    inside, pixel, part_pixel = pixels.inside, pixels.index, pixels.part_index
    first_chunk = tl.load(ranges.chunk_starts + index)
    end_chunk = tl.load(ranges.chunk_starts + index + 1)
    if (program == first_chunk) & (program < end_chunk):
        transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
        pixel_end = tl.zeros([HEIGHT, WIDTH], tl.int32)
        color = (tl.zeros([HEIGHT, WIDTH], dtype),) * CHANNELS
        if DISTORTION:
            z_in_front = tl.zeros([HEIGHT, WIDTH], dtype)
            median = tl.full([HEIGHT, WIDTH], -1, tl.int32)
        for base in range(first_chunk, end_chunk, COMBINED):
            # Issue all loads first, so that their latencies overlap.
            transmittance_behind = ()
            added = ()
            end_added = ()
            z_added = ()
            median_added = ()
            for n in tl.static_range(COMBINED):
                chunk_pixel = tl.cast(base + n, tl.int64) * PIXELS + part_pixel
                exists = base + n < end_chunk
                transmittance_behind = transmittance_behind + (
                    tl.load(chunks.transmittances + chunk_pixel, mask=exists),
                )
                if images.pixel_ends is not None:
                    end_added = end_added + (tl.load(chunks.pixel_ends + chunk_pixel, mask=exists),)
                if DISTORTION:
                    address = (tl.cast(base + n, tl.int64) * n_features + n_features - 2) * PIXELS + part_pixel
                    z_added = z_added + (tl.load(chunks.colors + address, mask=exists, other=0.0),)
                    median_added = median_added + (tl.load(chunks.median_rows + chunk_pixel, mask=exists, other=-1),)
                for k in tl.static_range(CHANNELS):
                    address = (tl.cast(base + n, tl.int64) * n_features + channel + k) * PIXELS + part_pixel
                    added = added + (tl.load(chunks.colors + address, mask=exists),)
            # T <- T behind the chunk;  C <- C + color of the chunk, unless the pixel has stopped before
            for n in tl.static_range(COMBINED):
                exists = base + n < end_chunk
                alive = (transmittance > 0.0) & exists
                front = transmittance
                transmittance = tl.where(alive, transmittance_behind[n], front)
                if images.pixel_ends is not None:
                    pixel_end = tl.where(alive, tl.maximum(end_added[n], pixel_end), pixel_end)
                total = ()
                for k in tl.static_range(CHANNELS):
                    address = (tl.cast(base + n, tl.int64) * n_features + channel + k) * PIXELS + part_pixel
                    kept = tl.where(alive, added[n * CHANNELS + k], 0.0)
                    if DISTORTION:
                        is_distortion = alive & (channel + k == n_features - 1)
                        between = z_in_front * (front - tl.abs(transmittance))
                        kept = tl.where(is_distortion, tl.fma(-2.0, between, kept), kept)
                    tl.store(chunks.colors + address, kept, mask=exists)
                    total = total + (color[k] + kept,)
                color = total
                if DISTORTION:
                    z_in_front += tl.where(alive, z_added[n], 0.0)
                    median = tl.where(alive & (median_added[n] >= 0), median_added[n], median)
        # C + T background
        transmittance = tl.abs(transmittance)
        for k in tl.static_range(CHANNELS):
            value = color[k]
            if backgrounds is not None:
                has_background = channel + k < n_colors
                background = tl.load(
                    backgrounds + pixels.image * n_colors + channel + k, mask=has_background, other=0.0
                )
                value = tl.fma(transmittance, background, value)
            tl.store(images.colors + pixel * n_features + channel + k, value, mask=inside)
        is_first = channel == 0
        if DISTORTION:
            tl.store(images.median_rows + pixel, median, mask=inside & is_first)
        start = tl.load(ranges.offsets + index)
        store_list(images, ranges.walk_ends, pixel, index, start, transmittance, pixel_end, inside & is_first, is_first)


@kernel
def _combine_rays_kernel(
    ranges: "Ranges",
    chunk_v_rays,  # [n_chunks, 6, WIDTH HEIGHT]
    v_rays,  # [I, 6, height, width], output
    part_grid: "PartGrid",
    PART: tl.constexpr,
):
    """Adds up the gradients of rays over the chunks of each cut list, in the program of its first chunk."""
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0)
    index = tl.load(ranges.chunk_lists + program)
    dtype = chunk_v_rays.dtype.element_ty
    pixels = part_coordinates(index, 0, part_grid, PART, HEIGHT, BY_COLUMN=False)
    end_chunk = tl.load(ranges.chunk_starts + index + 1)
    if (program == tl.load(ranges.chunk_starts + index)) & (program < end_chunk):
        pixels_per_image = part_grid.width.to(tl.int64) * part_grid.height
        # v_rays = sum of v_rays of chunks
        for k in tl.static_range(6):
            total = tl.zeros([HEIGHT, WIDTH], dtype)
            for chunk in range(program, end_chunk):
                total += tl.load(chunk_v_rays + (chunk.to(tl.int64) * 6 + k) * PIXELS + pixels.part_index)
            tl.store(v_rays + pixels.index + (pixels.image * 5 + k) * pixels_per_image, total, mask=pixels.inside)


def chunk_products(records: Tensor, lists: PartLists, band: BandTask) -> Tensor | None:
    """Returns the product of 1 - alpha over each chunk, [n_chunks, pixels of a part]; None if no list is cut."""
    if lists.chunk_transmittances is None:
        return None
    products = torch.empty_like(lists.chunk_transmittances)
    _transmittance_kernel.launch(
        programs(lists.n_chunks, 1),
        records=records,
        ranges=Ranges.of(lists),
        ids=lists.ids,
        products=products,
        rays=band.rays_to_read(),
        part_grid=band.part_grid(),
        STEP=STEP,
        WALK=Walk.of(records, band.settings, band.part),
        **walk_options(records),
    )
    return products


def combine_chunks(ranges: Ranges, chunks: Chunks, backgrounds: Tensor | None, images: Images, band: BandTask) -> None:
    """Writes the pixels of cut lists. Does nothing if no list is cut.

    Args:
        ranges, chunks: As written by the walks of chunks.
        backgrounds, images: As in ``composite_fwd``.
    """
    if ranges.n_chunks == 0:
        return
    n_features = images.colors.shape[3]
    channels = max(k for k in range(1, CHANNELS + 1) if n_features % k == 0)
    channel_groups = n_features // channels
    _combine_kernel.launch(
        programs(ranges.n_chunks * channel_groups, 1),
        backgrounds=backgrounds,
        ranges=ranges,
        images=images,
        chunks=chunks._replace(products=None),
        part_grid=band.part_grid(),
        n_colors=0 if backgrounds is None else backgrounds.shape[1],
        n_features=n_features,
        channel_groups=channel_groups,
        CHANNELS=channels,
        COMBINED=COMBINED,
        DISTORTION=band.settings.distortion,
        PART=band.part,
        num_warps=1,
    )


def combine_rays(ranges: Ranges, chunk_v_rays: Tensor | None, v_rays: Tensor, band: BandTask) -> None:
    """Sums the gradients of rays over the chunks of cut lists, [n_chunks, 6, pixels] -> v_rays [I, 6, H, W]."""
    if chunk_v_rays is not None:
        _combine_rays_kernel.launch(
            programs(ranges.n_chunks, 1),
            ranges=ranges,
            chunk_v_rays=chunk_v_rays,
            v_rays=v_rays,
            part_grid=band.part_grid(),
            PART=band.part,
            num_warps=1,
        )
