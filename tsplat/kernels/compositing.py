"""Front-to-back compositing of the Gaussians of a tile, forward and backward.

Color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3): sum of w_i c_i + T background, with
w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)) and T_i the product of 1 - alpha_j over j < i.

One program, of one warp, renders one part of a tile; parts with the longest lists come first. It walks the part's list
(see ``compositing_parts``) one Gaussian after the other, and loads each record while it blends the one before.

The backward pass walks back to front, starting from the remaining transmittance and dividing 1 - alpha out again. One
recurrence replaces a buffer per channel: with v the gradient of the pixel, rest_i = sum over j > i of w_j (v . c_j) +
T_end (v . background - v_alpha) gains w_i (v . c_i) at each step, and dL/d alpha_i = T_i (v . c_i) - rest_i /
(1 - alpha_i). (Front to back, rest would be a difference, and 1 / (1 - alpha) amplifies its rounding a thousandfold.)
With g = alpha dL/d alpha, the gradients of mean, conic and opacity are linear in six moments: the sums over pixels of
g, g dx, g dy, g dx^2, g dx dy and g dy^2. A program writes them and the color gradients to the slot of the list's
entry, and `compositing_sums` adds the slots of a Gaussian. There are no atomics, so results are bit-reproducible.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN
from ..data import CompositingSettings, Intersections, PartLists, RenderBuffers, Splats, TileGrid
from .compositing_features import FEATURES_MIN, features_bwd, features_fwd
from .compositing_parts import list_parts, part_slots
from .compositing_records import load_record, pack_records
from .compositing_sums import sum_slots
from .device_math import load_tuple
from .launch import Int, approximate, kernel, launch, longest_first, part_size, programs, walk_options, walk_unroll
from .tile_math import (
    GEOMETRY,
    MOMENTS,
    absorb,
    absorb_vjp,
    clamped_alpha,
    load_list,
    log2_alpha,
    part_pixels,
    zero_slots,
)
from .warp_sums import column_of_lane, fold

PASS = 8
"""Channels accumulated in one forward pass over the lists."""

STEP = 16
"""Gaussians between two checks whether all pixels of a part have stopped."""


@kernel(strided=("backgrounds", "render_colors"))
def _composite_fwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    backgrounds,  # [I, stride], from the first channel of this pass on; or None
    masks,  # [I, n_tiles] bool or None
    offsets,  # [lists + 1] int64
    ids,  # [K] int32
    order,  # [lists] int64 or None
    render_colors,  # [I, height, width, stride], from the first channel of this pass on, output
    transmittances,  # [I, height, width], output, or None
    last_ids,  # [I, height, width] int32, output, or None
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    background_stride: "Int", stride: "Int",
    COLORS: tl.constexpr, FEATURES: tl.constexpr, RECORD_WIDTH: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    dtype = records.dtype.element_ty
    VALUES: tl.constexpr = GEOMETRY + FEATURES
    program, start, count = load_list(tl.program_id(0), order, offsets)
    tile = first_tile + program % tiles
    image, center_x, center_y, inside, pixel = part_pixels(
        tile, program // tiles, 0, width, height, tile_width, n_tiles, TILE, WIDTH, HEIGHT, WIDTH, HEIGHT, dtype
    )
    transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
    color = ()
    for _ in tl.static_range(FEATURES):
        color = color + (tl.zeros([HEIGHT, WIDTH], dtype),)
    last = tl.zeros([HEIGHT, WIDTH], tl.int32)
    alive = count > 0
    if masks is not None:
        alive = alive & (tl.load(masks + tile) != 0)
    ids += start
    if alive:
        record = load_record(records, tl.load(ids), RECORD_WIDTH, VALUES, APPROX)
        next_row = tl.load(ids + tl.minimum(1, count - 1))
        done = 0
        while (done < count) & alive:
            stop = tl.minimum(done + STEP, count)
            for index in tl.range(done, stop, loop_unroll_factor=UNROLL):
                next_record = load_record(records, next_row, RECORD_WIDTH, VALUES, APPROX)
                next_row = tl.load(ids + tl.minimum(index + 2, count - 1))
                e = log2_alpha(record, center_x - record[0], center_y - record[1])
                alpha = tl.where(e >= LOG2_ALPHA_MIN, clamped_alpha(record, e, APPROX), 0.0)
                weight, added, transmittance = absorb(transmittance, alpha, TRANSMITTANCE_MIN)
                blended = ()
                for k in tl.static_range(FEATURES):
                    mixed = tl.fma(weight, record[GEOMETRY + k], color[k])
                    blended = blended + (tl.where(added, mixed, color[k]),)
                color = blended
                if last_ids is not None:
                    last = tl.where(added, index + 1, last)
                record = next_record
            done = stop
            alive = tl.max(transmittance) > 0.0
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


@triton.jit
def _blend_vjp(
    record, center_x, center_y, transmittance, rest, last, v_color, index,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """One Gaussian at the pixels of a block, back to front.

    Returns:
        T and rest in front of it, its weight, g, and dx and dy.
    """
    dx = center_x - record[0]
    dy = center_y - record[1]
    e = log2_alpha(record, dx, dy)
    alpha = tl.where((e >= LOG2_ALPHA_MIN) & (index < last), clamped_alpha(record, e, APPROX), 0.0)
    v_weight = v_color[0] * record[GEOMETRY]
    for k in tl.static_range(1, len(v_color)):
        v_weight = tl.fma(v_color[k], record[GEOMETRY + k], v_weight)
    transmittance, rest, weight, g = absorb_vjp(transmittance, alpha, rest, v_weight, APPROX)
    return transmittance, rest, weight, tl.where(e <= LOG2_ALPHA_MAX, g, 0.0), dx, dy


@triton.jit
def _slopes(record, g, dx, dy):
    """Absolute gradients of the mean, times log2(e)."""
    slope_x = tl.fma(2.0 * record[2], dx, record[3] * dy)
    slope_y = tl.fma(2.0 * record[4], dy, record[3] * dx)
    return tl.abs(g * slope_x), tl.abs(g * slope_y)


@triton.jit
def _add_product(sums, k: tl.constexpr, a, b):
    """The k-th sum plus a b; a b if there are no sums yet."""
    if len(sums) == 0:
        return a * b
    else:
        return tl.fma(a, b, sums[k])


@triton.jit
def _add(sums, k: tl.constexpr, a):
    if len(sums) == 0:
        return a
    else:
        return sums[k] + a


@triton.jit
def _add_block(sums, record, weight, g, dx, dy, v_color, ABSGRAD: tl.constexpr):
    """Adds the pixels of a block, one in each lane, to the columns of a slot. ``sums`` is () for the first block."""
    g_dx = g * dx
    g_dy = g * dy
    added = (
        _add(sums, 0, g),
        _add(sums, 1, g_dx),
        _add(sums, 2, g_dy),
        _add_product(sums, 3, g_dx, dx),
        _add_product(sums, 4, g_dx, dy),
        _add_product(sums, 5, g_dy, dy),
    )
    for k in tl.static_range(len(v_color)):
        added = added + (_add_product(sums, MOMENTS + k, weight, v_color[k]),)
    if ABSGRAD:
        slope_x, slope_y = _slopes(record, g, dx, dy)
        added = added + (_add(sums, MOMENTS + len(v_color), slope_x),)
        added = added + (_add(sums, MOMENTS + len(v_color) + 1, slope_y),)
    return added


@triton.jit
def _sum_block(record, weight, g, dx, dy, v_color, ABSGRAD: tl.constexpr):
    """The columns of a slot, summed over a block. Columns of pixels come first, as dx is one value per column."""
    g_dy = g * dy
    sum_g = tl.sum(g, 0, keep_dims=True)
    sum_g_dx = sum_g * dx
    sum_g_dy = tl.sum(g_dy, 0, keep_dims=True)
    moments = (sum_g, sum_g_dx, sum_g_dy, sum_g_dx * dx, sum_g_dy * dx, g_dy * dy)
    sums = ()
    for k in tl.static_range(MOMENTS):
        sums = sums + (tl.sum(moments[k]),)
    for k in tl.static_range(len(v_color)):
        sums = sums + (tl.sum(weight * v_color[k]),)
    if ABSGRAD:
        slope_x, slope_y = _slopes(record, g, dx, dy)
        sums = sums + (tl.sum(slope_x), tl.sum(slope_y))
    return sums


@kernel(strided=("v_render_colors",))
def _composite_bwd_kernel(
    records,  # [nnz, RECORD_WIDTH]
    backgrounds,  # [I, COLORS] or None
    offsets,  # [lists + 1] int64
    ids,  # [K] int32
    slots,  # [K] integers
    order,  # [lists] int64 or None
    transmittances,  # [I, height, width]
    last_ids,  # [I, height, width] int32
    v_render_colors,  # [I, height, width, FEATURES], of any strides
    v_render_alphas,  # [I, height, width]
    v_slots,  # [K, COLUMNS], output
    tiles: "Int", first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int",
    channel_stride: "Int", image_stride: "Int", pixel_stride: "Int",
    COLORS: tl.constexpr, FEATURES: tl.constexpr, RECORD_WIDTH: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, FOLD: tl.constexpr,
    ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, UNROLL: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """If FOLD, a lane holds one pixel of each block of a part, otherwise a part is one block."""
    dtype = records.dtype.element_ty
    VALUES: tl.constexpr = GEOMETRY + FEATURES
    BLOCKS: tl.constexpr = WIDTH // BLOCK_WIDTH * (HEIGHT // BLOCK_HEIGHT)
    program, start, count = load_list(tl.program_id(0), order, offsets)
    tile = first_tile + program % tiles
    x = ()
    y = ()
    v_colors = ()
    transmittance = ()
    rest = ()
    last = ()
    end = 0
    for block in tl.static_range(BLOCKS):
        image, center_x, center_y, inside, pixel = part_pixels(
            tile, program // tiles, block, width, height, tile_width, n_tiles,
            TILE, WIDTH, HEIGHT, BLOCK_WIDTH, BLOCK_HEIGHT, dtype,
        )  # fmt: skip
        v_image = v_render_colors + image * image_stride + (pixel - image * height * width) * pixel_stride
        v_color = load_tuple(v_image, channel_stride, FEATURES, inside)
        behind = -tl.load(v_render_alphas + pixel, mask=inside, other=0.0)
        if backgrounds is not None:
            for k in tl.static_range(COLORS):
                behind = tl.fma(v_color[k], tl.load(backgrounds + image * COLORS + k), behind)
        end_transmittance = tl.load(transmittances + pixel, mask=inside, other=1.0)
        end_last = tl.load(last_ids + pixel, mask=inside, other=0)
        x = x + (center_x,)
        y = y + (center_y,)
        v_colors = v_colors + (v_color,)
        transmittance = transmittance + (end_transmittance,)
        rest = rest + (behind * end_transmittance,)
        last = last + (end_last,)
        end = tl.maximum(end, tl.max(end_last))
    ids += start
    slots += start
    if FOLD:
        column, is_first = column_of_lane(COLUMNS, rest[0])
    if end > 0:
        record = load_record(records, tl.load(ids + end - 1), RECORD_WIDTH, VALUES, APPROX)
        next_row = tl.load(ids + tl.maximum(end - 2, 0))
        for step in tl.range(end, loop_unroll_factor=UNROLL):
            index = end - 1 - step
            next_record = load_record(records, next_row, RECORD_WIDTH, VALUES, APPROX)
            next_row = tl.load(ids + tl.maximum(index - 2, 0))
            out = v_slots + tl.load(slots + index).to(tl.int64) * COLUMNS
            new_transmittance = ()
            new_rest = ()
            sums = ()
            for b in tl.static_range(BLOCKS):
                t, r, weight, g, dx, dy = _blend_vjp(
                    record, x[b], y[b], transmittance[b], rest[b], last[b], v_colors[b], index,
                    LOG2_ALPHA_MAX, LOG2_ALPHA_MIN, APPROX,
                )  # fmt: skip
                new_transmittance = new_transmittance + (t,)
                new_rest = new_rest + (r,)
                if FOLD:
                    sums = _add_block(sums, record, weight, g, dx, dy, v_colors[b], ABSGRAD)
                else:
                    sums = _sum_block(record, weight, g, dx, dy, v_colors[b], ABSGRAD)
            transmittance = new_transmittance
            rest = new_rest
            if FOLD:
                tl.store(out + column, fold(sums), mask=is_first)
            else:
                for k in tl.static_range(COLUMNS):
                    tl.store(out + k, sums[k])
            record = next_record
    zero_slots(v_slots, slots, end, count, COLUMNS, PADDED)


def _part_size(splats: Splats, grid: TileGrid) -> tuple[int, int]:
    """Width and height of the parts of a tile; a whole tile if the backward pass needs matrix products."""
    if splats.n_features >= FEATURES_MIN:
        return grid.tile_size, grid.tile_size
    return part_size(splats.means2d, grid.tile_size, grid.n_tiles, splats.n_features)


def composite_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    settings: CompositingSettings,
) -> PartLists | None:
    """Writes the pixels of a band of tiles.

    Args:
        splats: With gathered colors [nnz, D].
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; a tile that is false shows the background.
        intersections: Of the band.
        buffers: Output.
        settings: See :class:`CompositingSettings`.

    Returns:
        Lists that :func:`composite_bwd` would make again, or None.
    """
    n_features, n_colors = buffers.colors.shape[-1], splats.n_colors
    grid = TileGrid.cover(len(buffers.colors), settings.width, settings.height, settings.tile_size)
    if min(n_features, settings.channel_chunk) >= FEATURES_MIN:
        features_fwd(splats, backgrounds, masks, intersections, buffers, grid, settings)
        return None
    pass_width = min(settings.channel_chunk, PASS)
    part_width, part_height = _part_size(splats, grid)
    lists = None
    for first in range(0, n_features, pass_width):
        end = min(first + pass_width, n_features)
        part = slice(first, min(end, n_colors))
        records = pack_records(
            splats._replace(
                colors=None if splats.colors is None else splats.colors[:, part],
                depths=splats.depths if end > n_colors else None,
            ),
            settings,
        )
        if lists is None:
            lists = list_parts(records, intersections, grid, (part_width, part_height))
            order = longest_first(lists.offsets)
        launch(
            _composite_fwd_kernel,
            programs(lists.offsets.numel() - 1, 1),
            records=records,
            backgrounds=None if backgrounds is None else backgrounds[:, part],
            masks=masks,
            offsets=lists.offsets,
            ids=lists.ids,
            order=order,
            render_colors=buffers.colors[..., first:],
            transmittances=buffers.transmittances if first == 0 else None,
            last_ids=buffers.last_ids if first == 0 else None,
            tiles=intersections.isect_offsets.numel() - 1,
            first_tile=intersections.first_tile,
            width=settings.width,
            height=settings.height,
            tile_width=grid.tile_width,
            n_tiles=grid.tiles_per_image,
            background_stride=n_colors,
            stride=n_features,
            COLORS=max(part.stop - part.start, 0),
            FEATURES=end - first,
            RECORD_WIDTH=records.shape[1],
            TILE=settings.tile_size,
            WIDTH=part_width,
            HEIGHT=part_height,
            STEP=STEP,
            UNROLL=walk_unroll(records),
            LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
            TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
            APPROX=approximate(records),
            **walk_options(records),
        )
    return lists


def composite_bwd(
    splats: Splats,
    backgrounds: Tensor | None,
    intersections: Intersections,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    sums: Tensor,
    settings: CompositingSettings,
    lists: PartLists | None = None,
) -> None:
    """Adds the contribution of a band of tiles to the moments and feature gradients of each row.

    Args:
        splats, backgrounds, intersections, settings: As for :func:`composite_fwd`; ``gaussian_major`` is required.
        transmittances, last_ids: [I, H, W] of :func:`composite_fwd`.
        v_render_colors, v_render_alphas: [I, H, W, D], [I, H, W].
        sums: [nnz, columns of ``sum_columns``], added to.
        lists: What :func:`composite_fwd` returned for the band; None to make them again.
    """
    order = intersections.gaussian_major
    assert order is not None
    if intersections.flatten_ids.numel() == 0:
        return
    grid = TileGrid.cover(len(v_render_colors), settings.width, settings.height, settings.tile_size)
    n_features = v_render_colors.shape[-1]
    large = torch.empty_like(splats.opacities, dtype=torch.bool)
    if n_features >= FEATURES_MIN:
        v_slots = features_bwd(
            splats,
            backgrounds,
            intersections,
            transmittances,
            last_ids,
            v_render_colors,
            v_render_alphas,
            sums.shape[1],
            large,
            settings,
        )
        sum_slots(v_slots, order, large, sums)
        return
    records = pack_records(splats, settings, large)
    part_width, part_height = _part_size(splats, grid)
    lists = lists or list_parts(records, intersections, grid, (part_width, part_height))
    slots, slot_starts = part_slots(lists, order)
    v_slots = records.new_empty(lists.ids.numel(), sums.shape[1])
    fold_sums = approximate(records) and part_width % 8 == 0 and part_height % 4 == 0
    launch(
        _composite_bwd_kernel,
        programs(lists.offsets.numel() - 1, 1),
        records=records,
        backgrounds=backgrounds,
        offsets=lists.offsets,
        ids=lists.ids,
        slots=slots,
        order=longest_first(lists.offsets),
        transmittances=transmittances,
        last_ids=last_ids,
        v_render_colors=v_render_colors,
        v_render_alphas=v_render_alphas,
        v_slots=v_slots,
        tiles=intersections.isect_offsets.numel() - 1,
        first_tile=intersections.first_tile,
        width=settings.width,
        height=settings.height,
        tile_width=grid.tile_width,
        n_tiles=grid.tiles_per_image,
        channel_stride=v_render_colors.stride(3),
        image_stride=v_render_colors.stride(0),
        pixel_stride=v_render_colors.stride(2),
        COLORS=splats.n_colors,
        FEATURES=n_features,
        RECORD_WIDTH=records.shape[1],
        TILE=settings.tile_size,
        WIDTH=part_width,
        HEIGHT=part_height,
        BLOCK_WIDTH=8 if fold_sums else part_width,
        BLOCK_HEIGHT=4 if fold_sums else part_height,
        FOLD=fold_sums,
        ABSGRAD=settings.absgrad,
        COLUMNS=sums.shape[1],
        PADDED=triton.next_power_of_2(sums.shape[1]),
        UNROLL=walk_unroll(records),
        LOG2_ALPHA_MAX=math.log2(settings.numerics.alpha_max),
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        APPROX=approximate(records),
        **walk_options(records),
    )
    sum_slots(v_slots, order._replace(slot_starts=slot_starts), large, sums)
