"""Backward compositing of many channels. See ``compositing_features``.

Slots and moments are those of ``compositing_backward``. The moments of a group are summed at once, first along columns
of a part, as dx is one value per column.
"""

import math

import torch
import triton
import triton.language as tl
from einops import rearrange
from torch import Tensor

from ..config import ALPHA_MIN
from ..data import CompositingSettings, Intersections, PartLists, Splats, TileGrid
from .compositing_features import (
    GROUP,
    lanes_last,
    load_features,
    product,
    product_options,
    put,
    take,
)
from .compositing_parts import list_arguments, part_arguments
from .compositing_records import pack_records
from .compositing_slots import assign_slots
from .device_math import constant, load_tuple
from .launch import FEATURES_MIN, Int, PartShape, kernel, launch
from .tile_math import (
    MOMENTS,
    RECORD,
    absorb_vjp,
    clamped_alpha,
    inverse_transmittance,
    load_range,
    load_row,
    load_slot,
    log2_alpha,
    part_pixels,
)


@triton.jit
def _exponents(records, rows, listed, center_x, center_y):
    """Records, offsets dx [GROUP, 1, WIDTH] and dy [GROUP, HEIGHT, 1], log2 of unclamped alpha [GROUP, HEIGHT, WIDTH].

    Gaussians that are not listed get an alpha below the threshold.
    """
    at = records + rows[:, None, None] * RECORD
    record = load_tuple(at, 1, 5)
    record = record + (tl.load(at + 5, mask=listed[:, None, None], other=-1e4), tl.load(at + 6))
    dx = center_x[None] - record[0]
    dy = center_y[None] - record[1]
    return record, dx, dy, log2_alpha(record, dx, dy)


@triton.jit
def _add_to_slots(address, values, mask, TOGETHER: tl.constexpr):
    """Stores values, or adds them if the parts of a tile share slots."""
    if TOGETHER > 1:
        values += tl.load(address, mask=mask, other=0.0)
    tl.store(address, values, mask=mask)


