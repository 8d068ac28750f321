"""Forward compositing of many channels by matrix products. See ``matrices``."""

import triton.language as tl
from torch import Tensor

from ...config import FEATURES_MIN
from ...data import Images, Rays, Splats
from ..device_math import load_tuple
from ..launch import Int, kernel, programs
from .matrices import CHANNELS, GROUP, Products, load_features, product, set_kth
from .records import OPACITY_VALUES
from .tuning import group_options
from .walk_arguments import BandTask, Chunks, PartGrid, Ranges, Walk
from .walk_steps import absorb, alpha_at, begin_forward, load_range, part_coordinates, store_chunk, store_list

BLOCKS = 2
"""Number of blocks of FEATURES_MIN channels that a program accumulates, if there are several blocks."""


@kernel
def _features_fwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    masks,  # [I, tiles_per_image] bool or None
    ranges: "Ranges",
    ids,  # [n_entries] int32
    images: "Images",  # output, with n_colors + depth channels
    rays: "Rays",
    chunks: "Chunks",  # output, except products
    part_grid: "PartGrid",
    n_colors: "Int", channel_groups: "Int",
    BLOCKS: tl.constexpr, PRODUCTS: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Walks the lists of parts front to back, in groups of Gaussians, by matrix products.

    ``channel_groups`` programs composite a part. Each composites BLOCKS blocks of CHANNELS channels.
    """
    PART: tl.constexpr = WALK.PART
    FOOTPRINT: tl.constexpr = WALK.FOOTPRINT
    WIDTH: tl.constexpr = PART.WIDTH
    HEIGHT: tl.constexpr = PART.HEIGHT
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY_VALUES
    dtype = records.dtype.element_ty
    channel_group = tl.program_id(0) % channel_groups
    program = tl.program_id(0) // channel_groups
    entry_range, pixels, is_unmasked, transmittance = begin_forward(
        program, ranges, masks, chunks.products, part_grid, rays, WALK, dtype
    )  # fmt: skip
    begin, end, center = entry_range.begin, entry_range.end, pixels.position
    color = (tl.zeros([PIXELS, CHANNELS], dtype),) * BLOCKS
    pixel_end = tl.zeros([HEIGHT, WIDTH], tl.int32)
    first_channel = channel_group * (BLOCKS * CHANNELS) + tl.arange(0, CHANNELS)[None, :]
    ids += entry_range.start
    # Triton 3.7 cannot compile the loop for a GPU unless `alive` is assigned after the other variables of the loop.
    alive = is_unmasked
    done = begin
    while (done < end) & alive:
        # Blend the Gaussians of the group one after the other: w = alpha T;  T <- T (1 - alpha). Past the end, repeats
        # the last row with weight 0: other rows may contain NaN.
        rows = tl.load(ids + tl.minimum(done + tl.arange(0, GROUP), end - 1)).to(tl.int64)
        weights = tl.zeros([GROUP, HEIGHT, WIDTH], dtype)
        for k in tl.static_range(GROUP):
            row = tl.load(ids + tl.minimum(done + k, end - 1)).to(tl.int64)
            record = load_tuple(records + row * WALK.RECORD_WIDTH, 1, VALUES)
            alpha, _, _ = alpha_at(record, center, done + k < end, WALK)
            weight, added, transmittance = absorb(transmittance, alpha, WALK)
            weights = set_kth(weights, k, tl.where(added, weight, 0.0))
            if images.pixel_ends is not None:
                pixel_end = tl.where(added, tl.minimum(done + k + 1, end), pixel_end)
        # C <- C + W F, for the weights W [PIXELS, GROUP] and the features F [GROUP, CHANNELS]
        weights = tl.trans(tl.reshape(weights, [GROUP, PIXELS]))
        blended = ()
        for block in tl.static_range(BLOCKS):
            channel = first_channel + block * CHANNELS
            features = load_features(colors, depths, rows[:, None], channel, n_colors, dtype)
            blended = blended + (color[block] + product(weights, features, dtype, PRODUCTS.SPLIT, PRODUCTS.EXACT),)
        color = blended
        done += GROUP
        alive = tl.max(transmittance) > 0.0
    # Compute the range and the coordinates again, to save registers during the walk. Adding min(done, 0), which is 0,
    # prevents the compiler from reusing the first computation.
    program += tl.minimum(done, 0)
    entry_range = load_range(program, ranges, PART.CHUNK)
    pixels = part_coordinates(entry_range.list_index, 0, part_grid, PART, HEIGHT)
    n_features = n_colors + (depths is not None)
    pixel_in_images = tl.reshape(pixels.index, [PIXELS, 1])
    first_stored = channel_group == 0
    if ranges.chunk_lists is not None:
        if entry_range.is_chunk:
            chunk = program.to(tl.int64)
            store_chunk(chunks, chunk, pixels.part_index, transmittance, pixel_end, first_stored, PIXELS)
            for block in tl.static_range(BLOCKS):
                channel = first_channel + block * CHANNELS
                address = (chunk * n_features + channel) * PIXELS + tl.arange(0, PIXELS)[:, None]
                tl.store(chunks.colors + address, color[block], mask=channel < n_features)
    # C + T background
    is_whole = entry_range.first_chunk == entry_range.end_chunk
    inside = pixels.inside & is_whole
    transmittance = tl.abs(transmittance)
    for block in tl.static_range(BLOCKS):
        channel = first_channel + block * CHANNELS
        value = color[block]
        if backgrounds is not None:
            background = tl.load(backgrounds + pixels.image * n_colors + channel, mask=channel < n_colors, other=0.0)
            value = tl.fma(tl.reshape(transmittance, [PIXELS, 1]), background, value)
        stored = tl.reshape(inside, [PIXELS, 1]) & (channel < n_features)
        tl.store(images.colors + pixel_in_images * n_features + channel, value, mask=stored)
    inside = inside & first_stored
    is_whole = is_whole & first_stored
    store_list(
        images, ranges.walk_ends, pixels.index, entry_range.list_index, entry_range.start, transmittance, pixel_end,
        inside, is_whole,
    )  # fmt: skip


def features_fwd(
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
    """Same as ``walk_fwd``, for at least ``FEATURES_MIN`` channels. Records have no channels."""
    blocks = BLOCKS if splats.n_features > FEATURES_MIN else 1
    channel_groups = -(-splats.n_features // (blocks * FEATURES_MIN))
    _features_fwd_kernel.launch(
        programs((ranges.n_chunks + ranges.offsets.numel() - 1) * channel_groups, 1),
        records=records,
        colors=splats.colors,
        depths=splats.depths,
        backgrounds=backgrounds,
        masks=masks,
        ranges=ranges,
        ids=ids,
        images=images,
        rays=band.rays_to_read(),
        chunks=chunks,
        part_grid=band.part_grid(),
        n_colors=splats.n_colors,
        channel_groups=channel_groups,
        BLOCKS=blocks,
        PRODUCTS=Products.of(records, splats),
        WALK=Walk.of(records, band.settings, band.part),
        **group_options(records, band.shape),
    )
