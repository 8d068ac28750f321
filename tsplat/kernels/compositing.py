"""Front-to-back compositing of a tile's Gaussians, forward and backward.

Color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3): sum of w_i c_i + T background with
w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)) and T_i the product of 1 - alpha_j before i.

One program owns one tile and walks its Gaussians one by one, tiles with the longest lists first; each thread holds
several pixels, so that a Gaussian's scalars are loaded and its sums reduced once for many pixels. `_pack_kernel` first
writes one record per row, eight values: mean x, y; the conic folded into base 2, `-a/2, -b, -c/2` times log2(e);
log2(opacity); min(opacity, alpha_max).

Backward walks back to front from the transmittance that was left, dividing 1 - alpha out again, with one recurrence in
place of a buffer per channel: with v the gradient of the pixel, rest_i = sum over j > i of w_j (v . c_j) + T_end (v .
background - v_alpha) gains w_i (v . c_i) at each step, and dL/d alpha_i = T_i (v . c_i) - rest_i / (1 - alpha_i).
(Front to back, rest would be a difference whose rounding 1 / (1 - alpha) enlarges a thousandfold.) With g = alpha dL/d
alpha the gradients of mean, conic and opacity are linear in six moments, the sums over pixels of g, g dx, g dy, g dx^2,
g dx dy, g dy^2. A program writes them and the color gradients to the pair's own slot; slots of a Gaussian are
neighbors, and `_segment_sum_kernel` sums them. No atomics anywhere: the same bits every time.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN, Numerics
from .compositing_features import MANY, features_bwd, features_fwd
from .device_math import (
    MOMENTS,
    RECORD,
    absorb,
    absorb_vjp,
    clamped_alpha,
    constant,
    dot_tuple,
    load_tuple,
    log2_alpha,
    own_tile,
    tile_pixels,
)
from .launch import approximate, guard, longest_first, programs, tile_counts, walk_options

PASS = 8
"""Channels accumulated in one forward pass over the pairs."""

HELD = 6
"""Channels whose incoming gradient a thread holds for all of its pixels in the backward pass; of more, it is read again
for each Gaussian, from a channel-major copy."""

STEP = 16
"""Gaussians between two looks at whether a tile has stopped."""

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _pack_kernel(
    means2d, conics, opacities, records, n_rows, ALPHA_MAX: tl.constexpr, ALPHA_MIN: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    c = load_tuple(conics + row * 3, 1, 3, mask)
    opacity = tl.load(opacities + row, mask=mask, other=0.0)
    # A conic that is not positive semidefinite beyond rounding, or not a number, is not a Gaussian: nothing is drawn.
    sound = (c[0] >= 0.0) & (c[2] >= 0.0) & (c[1] * c[1] <= c[0] * c[2] * 1.0001) & (opacity >= ALPHA_MIN)
    out = records + row * RECORD
    tl.store(out, mean[0], mask=mask)
    tl.store(out + 1, mean[1], mask=mask)
    tl.store(out + 2, tl.where(sound, c[0] * (-0.5 * LOG2_E), 0.0), mask=mask)
    tl.store(out + 3, tl.where(sound, c[1] * -LOG2_E, 0.0), mask=mask)
    tl.store(out + 4, tl.where(sound, c[2] * (-0.5 * LOG2_E), 0.0), mask=mask)
    tl.store(out + 5, tl.where(sound, tl.log2(tl.where(sound, opacity, 1.0)), -1e4), mask=mask)
    tl.store(out + 6, tl.where(sound, tl.minimum(opacity, constant(ALPHA_MAX, opacity)), 0.0), mask=mask)


@triton.jit
def _load_features(colors, depths, row, stride, CHANNELS: tl.constexpr, dtype: tl.constexpr):
    """A row's colors, and its depth behind them if there are depths."""
    features = ()
    for k in tl.static_range(CHANNELS):
        features = features + (tl.load(colors + row * stride + k).to(dtype),)
    if depths is not None:
        features = features + (tl.load(depths + row),)
    return features


