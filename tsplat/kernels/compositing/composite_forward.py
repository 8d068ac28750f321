"""The forward walk over the lists of parts. See the docstring of the package.

A program composites a part by its whole list, or by one chunk of it. The grid has a program for each chunk, followed by
a program for each list, which does nothing if the list is cut.
"""

import triton.language as tl
from torch import Tensor

from ...data import CompositingSettings, Images, Rays, Splats
from ..device_math import prefetch
from ..launch import Int, kernel, programs
from .distortion import add_distortion, store_medians
from .records import OPACITY_VALUES, first_record, next_record, pack_records
from .tuning import walk_options
from .walk_arguments import BandTask, Chunks, PartGrid, Ranges, Walk
from .walk_steps import STEP, absorb, alpha_at, begin_forward, store_chunk, store_list

CHANNELS_MAX = 8
"""Maximum number of channels of a group: the channels that one walk accumulates. Several walks composite more."""


@kernel(strided=("backgrounds", "images.colors", "chunks.colors"))
def _composite_fwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    backgrounds,  # [I, stride], starting at the first channel of this group; or None
    masks,  # [I, tiles_per_image] bool or None
    ranges: "Ranges",
    ids,  # [n_entries] int32
    images: "Images",  # output; colors have the given stride, and start at the first channel of this group
    rays: "Rays",
    chunks: "Chunks",  # output, except products
    part_grid: "PartGrid",
    background_stride: "Int", stride: "Int",
    STEP: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Walks the lists of parts front to back, and stores pixels, or the colors of chunks."""
    PART: tl.constexpr = WALK.PART
    dtype = records.dtype.element_ty
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    FEATURES: tl.constexpr = WALK.FEATURES
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    FIRST: tl.constexpr = FOOTPRINT.VALUES + OPACITY_VALUES
    VALUES: tl.constexpr = FIRST + FEATURES
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    ADDED: tl.constexpr = FEATURES + WALK.DISTORTION
    UNROLL: tl.constexpr = WALK.UNROLL
    # Begin: the entries and pixels of the program, and T in front of the entries.
    program = tl.program_id(0)
    entry_range, pixels, is_unmasked, transmittance = begin_forward(
        program, ranges, masks, chunks.products, part_grid, rays, WALK, dtype
    )  # fmt: skip
    begin, end, center = entry_range.begin, entry_range.end, pixels.position
    color = (tl.zeros([HEIGHT, WIDTH], dtype),) * ADDED
    pixel_end = tl.zeros([HEIGHT, WIDTH], tl.int32)
    if WALK.DISTORTION:
        color = color + (1.0 - tl.abs(transmittance),)
        median = tl.zeros([HEIGHT, WIDTH], tl.int32)
    alive = is_unmasked & (begin < end)
    ids += entry_range.start
    if alive:
        record, row_behind, ahead = first_record(records, ids, begin, VALUES, WALK)
        done = begin
        while (done < end) & alive:
            stop = tl.minimum(done + STEP, end)
            for entry in tl.range(done, stop, loop_unroll_factor=UNROLL):
                record_behind, row_behind, ahead = next_record(records, row_behind, ids, entry, ahead, VALUES, WALK)
                if WALK.PREFETCH > 0:
                    row = tl.load(ids + tl.minimum(entry + WALK.PREFETCH, end - 1)).to(tl.int64)
                    prefetch(records + row * WALK.RECORD_WIDTH, VALUES)
                # alpha_i = min(alpha_max, o exp(-sigma)), 0 below 1/255
                alpha, _, local = alpha_at(record, center, True, WALK)
                # w = alpha T;  T <- T (1 - alpha)
                front = transmittance
                weight, added, transmittance = absorb(front, alpha, WALK)
                # C <- C + w c
                features = FOOTPRINT.features(record, local, center, FIRST, FEATURES, FOOTPRINT)
                blended = ()
                for k in tl.static_range(FEATURES):
                    mixed = tl.fma(weight, features[k], color[k])
                    if not WALK.AMD:
                        mixed = tl.where(added, mixed, color[k])
                    blended = blended + (mixed,)
                if WALK.DISTORTION:
                    z = features[FEATURES - 1]
                    blended, median = add_distortion(blended, color, median, entry, z, weight, added, front)
                color = blended
                if images.pixel_ends is not None:
                    pixel_end = tl.where(added, entry + 1, pixel_end)
                record = record_behind
            done = stop
            alive = tl.max(transmittance) > 0.0
    # Store, for a chunk: C, and T behind it.
    if ranges.chunk_lists is not None:
        if entry_range.is_chunk:
            chunk = program.to(tl.int64)
            store_chunk(chunks, chunk, pixels.part_index, transmittance, pixel_end, None, PIXELS)
            for k in tl.static_range(ADDED):
                tl.store(chunks.colors + (chunk * stride + k) * PIXELS + pixels.part_index, color[k])
    # Store, for a whole list: the pixels, C + T background.
    is_whole = entry_range.first_chunk == entry_range.end_chunk
    inside = pixels.inside & is_whole
    transmittance = tl.abs(transmittance)
    if WALK.DISTORTION:
        store_medians(
            images, chunks, ids, median, pixels.index, pixels.part_index, inside, program.to(tl.int64),
            entry_range.is_chunk, PIXELS,
        )  # fmt: skip
    for k in tl.static_range(ADDED):
        value = color[k]
        if (backgrounds is not None) and (k < WALK.COLORS):
            value = tl.fma(transmittance, tl.load(backgrounds + pixels.image * background_stride + k), value)
        tl.store(images.colors + pixels.index * stride + k, value, mask=inside)
    store_list(
        images, ranges.walk_ends, pixels.index, entry_range.list_index, entry_range.start, transmittance, pixel_end,
        inside, is_whole,
    )  # fmt: skip


def _channel_group_size(settings: CompositingSettings) -> int:
    """Returns the maximum number of channels of a group. A group contains whole normals."""
    return max(min(settings.channel_chunk, CHANNELS_MAX), 3 * settings.normals)


def channel_group(splats: Splats, first: int, settings: CompositingSettings) -> Splats:
    """Returns splats with the channels of the group that starts at channel ``first``."""
    end, n_features = first + _channel_group_size(settings), splats.n_features
    if first == 0 and end >= n_features:
        return splats
    colors = None if splats.colors is None else splats.colors[:, first:end]
    return splats._replace(colors=colors, depths=splats.depths if end >= n_features else None)


def walk_fwd(
    splats: Splats,
    records: Tensor,
    ids: Tensor,
    ranges: Ranges,
    chunks: Chunks,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    images: Images,
    band: BandTask,
) -> None:
    """Composites a band of tiles by the forward walk, once per group of channels that fits into registers.

    Args:
        splats, backgrounds, masks, images: As in ``composite_fwd``.
        records: Records of the first group of channels.
        ids, ranges: The lists of the band.
        chunks: The chunks of the band; output, except products.
    """
    n_features, n_colors, stride = splats.n_features, splats.n_colors, images.colors.shape[3]
    settings = band.settings
    group_images, group_chunks = images, chunks
    for first in range(0, n_features, _channel_group_size(settings)):
        group = channel_group(splats, first, settings)
        is_last = first + group.n_features == n_features
        if first > 0:
            records = pack_records(group, settings)
            backgrounds = None if backgrounds is None else backgrounds[:, _channel_group_size(settings) :]
            ranges = ranges._replace(walk_ends=None)
            group_images = images._replace(
                colors=images.colors[..., first:],
                transmittances=None,  # written by the walk of the first group, as are alphas and pixel_ends
                alphas=None,
                pixel_ends=None,
            )
            group_chunks = chunks._replace(
                pixel_ends=None, colors=None if chunks.colors is None else chunks.colors[:, first:]
            )  # fmt: skip
        walk = Walk.of(records, settings, band.part, group, normals=first == 0, hits=is_last, distortion=is_last)
        _composite_fwd_kernel.launch(
            programs(ranges.n_chunks + ranges.offsets.numel() - 1, 1),
            records=records,
            backgrounds=backgrounds,
            masks=masks,
            ranges=ranges,
            ids=ids,
            images=group_images,
            rays=band.rays_to_read(),
            chunks=group_chunks,
            part_grid=band.part_grid(),
            background_stride=n_colors,
            stride=stride,
            STEP=STEP,
            WALK=walk,
            **walk_options(records),
        )
