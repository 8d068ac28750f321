"""Backward compositing of the parts of tiles. See ``compositing``."""

import math

import triton
import triton.language as tl
from torch import Tensor

from ...data import CompositingSettings, Intersections, PartLists, Splats, TileGrid
from ..device_math import constant, element, load_tuple, prefetch
from ..launch import (
    Int,
    PartShape,
    approximate,
    kernel,
    launch,
    walk_ahead,
)
from .lists import list_arguments, part_arguments, walk_arguments
from .pixel_math import (
    OPACITY,
    absorb_vjp,
    clamped_alpha,
    inverse_transmittance,
    load_entry,
    load_range,
    part_pixels,
)
from .records import load_record, pack_records
from .slots import assign_slots
from .warp_sums import column_of_lane, fold


@triton.jit
def _blend_vjp(
    record, pixel, transmittance, behind, last, v_color, place, FOOTPRINT: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    """One Gaussian at the pixels of a block, back to front.

    Returns:
        T and ``behind`` in front of it, its weight, g, and where pixels are in it.
    """
    FIRST: tl.constexpr = FOOTPRINT.VALUES + OPACITY
    at = FOOTPRINT.locate(record, pixel)
    e = FOOTPRINT.log2_alpha(record, at)
    kept = (e >= constant(LOG2_ALPHA_MIN, e)) & (place < last)
    alpha = tl.where(kept, clamped_alpha(e, record[FIRST - 1], APPROX, AMD), 0.0)
    v_weight = v_color[0] * record[FIRST]
    for k in tl.static_range(1, len(v_color)):
        v_weight = tl.fma(v_color[k], record[FIRST + k], v_weight)
    transmittance, behind, weight, g = absorb_vjp(transmittance, alpha, behind, v_weight, APPROX)
    return transmittance, behind, weight, tl.where(e <= constant(LOG2_ALPHA_MAX, e), g, 0.0), at


@triton.jit
def _add_features(sums, record, weight, g, at, v_color, FOOTPRINT: tl.constexpr, ABSGRAD: tl.constexpr):
    """Adds the pixels of a block to sums of weights times v, and of slopes; () before the first block."""
    added = ()
    for k in tl.static_range(len(v_color)):
        if len(sums) == 0:
            added = added + (weight * v_color[k],)
        else:
            added = added + (tl.fma(weight, v_color[k], sums[k]),)
    if ABSGRAD:
        slopes = FOOTPRINT.slopes(record, g, at)
        for k in tl.static_range(2):
            if len(sums) == 0:
                added = added + (slopes[k],)
            else:
                added = added + (sums[len(v_color) + k] + slopes[k],)
    return added


@triton.jit
def _sum_block(sums, others, at, FOOTPRINT: tl.constexpr):
    """The columns of a slot, summed over a block; see ``Footprint.BY_COLUMN``."""
    by_column = ()
    for k in tl.static_range(len(sums)):
        if k < FOOTPRINT.BY_COLUMN:
            by_column = by_column + (tl.sum(sums[k], 0, keep_dims=True),)
        else:
            by_column = by_column + (sums[k],)
    columns = FOOTPRINT.expand(by_column, at) + others
    totals = ()
    for k in tl.static_range(len(columns)):
        totals = totals + (tl.sum(columns[k]),)
    return totals


@kernel(strided=("v_render_colors",))
def _composite_bwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    backgrounds,  # [I, COLORS] or None
    offsets,  # [lists + 1] int32
    entries,  # [K] int64, see ``PartSlots``
    order,  # [lists] int64 or None
    transmittances,  # [I, height, width]
    last_ids,  # [I, height, width] int32
    chunk_starts,  # [lists + 1] int32, or None, like all that follows, if no list is cut
    chunk_lists,  # [n_chunks] int32
    chunk_transmittances,  # [n_chunks, WIDTH HEIGHT]
    chunk_colors,  # [n_chunks, FEATURES, WIDTH HEIGHT]
    v_render_colors,  # [I, height, width, FEATURES], of any strides
    v_render_alphas,  # [I, height, width]
    v_slots,  # [K, COLUMNS], output
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_chunks: "Int", channel_stride: "Int", image_stride: "Int", pixel_stride: "Int",
    FOOTPRINT: tl.constexpr, COLORS: tl.constexpr, FEATURES: tl.constexpr, RECORD_WIDTH: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    BLOCK_HEIGHT: tl.constexpr, FOLD: tl.constexpr,
    ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr,
    AHEAD: tl.constexpr, TOGETHER: tl.constexpr, LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr,
    APPROX: tl.constexpr, AMD: tl.constexpr,
):  # fmt: skip
    """If FOLD, a lane holds one pixel of each block of a part, all in one column. Otherwise a part is one block.

    A program composites TOGETHER parts of a tile one after the other; if there are several, they add to the same slots.
    """
    dtype = records.dtype.element_ty
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY + FEATURES
    BLOCKS: tl.constexpr = HEIGHT // BLOCK_HEIGHT
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    program = tl.program_id(0)
    for part in range(TOGETHER):
        index, start, begin, range_end, _, end_chunk, is_chunk = load_range(
            program, order, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK, part * tiles
        )
        tile = first_tile + index % tiles
        pixels = ()
        v_colors = ()
        transmittance = ()
        behind = ()
        last = ()
        end = 0
        for block in tl.static_range(BLOCKS):
            image, center_x, center_y, inside, pixel, own = part_pixels(
                tile, index // tiles, block, width, height, tile_width, n_tiles,
                TILE, WIDTH, HEIGHT, BLOCK_HEIGHT, dtype,
            )  # fmt: skip
            v_image = v_render_colors + image * image_stride + (pixel - image * height * width) * pixel_stride
            end_transmittance = tl.load(transmittances + pixel, mask=inside, other=1.0)
            loaded = load_tuple(v_image, tl.cast(channel_stride, tl.int64), FEATURES, inside)
            loaded_alpha = tl.load(v_render_alphas + pixel, mask=inside, other=0.0)
            # Where no Gaussian was added, incoming gradients may be NaN, as those of 1 / depth.
            covered = end_transmittance < 1.0
            end_behind = tl.where(covered, -loaded_alpha, 0.0)
            v_color = ()
            for k in tl.static_range(FEATURES):
                v_color = v_color + (tl.where(covered, loaded[k], 0.0),)
            if backgrounds is not None:
                for k in tl.static_range(COLORS):
                    end_behind = tl.fma(v_color[k], tl.load(backgrounds + image * COLORS + k), end_behind)
            if chunk_lists is not None:
                if is_chunk:
                    chunk = program.to(tl.int64)
                    end_behind *= end_transmittance
                    end_transmittance = tl.abs(tl.load(chunk_transmittances + chunk * PIXELS + own))
                    for step in range(end_chunk - 1 - program):
                        later = chunk_colors + (end_chunk - 1 - step).to(tl.int64) * (FEATURES * PIXELS) + own
                        for k in tl.static_range(FEATURES):
                            end_behind = tl.fma(v_color[k], tl.load(later + k * PIXELS), end_behind)
                    end_behind *= inverse_transmittance(end_transmittance, APPROX)
            end_last = tl.load(last_ids + pixel, mask=inside, other=0)
            pixels = pixels + ((center_x, center_y),)
            v_colors = v_colors + (v_color,)
            transmittance = transmittance + (end_transmittance,)
            behind = behind + (end_behind,)
            last = last + (end_last,)
            end = tl.maximum(end, tl.max(end_last))
        list_entries = entries + start
        first_out = v_slots
        if FOLD:
            column, is_first = column_of_lane(COLUMNS, behind[0])
            first_out += column
        end = tl.maximum(tl.minimum(end, range_end), begin)
        if begin < end:
            row, slot = load_entry(list_entries + end - 1, APPROX)
            record = load_record(records, row, RECORD_WIDTH, VALUES, APPROX)
            next_row, next_slot = load_entry(list_entries + end - 2, APPROX)
            ahead = start + end - 3  # if derived from place, that would take 64 bits as well
            for step in tl.range(end - begin, loop_unroll_factor=UNROLL):
                place = end - 1 - step
                next_record = load_record(records, next_row, RECORD_WIDTH, VALUES, APPROX)
                out = element(first_out, slot, COLUMNS, APPROX)
                slot = next_slot
                next_row, next_slot = load_entry(entries + ahead, APPROX)
                ahead -= 1
                if AHEAD > 0:
                    later_row, later_slot = load_entry(list_entries + tl.maximum(place - AHEAD, begin), APPROX)
                    prefetch(records + later_row.to(tl.int64) * RECORD_WIDTH, VALUES)
                    prefetch(v_slots + later_slot.to(tl.int64) * COLUMNS, COLUMNS)
                new_transmittance = ()
                new_behind = ()
                sums = ()
                others = ()
                for b in tl.static_range(BLOCKS):
                    t, r, weight, g, at = _blend_vjp(
                        record, pixels[b], transmittance[b], behind[b], last[b], v_colors[b], place, FOOTPRINT,
                        LOG2_ALPHA_MAX, LOG2_ALPHA_MIN, APPROX, AMD,
                    )  # fmt: skip
                    new_transmittance = new_transmittance + (t,)
                    new_behind = new_behind + (r,)
                    sums = FOOTPRINT.add_gradients(sums, g, at)
                    others = _add_features(others, record, weight, g, at, v_colors[b], FOOTPRINT, ABSGRAD)
                transmittance = new_transmittance
                behind = new_behind
                if FOLD:
                    tl.store(out, fold(FOOTPRINT.expand(sums, at) + others), mask=is_first)
                else:
                    sums = _sum_block(sums, others, at, FOOTPRINT)
                    for k in tl.static_range(COLUMNS):
                        if TOGETHER > 1:
                            tl.store(out + k, tl.load(out + k) + sums[k])
                        else:
                            tl.store(out + k, sums[k])
                record = next_record


