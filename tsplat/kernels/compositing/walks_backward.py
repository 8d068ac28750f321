"""The backward walk over the lists of parts, for fewer than 16 channels; see ``walks_forward``."""

from typing import Any

import triton.language as tl
from torch import Tensor

from ...data import Splats
from ..device_math import element, load_tuple, prefetch, where
from ..launch import Int, approximate, kernel, walk_ahead
from .distortion import begin_distortion, distortion_of_chunks
from .pixel_sums import add_features, column_of_lane, fold, sum_block
from .rays import add_pixel_gradients, no_gradients, store_ray_gradients
from .records import load_record
from .slots import PartSlots
from .walk_steps import OPACITY, Band, blend_vjp, inverse_transmittance, load_entry, load_range, part_pixels


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
    chunk_colors,  # [n_chunks, FEATURES + DISTORTION, WIDTH HEIGHT]
    totals,  # [I, height, width], sums of the last feature, if DISTORTION
    v_render_colors,  # [I, height, width, FEATURES + DISTORTION], of any strides
    v_render_alphas,  # [I, height, width], or None for zero
    v_slots,  # [slots, COLUMNS], output
    splits,  # [layers + 1, lists] int32, see ``Layers``; None if there is one layer
    carried,  # [I, height, width, 2 + DISTORTION], read unless the layer is the last, output; or None
    rays,  # [I, 6 or 3, height, width], see ``Rays``, or None
    origins,  # [I, 3] or None
    v_rays,  # [I, 6, height, width], output, or None
    chunk_v_rays,  # [n_chunks, 6, WIDTH HEIGHT], output, or None
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    n_chunks: "Int", layer: "Int", first_slot: "Int", channel_stride: "Int", image_stride: "Int", pixel_stride: "Int",
    FOOTPRINT: tl.constexpr, COLORS: tl.constexpr, FEATURES: tl.constexpr, RECORD_WIDTH: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    BLOCK_HEIGHT: tl.constexpr, FOLD: tl.constexpr,
    ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr,
    AHEAD: tl.constexpr, TOGETHER: tl.constexpr, LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr,
    APPROX: tl.constexpr, AMD: tl.constexpr, DISTORTION: tl.constexpr, CONTINUED: tl.constexpr,
):  # fmt: skip
    """If FOLD, a lane holds one pixel of each block of a part, all in one column. Otherwise a part is one block.

    A program composites TOGETHER parts of a tile one after the other; if there are several, they add to the same slots.
    Walks a layer, from where the layer behind it has ended if CONTINUED.
    """
    dtype = records.dtype.element_ty
    VALUES: tl.constexpr = FOOTPRINT.VALUES + OPACITY + FEATURES
    BLOCKS: tl.constexpr = HEIGHT // BLOCK_HEIGHT
    PIXELS: tl.constexpr = WIDTH * HEIGHT
    STATE: tl.constexpr = 2 + DISTORTION
    if splits is not None:
        v_slots += tl.cast(first_slot, tl.int64) * -COLUMNS
    program = tl.program_id(0)
    grid = (tiles, first_tile, width, height, tile_width, n_tiles)
    for part in range(TOGETHER):
        index, start, begin, range_end, first_chunk, end_chunk, is_chunk = load_range(
            program, order, offsets, chunk_lists, chunk_starts, n_chunks, CHUNK, part * tiles
        )
        if splits is not None:
            n_lists = tiles * ((TILE // WIDTH) * (TILE // HEIGHT))
            split = splits + layer.to(tl.int64) * n_lists + index
            begin, range_end = tl.load(split), tl.load(split + n_lists)
        pixels = ()
        v_pixels = ()
        v_colors = ()
        transmittance = ()
        behind = ()
        states = ()
        last = ()
        end = 0
        for block in tl.static_range(BLOCKS):
            image, center, inside, pixel, own = part_pixels(
                index, block, grid, rays, origins, TILE, WIDTH, HEIGHT, BLOCK_HEIGHT, dtype
            )
            v_image = v_render_colors + image * image_stride + (pixel - image * height * width) * pixel_stride
            end_transmittance = tl.load(transmittances + pixel, mask=inside, other=1.0)
            loaded = load_tuple(v_image, tl.cast(channel_stride, tl.int64), FEATURES + DISTORTION, inside)
            end_behind = tl.zeros_like(end_transmittance)
            # Where no Gaussian was added, incoming gradients may be NaN, as those of 1 / depth.
            covered = end_transmittance < 1.0
            if v_render_alphas is not None:
                loaded_alpha = tl.load(v_render_alphas + pixel, mask=inside, other=0.0)
                end_behind = tl.where(covered, -loaded_alpha, 0.0)
            v_color = where(covered, loaded[:FEATURES])
            if DISTORTION:
                v_distortion = tl.where(covered, loaded[FEATURES], 0.0)
                state = begin_distortion(totals, pixel, inside, v_distortion, end_transmittance)
            if backgrounds is not None:
                for k in tl.static_range(COLORS):
                    end_behind = tl.fma(v_color[k], tl.load(backgrounds + image * COLORS + k), end_behind)
            if chunk_lists is not None:
                if is_chunk:
                    chunk = program.to(tl.int64)
                    end_behind *= end_transmittance
                    end_transmittance = tl.abs(tl.load(chunk_transmittances + chunk * PIXELS + own))
                    STRIDE: tl.constexpr = (FEATURES + DISTORTION) * PIXELS
                    if DISTORTION:
                        z_behind = tl.zeros_like(end_behind)
                        distortion_behind = tl.zeros_like(end_behind)
                    for step in range(end_chunk - 1 - program):
                        later = chunk_colors + (end_chunk - 1 - step).to(tl.int64) * STRIDE + own
                        for k in tl.static_range(FEATURES):
                            end_behind = tl.fma(v_color[k], tl.load(later + k * PIXELS), end_behind)
                        if DISTORTION:
                            z_behind += tl.load(later + (FEATURES - 1) * PIXELS)
                            distortion_behind += tl.load(later + FEATURES * PIXELS)
                    if DISTORTION:
                        state, added = distortion_of_chunks(state, z_behind, distortion_behind, end_transmittance)
                        end_behind += added
                    end_behind *= inverse_transmittance(end_transmittance, APPROX)
            if CONTINUED:
                end_transmittance = tl.load(carried + pixel * STATE, mask=inside, other=1.0)
                end_behind = tl.load(carried + pixel * STATE + 1, mask=inside, other=0.0)
                if DISTORTION:
                    state = state[:2] + (tl.load(carried + pixel * STATE + 2, mask=inside, other=0.0),)
            end_last = tl.load(last_ids + pixel, mask=inside, other=0)
            pixels = pixels + (center,)
            if v_rays is not None:
                v_pixels = v_pixels + (no_gradients(end_transmittance),)
            v_colors = v_colors + (v_color,)
            if DISTORTION:
                states = states + (state,)
            transmittance = transmittance + (end_transmittance,)
            behind = behind + (end_behind,)
            last = last + (end_last,)
            end = tl.maximum(end, tl.max(end_last))
        list_entries = entries + start
        first_out = v_slots
        if FOLD:
            column, is_first = column_of_lane(COLUMNS)
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
                new_states = ()
                new_v_pixels = ()
                sums = ()
                others = ()
                for b in tl.static_range(BLOCKS):
                    own_state = states[b] if DISTORTION else ()
                    t, r, weight, g, at, own_v, own_state = blend_vjp(
                        record, pixels[b], transmittance[b], behind[b], last[b], v_colors[b], own_state, place,
                        FOOTPRINT, LOG2_ALPHA_MAX, LOG2_ALPHA_MIN, APPROX, AMD,
                    )  # fmt: skip
                    new_transmittance = new_transmittance + (t,)
                    new_behind = new_behind + (r,)
                    if DISTORTION:
                        new_states = new_states + (own_state,)
                    sums = FOOTPRINT.add_gradients(sums, g, at)
                    others = add_features(others, record, weight, g, at, own_v, FOOTPRINT, ABSGRAD)
                    if v_rays is not None:
                        added = add_pixel_gradients(v_pixels[b], record, g, at, FOOTPRINT, GROUPED=False)
                        new_v_pixels = new_v_pixels + (added,)
                transmittance, behind, states, v_pixels = new_transmittance, new_behind, new_states, new_v_pixels
                if FOLD:
                    tl.store(out, fold(FOOTPRINT.expand(sums, at) + others), mask=is_first)
                else:
                    sums = sum_block(sums, others, at, FOOTPRINT)
                    for k in tl.static_range(COLUMNS):
                        if TOGETHER > 1:
                            tl.store(out + k, tl.load(out + k) + sums[k])
                        else:
                            tl.store(out + k, sums[k])
                record = next_record
        if splits is not None:
            if layer > 0:
                for block in tl.static_range(BLOCKS):
                    _image, _center, inside, pixel, _own = part_pixels(
                        index, block, grid, None, None, TILE, WIDTH, HEIGHT, BLOCK_HEIGHT, dtype
                    )
                    tl.store(carried + pixel * STATE, transmittance[block], mask=inside)
                    tl.store(carried + pixel * STATE + 1, behind[block], mask=inside)
                    if DISTORTION:
                        tl.store(carried + pixel * STATE + 2, states[block][2], mask=inside)
        if v_rays is not None:
            for block in tl.static_range(BLOCKS):
                image, _center, inside, pixel, own = part_pixels(
                    index, block, grid, None, None, TILE, WIDTH, HEIGHT, BLOCK_HEIGHT, dtype
                )
                store_ray_gradients(
                    v_rays, chunk_v_rays, v_pixels[block], program, image, pixel, own, inside, is_chunk,
                    first_chunk == end_chunk, grid, PIXELS,
                )  # fmt: skip


def walk_bwd(
    splats: Splats,
    records: Tensor,
    v_render_colors: Tensor,
    slots: PartSlots,
    layer: int,
    band: Band,
    arguments: dict[str, Any],
) -> None:
    """Computes the slots of a band part by part.

    Args:
        splats, v_render_colors: As for ``composite_bwd``.
        records: With all channels.
        slots, layer: Of which layer; 0 if there is one.
        arguments: As for ``walk_fwd``.
    """
    shape, settings, layers = band.shape, band.settings, slots.layers
    folds = approximate(records) and shape.width * shape.height % 32 == 0
    is_last = layers is None or layer == layers.n - 1
    if slots.together > 1 and not is_last:
        slots.v_slots.zero_()
    _composite_bwd_kernel.launch(
        slots.n_programs,
        **arguments,
        splits=None if layers is None else layers.splits,
        carried=None if layers is None else layers.carried,
        layer=layer,
        first_slot=0 if layers is None else layer * layers.size,
        v_render_colors=v_render_colors,
        channel_stride=v_render_colors.stride(3),
        image_stride=v_render_colors.stride(0),
        pixel_stride=v_render_colors.stride(2),
        **Band.pixels_of(settings, shape),
        **Band.walk_arguments(settings, shape, records, normals=True, hits=True),
        COLORS=splats.n_colors,
        FEATURES=splats.n_features,
        COLUMNS=slots.v_slots.shape[1],
        BLOCK_HEIGHT=32 // shape.width if folds else shape.height,
        FOLD=folds,
        AHEAD=walk_ahead(records),
        DISTORTION=settings.distortion,
        CONTINUED=not is_last,
    )