@triton.jit
def _composite_fwd_kernel(
    records, colors, depths, backgrounds, masks, isect_offsets, flatten_ids,
    render_colors, transmittances, last_ids, tile_order,
    first_tile, width, height, tile_width, n_tiles, stride, out_stride,
    CHANNELS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    dtype = records.dtype.element_ty
    program = own_tile(tl.program_id(0), tile_order)
    tile = first_tile + program
    image, center_x, center_y, inside, pixel = tile_pixels(tile, width, height, tile_width, n_tiles, TILE, dtype)
    transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
    FEATURES: tl.constexpr = CHANNELS + (depths is not None)
    color = ()
    for _ in tl.static_range(FEATURES):
        color = color + (tl.zeros([TILE, TILE], dtype),)
    last = tl.zeros([TILE, TILE], tl.int32)
    start = tl.load(isect_offsets + program).to(tl.int64)
    count = (tl.load(isect_offsets + program + 1) - start).to(tl.int32)
    ids = flatten_ids + start
    alive = True
    if masks is not None:
        alive = tl.load(masks + tile) != 0
    done = 0
    while (done < count) & alive:
        stop = tl.minimum(done + STEP, count)
        for index in range(done, stop):
            row = tl.load(ids + index).to(tl.int64)
            record = load_tuple(records + row * RECORD, 1, 7)
            feature = _load_features(colors, depths, row, stride, CHANNELS, dtype)
            e = log2_alpha(record, center_x - record[0], center_y - record[1])
            alpha = tl.where(e >= LOG2_ALPHA_MIN, clamped_alpha(record, e, APPROX), 0.0)
            weight, added, transmittance = absorb(transmittance, alpha, TRANSMITTANCE_MIN)
            blended = ()
            for k in tl.static_range(FEATURES):
                blended = blended + (tl.where(added, tl.fma(weight, feature[k], color[k]), color[k]),)
            color = blended
            if last_ids is not None:
                last = tl.where(added, index + 1, last)
        done = stop
        alive = tl.max(transmittance) > 0.0
    transmittance = tl.abs(transmittance)
    for k in tl.static_range(FEATURES):
        value = color[k]
        if (backgrounds is not None) and (k < CHANNELS):
            value = tl.fma(transmittance, tl.load(backgrounds + image * stride + k), value)
        tl.store(render_colors + pixel * out_stride + k, value, mask=inside)
    if transmittances is not None:
        tl.store(transmittances + pixel, transmittance, mask=inside)
    if last_ids is not None:
        tl.store(last_ids + pixel, last, mask=inside)


@triton.jit
def _composite_bwd_kernel(
    records, colors, depths, backgrounds, isect_offsets, flatten_ids, slots,
    transmittances, last_ids, v_render_colors, v_render_alphas, v_slots, tile_order,
    first_tile, width, height, tile_width, n_tiles, n_colors, channel_stride, image_stride, pixel_stride,
    CHANNELS: tl.constexpr, TILE: tl.constexpr, ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """CHANNELS is the number of colors if registers hold their gradients, otherwise -1; strides of v_render_colors."""
    dtype = records.dtype.element_ty
    program = own_tile(tl.program_id(0), tile_order)
    tile = first_tile + program
    image, center_x, center_y, inside, pixel = tile_pixels(tile, width, height, tile_width, n_tiles, TILE, dtype)
    v_image = v_render_colors + image * image_stride + (pixel - image * height * width) * pixel_stride
    DEPTHS: tl.constexpr = depths is not None
    if CHANNELS >= 0:
        v_color = load_tuple(v_image, channel_stride, CHANNELS + DEPTHS, inside)
    elif DEPTHS:
        v_depth = tl.load(v_image + n_colors * channel_stride, mask=inside, other=0.0)
    rest = -tl.load(v_render_alphas + pixel, mask=inside, other=0.0)
    if backgrounds is not None:
        for channel in range(n_colors):
            background = tl.load(backgrounds + image * n_colors + channel)
            rest = tl.fma(tl.load(v_image + channel * channel_stride, mask=inside, other=0.0), background, rest)
    transmittance = tl.load(transmittances + pixel, mask=inside, other=1.0)
    rest = rest * transmittance
    last = tl.load(last_ids + pixel, mask=inside, other=0)
    end = tl.max(last)
    n_features = n_colors + DEPTHS
    slot_width = MOMENTS + n_features + 2 * ABSGRAD
    start = tl.load(isect_offsets + program).to(tl.int64)
    ids = flatten_ids + start
    slots += start
    for step in range(end):
        index = end - 1 - step
        row = tl.load(ids + index).to(tl.int64)
        out = v_slots + tl.load(slots + index).to(tl.int64) * slot_width
        record = load_tuple(records + row * RECORD, 1, 7)
        dx = center_x - record[0]
        dy = center_y - record[1]
        e = log2_alpha(record, dx, dy)
        alpha = tl.where((e >= LOG2_ALPHA_MIN) & (index < last), clamped_alpha(record, e, APPROX), 0.0)
        if CHANNELS >= 0:
            v_dot_c = dot_tuple(v_color, _load_features(colors, depths, row, CHANNELS, CHANNELS, dtype))
        else:
            v_dot_c = tl.zeros([TILE, TILE], dtype)
            for channel in range(n_colors):
                feature = tl.load(colors + row * n_colors + channel).to(dtype)
                v_dot_c = tl.fma(tl.load(v_image + channel * channel_stride, mask=inside, other=0.0), feature, v_dot_c)
            if DEPTHS:
                v_dot_c = tl.fma(v_depth, tl.load(depths + row), v_dot_c)
        transmittance, rest, weight, g = absorb_vjp(transmittance, alpha, rest, v_dot_c, APPROX)
        g = tl.where(e <= LOG2_ALPHA_MAX, g, 0.0)
        # Columns first: dx is one value per column.
        g_dy = g * dy
        sum_g = tl.sum(g, 0, keep_dims=True)
        sum_g_dy = tl.sum(g_dy, 0, keep_dims=True)
        sum_g_dx = sum_g * dx
        tl.store(out, tl.sum(sum_g))
        tl.store(out + 1, tl.sum(sum_g_dx))
        tl.store(out + 2, tl.sum(sum_g_dy))
        tl.store(out + 3, tl.sum(sum_g_dx * dx))
        tl.store(out + 4, tl.sum(sum_g_dy * dx))
        tl.store(out + 5, tl.sum(g_dy * dy))
        if CHANNELS >= 0:
            for k in tl.static_range(CHANNELS + DEPTHS):
                tl.store(out + MOMENTS + k, tl.sum(weight * v_color[k]))
        else:
            for channel in range(n_colors):
                v = tl.load(v_image + channel * channel_stride, mask=inside, other=0.0)
                tl.store(out + MOMENTS + channel, tl.sum(weight * v))
            if DEPTHS:
                tl.store(out + MOMENTS + n_colors, tl.sum(weight * v_depth))
        if ABSGRAD:
            slope_x = tl.fma(2.0 * record[2], dx, record[3] * dy)
            slope_y = tl.fma(2.0 * record[4], dy, record[3] * dx)
            tl.store(out + MOMENTS + n_features, tl.sum(tl.abs(g * slope_x)))
            tl.store(out + MOMENTS + n_features + 1, tl.sum(tl.abs(g * slope_y)))
    # Pairs behind the last that any pixel added.
    column = tl.arange(0, COLUMNS)
    for index in range(end, (tl.load(isect_offsets + program + 1) - start).to(tl.int32)):
        out = v_slots + tl.load(slots + index).to(tl.int64) * slot_width
        tl.store(out + column, tl.zeros([COLUMNS], dtype), mask=column < slot_width)


@triton.jit
def _segment_sum_kernel(
    v_slots, slot_starts, item_starts, rows, sums, n_segments, width, blocks,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """sums[rows[i]] += the slots of items item_starts[i] to item_starts[i + 1], COLUMNS columns of it.

    An item is a Gaussian in one tile row. Items are summed first and then added one after the other, so that the bits
    do not depend on how tile rows are grouped into bands.
    """
    program = tl.program_id(0)
    segment = (program // blocks).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    mask = segment < n_segments
    first = tl.load(item_starts + segment, mask=mask, other=0)
    count = tl.load(item_starts + segment + 1, mask=mask, other=0) - first
    row = tl.load(rows + segment, mask=mask, other=0).to(tl.int64)
    address = sums + row[:, None] * width + column[None, :]
    kept = mask[:, None] & (column < width)[None, :]
    total = tl.load(address, mask=kept, other=0.0)
    for item in range(0, tl.max(count)):
        here = mask & (item < count)
        start = tl.load(slot_starts + first + item, mask=here, other=0)
        end = tl.load(slot_starts + first + item + 1, mask=here, other=0)
        in_row = tl.zeros([GROUP, COLUMNS], v_slots.dtype.element_ty)
        for base in range(0, tl.max(end - start), CHUNK):
            slot = start[:, None] + base + tl.arange(0, CHUNK)[None, :]
            inside = (slot < end[:, None])[:, :, None] & (column < width)[None, None, :]
            values = tl.load(v_slots + slot[:, :, None] * width + column[None, None, :], mask=inside, other=0.0)
            in_row += tl.sum(values, 1)
        total += in_row
    tl.store(address, total, mask=kept)


@triton.jit
def _moments_kernel(
    sums, conics, opacities, v_means2d, v_conics, v_opacities, absgrad, n_rows, width, BLOCK: tl.constexpr
):
    """Gradients of mean, conic and opacity from the moments of g; see the top of this file."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    moment = load_tuple(sums + row * width, 1, MOMENTS, mask)
    c = load_tuple(conics + row * 3, 1, 3, mask)
    opacity = tl.load(opacities + row, mask=mask, other=1.0)
    tl.store(v_means2d + row * 2, c[0] * moment[1] + c[1] * moment[2], mask=mask)
    tl.store(v_means2d + row * 2 + 1, c[1] * moment[1] + c[2] * moment[2], mask=mask)
    tl.store(v_conics + row * 3, -0.5 * moment[3], mask=mask)
    tl.store(v_conics + row * 3 + 1, -moment[4], mask=mask)
    tl.store(v_conics + row * 3 + 2, -0.5 * moment[5], mask=mask)
    tl.store(v_opacities + row, tl.where(opacity > 0.0, moment[0] / opacity, 0.0), mask=mask)
    if absgrad is not None:
        for k in tl.static_range(2):
            slope = tl.load(sums + row * width + width - 2 + k, mask=mask, other=0.0)
            tl.store(absgrad + row * 2 + k, slope * LN_2, mask=mask)


def _pack(means2d: Tensor, conics: Tensor, opacities: Tensor, numerics: Numerics) -> Tensor:
    n_rows = opacities.numel()
    records = means2d.new_empty(n_rows, RECORD.value)
    if n_rows > 0:
        _pack_kernel[(programs(n_rows, 128),)](
            means2d, conics, opacities, records, n_rows,
            ALPHA_MAX=numerics.alpha_max, ALPHA_MIN=ALPHA_MIN, BLOCK=128,
        )  # fmt: skip
    return records


def composite_fwd(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    depths: Tensor | None,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    render_colors: Tensor,
    transmittances: Tensor,
    last_ids: Tensor | None,
    *,
    first_tile: int,
    tile_size: int,
    channel_chunk: int,
    numerics: Numerics,
) -> None:
    """Writes the pixels of a range of tiles.

    Args:
        means2d, conics, opacities: [R, 2], [R, 3], [R].
        colors: [R, D] of any float type, or None.
        depths: [R], the last channel, or None.
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; a tile that is false shows the background alone.
        isect_offsets: [tiles of the range + 1] int64, where each tile's pairs begin in `flatten_ids`, and their number.
        flatten_ids: [M] int32, rows, tile by tile and front to back.
        render_colors: Output [I, H, W, D, or D + 1 with depths].
        transmittances: Output [I, H, W], what is left behind all.
        last_ids: Output [I, H, W] int32, how many of its tile's pairs a pixel passed before it stopped; or None.
        first_tile: Flat index into [I, tiles] of the range's first tile.
        channel_chunk: Channels accumulated in one pass over the pairs.
    """
    height, width, features = render_colors.shape[1:]
    tile_width, n_tiles = tile_counts(width, height, tile_size)
    n_colors = 0 if colors is None else colors.shape[-1]
    pass_width = min(channel_chunk, PASS)
    with guard(means2d):
        records = _pack(means2d, conics, opacities, numerics)
        if min(features, channel_chunk) >= MANY:
            features_fwd(
                records, colors, depths, backgrounds, masks, isect_offsets, flatten_ids,
                render_colors, transmittances, last_ids, first_tile=first_tile, tile_size=tile_size,
            )  # fmt: skip
            return
        tile_order = longest_first(isect_offsets)
        for first in range(0, features, pass_width):
            end = min(first + pass_width, features)
            part = slice(first, min(end, n_colors))
            _composite_fwd_kernel[(programs(isect_offsets.numel() - 1, 1),)](
                records,
                None if colors is None else colors[:, part],
                depths if end > n_colors else None,
                None if backgrounds is None else backgrounds[:, part],
                masks,
                isect_offsets,
                flatten_ids,
                render_colors[..., first:],
                transmittances if first == 0 else None,
                last_ids if first == 0 else None,
                tile_order,
                first_tile, width, height, tile_width, n_tiles, n_colors, features,
                CHANNELS=max(part.stop - part.start, 0),
                TILE=tile_size,
                STEP=STEP,
                LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
                TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
                APPROX=approximate(means2d),
                **walk_options(means2d),
            )  # fmt: skip


def composite_bwd(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    depths: Tensor | None,
    backgrounds: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    slots: Tensor,
    slot_starts: Tensor,
    item_starts: Tensor,
    item_rows: Tensor,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    sums: Tensor,
    *,
    first_tile: int,
    tile_size: int,
    absgrad: bool,
    numerics: Numerics,
) -> None:
    """Adds what a range of tiles contributes to each row's moments and gradients of features.

    Args:
        slots, slot_starts, item_starts, item_rows: The pairs' Gaussian-major order; see `tsplat.data.GaussianMajor`.
        sums: [R, columns of `sum_columns`], added to.
        Others as for `composite_fwd`.
    """
    if flatten_ids.numel() == 0:
        return
    height, width, features = v_render_colors.shape[1:]
    tile_width, n_tiles = tile_counts(width, height, tile_size)
    n_colors = 0 if colors is None else colors.shape[-1]
    columns = sums.shape[1]
    held = features <= HELD
    with guard(means2d):
        v_slots = means2d.new_empty(flatten_ids.numel(), columns)
        records = _pack(means2d, conics, opacities, numerics)
        if features >= MANY:
            features_bwd(
                records, colors, depths, backgrounds, isect_offsets, flatten_ids, slots,
                transmittances, last_ids, v_render_colors, v_render_alphas, v_slots,
                first_tile=first_tile, tile_size=tile_size, absgrad=absgrad, numerics=numerics,
            )  # fmt: skip
        else:
            v_image = v_render_colors if held else v_render_colors.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
            _composite_bwd_kernel[(programs(isect_offsets.numel() - 1, 1),)](
                records, colors, depths, backgrounds, isect_offsets, flatten_ids, slots,
                transmittances, last_ids, v_image, v_render_alphas, v_slots, longest_first(isect_offsets),
                first_tile, width, height, tile_width, n_tiles, n_colors,
                v_image.stride(3), v_image.stride(0), v_image.stride(2),
                CHANNELS=n_colors if held else -1,
                TILE=tile_size,
                ABSGRAD=absgrad,
                COLUMNS=triton.next_power_of_2(columns),
                LOG2_ALPHA_MAX=math.log2(numerics.alpha_max),
                LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
                APPROX=approximate(means2d),
                **walk_options(means2d),
            )  # fmt: skip
        n_rows = item_rows.numel()
        block_columns = min(triton.next_power_of_2(columns), 32)
        blocks = triton.cdiv(columns, block_columns)
        _segment_sum_kernel[(programs(triton.cdiv(n_rows, 4) * blocks, 1),)](
            v_slots, slot_starts, item_starts, item_rows, sums, n_rows, columns, blocks,
            GROUP=4, CHUNK=8, COLUMNS=block_columns,
        )  # fmt: skip


def sum_columns(features: int, absgrad: bool) -> int:
    """Columns of the sums that `composite_bwd` adds to: moments, features, and two for absgrad."""
    return int(MOMENTS.value) + features + 2 * absgrad


def composite_gradients(
    sums: Tensor, conics: Tensor, opacities: Tensor, *, features: int, absgrad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of means2d, conics, opacities and features from the sums, and the absolute ones of means2d if asked."""
    n_rows = opacities.numel()
    v_means2d, v_conics, v_opacities = sums.new_empty(n_rows, 2), torch.empty_like(conics), torch.empty_like(opacities)
    v_absgrad = torch.empty_like(v_means2d) if absgrad else None
    if n_rows > 0:
        with guard(sums):
            _moments_kernel[(programs(n_rows, 128),)](
                sums, conics, opacities, v_means2d, v_conics, v_opacities, v_absgrad, n_rows, sums.shape[1], BLOCK=128
            )
    return v_means2d, v_conics, v_opacities, sums[:, MOMENTS.value : MOMENTS.value + features], v_absgrad