def walk_bwd(
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
    """Computes the slots of a band part by part. Arguments as for ``composite_bwd``.

    Args:
        lists: Of ``walk_fwd``.
        columns: Columns of a slot.
        large: [nnz] bool, output, see ``pack_records``.
        shape: As for ``walk_fwd``.

    Returns:
        Slots [K, columns], and the first slot of each span [S + 1].
    """
    grid = TileGrid.cover(len(v_render_colors), settings.width, settings.height, settings.tile_size)
    records = pack_records(splats, settings, large)
    assigned = assign_slots(lists, intersections, records, columns)
    folds = approximate(records) and shape.width * shape.height % 32 == 0
    launch(
        _composite_bwd_kernel,
        assigned.n_programs,
        records=records,
        backgrounds=backgrounds,
        entries=assigned.entries,
        order=assigned.order,
        transmittances=transmittances,
        last_ids=last_ids,
        v_render_colors=v_render_colors,
        v_render_alphas=v_render_alphas,
        v_slots=assigned.v_slots,
        channel_stride=v_render_colors.stride(3),
        image_stride=v_render_colors.stride(0),
        pixel_stride=v_render_colors.stride(2),
        COLORS=splats.n_colors,
        FEATURES=splats.n_features,
        RECORD_WIDTH=records.shape[1],
        BLOCK_HEIGHT=32 // shape.width if folds else shape.height,
        FOLD=folds,
        ABSGRAD=settings.absgrad,
        COLUMNS=columns,
        AHEAD=walk_ahead(records),
        TOGETHER=assigned.together,
        LOG2_ALPHA_MAX=math.log2(settings.numerics.alpha_max),
        **list_arguments(lists),
        **part_arguments(intersections, grid, shape, settings),
        **walk_arguments(records, shape, settings),
    )
    return assigned.v_slots, assigned.slot_starts