@kernel
def _features_bwd_kernel(
    records,  # [nnz, RECORD]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    offsets,  # [lists + 1] int32
    entries,  # [K] int64, see ``PartSlots``
    order,  # [lists] int64 or None
    transmittances,  # [I, height, width]
    last_ids,  # [I, height, width] int32
    segment_starts,  # [lists + 1] int32, or None, like all that follows, if no list is cut
    segment_lists,  # [n_segments] int32
    segment_transmittances,  # [n_segments, WIDTH HEIGHT]
    segment_colors,  # [n_segments, n_colors + depth, WIDTH HEIGHT]
    v_parts,  # [lists, chunks, WIDTH HEIGHT, CHANNELS]
    v_render_alphas,  # [I, height, width]
    v_slots,  # [K, MOMENTS + n_colors + depth + 2 ABSGRAD], output
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_segments: "Int", n_colors: "Int",
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, SEGMENT: tl.constexpr, CHANNELS: tl.constexpr,
    WARPS: tl.constexpr, ABSGRAD: tl.constexpr, TOGETHER: tl.constexpr,
    SPLIT: tl.constexpr, EXACT: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """The pixels of each of WARPS warps are summed separately before they are added.

    A program composites TOGETHER parts of a tile one after the other; if there are several, they add to the same slots.
    """
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    LANES: tl.constexpr = min(PIXELS, 32)
    DEPTHS: tl.constexpr = depths is not None
    dtype = records.dtype.element_ty
    n_features = n_colors + DEPTHS
    slot_width = MOMENTS + n_features + 2 * ABSGRAD
    chunks = tl.cdiv(n_features, CHANNELS)
    channels = tl.arange(0, CHANNELS)[None, :]
    column = tl.arange(0, GROUP)
    place_in_part = tl.arange(0, PIXELS)[:, None]
    program = tl.program_id(0)
    for part in range(TOGETHER):
        index, start, begin, range_end, _, end_segment, is_segment = load_range(
            program, order, offsets, segment_lists, segment_starts, n_segments, SEGMENT, part * tiles
        )
        image, center_x, center_y, inside, pixel, own = part_pixels(
            first_tile + index % tiles, index // tiles, 0, width, height, tile_width, n_tiles,
            TILE, WIDTH, HEIGHT, HEIGHT, dtype, BY_COLUMN=not ABSGRAD,  # with absgrad, registers would be too few
        )  # fmt: skip
        v_part = v_parts + index.to(tl.int64) * chunks * PIXELS * CHANNELS + place_in_part * CHANNELS + channels
        transmittance = tl.load(transmittances + pixel, mask=inside, other=1.0)
        behind = -tl.load(v_render_alphas + pixel, mask=transmittance < 1.0, other=0.0)
        if backgrounds is not None:
            for chunk in range(chunks):
                channel = chunk * CHANNELS + channels
                background = tl.load(backgrounds + image * n_colors + channel, mask=channel < n_colors, other=0.0)
                v = tl.load(v_part + chunk * PIXELS * CHANNELS)
                behind += tl.reshape(tl.sum(v * background, 1), [HEIGHT, WIDTH])
        if segment_lists is not None:
            if is_segment:
                behind *= transmittance
                transmittance = tl.abs(tl.load(segment_transmittances + program.to(tl.int64) * PIXELS + own))
                for chunk in range(chunks):
                    channel = chunk * CHANNELS + channels
                    v = tl.load(v_part + chunk * PIXELS * CHANNELS)
                    color = tl.zeros([PIXELS, CHANNELS], dtype)
                    for step in range(end_segment - 1 - program):
                        later = (end_segment - 1 - step).to(tl.int64) * n_features + channel
                        address = segment_colors + later * PIXELS + place_in_part
                        color += tl.load(address, mask=channel < n_features, other=0.0)
                    behind += tl.reshape(tl.sum(v * color, 1), [HEIGHT, WIDTH])
                behind *= inverse_transmittance(transmittance, APPROX)
        last = tl.load(last_ids + pixel, mask=inside, other=0)
        end = tl.maximum(tl.minimum(tl.max(last), range_end), begin)
        list_entries = entries + start
        for done in range(0, end - begin, GROUP):
            # Back to front; before the start, repeats the first row with weight 0.
            place = end - 1 - done - column
            listed = place >= begin
            rows = load_row(list_entries, tl.maximum(place, begin)).to(tl.int64)
            out = v_slots + load_slot(list_entries, tl.maximum(place, begin)) * slot_width
            v_dot_c = tl.zeros([PIXELS, GROUP], dtype)
            for chunk in range(chunks):
                channel = chunk * CHANNELS + channels
                v = tl.load(v_part + chunk * PIXELS * CHANNELS)
                features = load_features(colors, depths, rows[:, None], channel, n_colors, dtype)
                v_dot_c += product(v, tl.trans(features), dtype, SPLIT, EXACT)
            v_weights = tl.reshape(tl.trans(v_dot_c), [GROUP, PIXELS // LANES, LANES])
            v_weights = tl.reshape(lanes_last(v_weights), [GROUP, HEIGHT, WIDTH])
            record, dx, dy, e = _exponents(records, rows, listed, center_x, center_y)
            kept = (e >= constant(LOG2_ALPHA_MIN, e)) & (place[:, None, None] < last[None])
            alphas = tl.where(kept, clamped_alpha(record, e, APPROX), 0.0)
            weights = tl.zeros([GROUP, HEIGHT, WIDTH], dtype)
            g = tl.zeros([GROUP, HEIGHT, WIDTH], dtype)
            for k in tl.static_range(GROUP):
                transmittance, behind, weight, v_alpha = absorb_vjp(
                    transmittance, take(alphas, k), behind, take(v_weights, k), APPROX
                )
                weights = put(weights, k, weight)
                e_k = take(e, k)
                g = put(g, k, tl.where(e_k <= constant(LOG2_ALPHA_MAX, e_k), v_alpha, 0.0))
            g_dy = g * dy
            sum_g = lanes_last(tl.sum(g, 1))
            sum_g_dy = lanes_last(tl.sum(g_dy, 1))
            sum_g_dy_dy = lanes_last(tl.sum(g_dy * dy, 1))
            dx_of_column = tl.reshape(dx, [GROUP, WIDTH])
            sum_g_dx = sum_g * dx_of_column
            moments = (sum_g, sum_g_dx, sum_g_dy, sum_g_dx * dx_of_column, sum_g_dy * dx_of_column, sum_g_dy_dy)
            for k in tl.static_range(MOMENTS):
                _add_to_slots(out + k, tl.sum(moments[k], 1), listed, TOGETHER)
            if ABSGRAD:
                ends = out + MOMENTS + n_features
                slope_x = tl.fma(2.0 * record[2], dx, record[3] * dy)
                slope_y = tl.fma(2.0 * record[4], dy, record[3] * dx)
                _add_to_slots(ends, tl.sum(lanes_last(tl.sum(tl.abs(g * slope_x), 1)), 1), listed, TOGETHER)
                _add_to_slots(ends + 1, tl.sum(lanes_last(tl.sum(tl.abs(g * slope_y), 1)), 1), listed, TOGETHER)
            weights = tl.permute(tl.reshape(weights, [GROUP, WARPS, PIXELS // WARPS]), (1, 0, 2))
            for chunk in range(chunks):
                channel = chunk * CHANNELS + channels
                v = tl.reshape(tl.load(v_part + chunk * PIXELS * CHANNELS), [WARPS, PIXELS // WARPS, CHANNELS])
                v_features = tl.sum(product(weights, v, dtype, SPLIT, False), 0)
                in_slot = listed[:, None] & (channel < n_features)
                _add_to_slots(out[:, None] + MOMENTS + channel, v_features, in_slot, TOGETHER)


def features_bwd(
    splats: Splats,
    backgrounds: Tensor | None,
    intersections: Intersections,
    lists: PartLists,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    columns: int,
    large: Tensor,
    shape: PartShape,
    settings: CompositingSettings,
) -> tuple[Tensor, Tensor]:
    """Does what ``walk_bwd`` does, for ``FEATURES_MIN`` channels or more."""
    grid = TileGrid.cover(len(v_render_colors), settings.width, settings.height, settings.tile_size)
    records = pack_records(splats._replace(colors=None, depths=None), settings, large)
    assigned = assign_slots(lists, intersections, records, columns)
    options = product_options(records, splats, shape)
    # Where no Gaussian was added, incoming gradients may be NaN, as those of 1 / depth.
    v_render_colors = torch.where(transmittances[..., None] < 1, v_render_colors, 0.0)
    launch(
        _features_bwd_kernel,
        assigned.n_programs,
        records=records,
        colors=splats.colors,
        depths=splats.depths,
        backgrounds=backgrounds,
        entries=assigned.entries,
        order=assigned.order,
        transmittances=transmittances,
        last_ids=last_ids,
        v_parts=_by_part(v_render_colors, shape, grid, intersections),
        v_render_alphas=v_render_alphas,
        v_slots=assigned.v_slots,
        n_colors=splats.n_colors,
        SEGMENT=shape.segment,
        CHANNELS=FEATURES_MIN,
        WARPS=options["num_warps"],
        ABSGRAD=settings.absgrad,
        TOGETHER=assigned.together,
        LOG2_ALPHA_MAX=math.log2(settings.numerics.alpha_max),
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        **list_arguments(lists),
        **part_arguments(intersections, grid, shape, settings),
        **options,
    )
    return assigned.v_slots, assigned.slot_starts


def _by_part(image: Tensor, shape: PartShape, grid: TileGrid, intersections: Intersections) -> Tensor:
    """Rearranges images [I, H, W, D] into [lists, chunks, pixels of a part, FEATURES_MIN]; zero beyond edges and D."""
    first_tile, n_tiles = intersections.first_tile, intersections.isect_offsets.numel() - 1
    height, width, channels = image.shape[1:]
    size, chunks = grid.tile_size, -(-channels // FEATURES_MIN)
    first_image = first_tile // grid.tiles_per_image
    image = image[first_image : (first_tile + n_tiles - 1) // grid.tiles_per_image + 1]
    margins = (chunks * FEATURES_MIN - channels, grid.tile_width * size - width, grid.tile_height * size - height)
    if any(margins):
        image = torch.nn.functional.pad(image, (0, margins[0], 0, margins[1], 0, margins[2]))
    first_tile -= first_image * grid.tiles_per_image
    tiles = rearrange(
        image,
        "i (tile_y part_y y) (tile_x part_x x) (chunk c) -> (part_y part_x) (i tile_y tile_x) chunk (y x) c",
        y=shape.height,
        x=shape.width,
        part_y=size // shape.height,
        part_x=size // shape.width,
        c=FEATURES_MIN,
    )
    return tiles[:, first_tile : first_tile + n_tiles].flatten(0, 1).contiguous()
