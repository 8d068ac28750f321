"""Front-to-back compositing of the Gaussians of a tile, forward and backward.

Color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3): sum of w_i c_i + T background, with
w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)) and T_i the product of 1 - alpha_j over j < i.

One program renders one tile; tiles with the most intersections come first. It walks the tile's Gaussians one by one.
Each thread holds several pixels, so that the scalars of a Gaussian are loaded and its sums are reduced once for many
pixels. Before, `_pack_kernel` writes a record of eight values per row, see ``RECORD``.

The backward pass walks back to front, starting from the remaining transmittance and dividing 1 - alpha out again. One
recurrence replaces a buffer per channel: with v the gradient of the pixel, rest_i = sum over j > i of w_j (v . c_j) +
T_end (v . background - v_alpha) gains w_i (v . c_i) at each step, and dL/d alpha_i = T_i (v . c_i) - rest_i /
(1 - alpha_i). (Front to back, rest would be a difference, and 1 / (1 - alpha) amplifies its rounding a thousandfold.)
With g = alpha dL/d alpha, the gradients of mean, conic and opacity are linear in six moments: the sums over pixels of
g, g dx, g dy, g dx^2, g dx dy and g dy^2. A program writes them and the color gradients to the slot of the
intersection, and `compositing_sums` adds the slots of a Gaussian. There are no atomics, so results are
bit-reproducible.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN, Numerics
from ..data import CompositingSettings, Intersections, RenderBuffers, Splats, TileGrid
from .compositing_features import FEATURES_MIN, features_bwd, features_fwd
from .compositing_sums import sum_slots
from .device_math import constant, dot_tuple, load_tuple
from .launch import (
    Int,
    approximate,
    kernel,
    launch,
    launch_elementwise,
    longest_first,
    part_rows,
    programs,
    walk_options,
)
from .tile_math import (
    MOMENTS,
    RECORD,
    absorb,
    absorb_vjp,
    clamped_alpha,
    load_list,
    log2_alpha,
    tile_pixels,
    zero_slots,
)

PASS = 8
"""Channels accumulated in one forward pass over the intersections."""

HELD = 6
"""Channels whose incoming gradient a thread holds in registers in the backward pass. More channels are read again for
each Gaussian, from a channel-major copy."""

STEP = 16
"""Gaussians between two checks whether all pixels of a tile have stopped."""

BLOCK = 128

LOG2_E = tl.constexpr(math.log2(math.e))


@kernel
def _pack_kernel(
    means2d,  # [nnz, 2]
    conics,  # [nnz, 3]
    opacities,  # [nnz]
    records,  # [nnz, RECORD], output
    n_rows: "Int",
    ALPHA_MAX: tl.constexpr, ALPHA_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    c = load_tuple(conics + row * 3, 1, 3, mask)
    opacity = tl.load(opacities + row, mask=mask, other=0.0)
    # Conics that are NaN, or not positive semidefinite beyond rounding, are not rendered.
    valid = (c[0] >= 0.0) & (c[2] >= 0.0) & (c[1] * c[1] <= c[0] * c[2] * 1.0001) & (opacity >= ALPHA_MIN)
    out = records + row * RECORD
    tl.store(out, mean[0], mask=mask)
    tl.store(out + 1, mean[1], mask=mask)
    tl.store(out + 2, tl.where(valid, c[0] * (-0.5 * LOG2_E), 0.0), mask=mask)
    tl.store(out + 3, tl.where(valid, c[1] * -LOG2_E, 0.0), mask=mask)
    tl.store(out + 4, tl.where(valid, c[2] * (-0.5 * LOG2_E), 0.0), mask=mask)
    tl.store(out + 5, tl.where(valid, tl.log2(tl.where(valid, opacity, 1.0)), -1e4), mask=mask)
    tl.store(out + 6, tl.where(valid, tl.minimum(opacity, constant(ALPHA_MAX, opacity)), 0.0), mask=mask)


@triton.jit
def _load_features(colors, depths, row, stride, CHANNELS: tl.constexpr, dtype: tl.constexpr):
    """Colors of a row, followed by its depth if there are depths."""
    features = ()
    for k in tl.static_range(CHANNELS):
        features = features + (tl.load(colors + row * stride + k).to(dtype),)
    if depths is not None:
        features = features + (tl.load(depths + row),)
    return features


@kernel(strided=("colors", "backgrounds", "render_colors"))
def _composite_fwd_kernel(
    records,  # [nnz, RECORD]
    colors,  # [nnz, stride], any float dtype, from the first channel of this pass on; or None
    depths,  # [nnz] or None
    backgrounds,  # [I, stride], from the first channel of this pass on; or None
    masks,  # [I, n_tiles] bool or None
    isect_offsets,  # [tiles of the band + 1] int64
    flatten_ids,  # [M] int32
    render_colors,  # [I, height, width, out_stride], from the first channel of this pass on, output
    transmittances,  # [I, height, width], output, or None
    last_ids,  # [I, height, width] int32, output, or None
    tile_order,  # [tiles of the band] int64 or None
    first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int", stride: "Int", out_stride: "Int",
    CHANNELS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    dtype = records.dtype.element_ty
    FEATURES: tl.constexpr = CHANNELS + (depths is not None)
    program, start, count = load_list(tl.program_id(0), tile_order, isect_offsets)
    tile = first_tile + program
    ids = flatten_ids + start
    for part in range(TILE // ROWS):
        image, center_x, center_y, inside, pixel = tile_pixels(
            tile, part, width, height, tile_width, n_tiles, TILE, ROWS, dtype
        )
        transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
        color = ()
        for _ in tl.static_range(FEATURES):
            color = color + (tl.zeros([ROWS, TILE], dtype),)
        last = tl.zeros([ROWS, TILE], tl.int32)
        alive = True
        if masks is not None:
            alive = tl.load(masks + tile) != 0
        done = 0
        while (done < count) & alive:
            stop = tl.minimum(done + STEP, count)
            for index in range(done, stop):
                row = tl.load(ids + index).to(tl.int64)
                record = load_tuple(records + row * RECORD, 1, 7)
                e = log2_alpha(record, center_x - record[0], center_y - record[1])
                if (ROWS == TILE) or tl.reduce_or(e >= LOG2_ALPHA_MIN, None):
                    feature = _load_features(colors, depths, row, stride, CHANNELS, dtype)
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
def _add(slot, value, ADD: tl.constexpr):
    """Stores a sum over pixels, or adds it to that of the parts of the tile before."""
    if ADD:
        value += tl.load(slot)
    tl.store(slot, value)


@kernel(strided=("v_render_colors",))
def _composite_bwd_kernel(
    records,  # [nnz, RECORD]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    isect_offsets,  # [tiles of the band + 1] int64
    flatten_ids,  # [M] int32
    slots,  # [M] int64
    transmittances,  # [I, height, width]
    last_ids,  # [I, height, width] int32
    v_render_colors,  # [I, height, width, n_colors + depth], of any strides
    v_render_alphas,  # [I, height, width]
    v_slots,  # [M, MOMENTS + n_colors + depth + 2 ABSGRAD], output
    tile_order,  # [tiles of the band] int64 or None
    first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int", n_colors: "Int",
    channel_stride: "Int", image_stride: "Int", pixel_stride: "Int",
    CHANNELS: tl.constexpr,  # n_colors if registers hold their gradients, otherwise -1
    TILE: tl.constexpr, ROWS: tl.constexpr, ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    dtype = records.dtype.element_ty
    DEPTHS: tl.constexpr = depths is not None
    n_features = n_colors + DEPTHS
    slot_width = MOMENTS + n_features + 2 * ABSGRAD
    program, start, count = load_list(tl.program_id(0), tile_order, isect_offsets)
    ids = flatten_ids + start
    slots += start
    if ROWS < TILE:
        zero_slots(v_slots, slots, 0, count, slot_width, COLUMNS)
    for part in range(TILE // ROWS):
        image, center_x, center_y, inside, pixel = tile_pixels(
            first_tile + program, part, width, height, tile_width, n_tiles, TILE, ROWS, dtype
        )
        v_image = v_render_colors + image * image_stride + (pixel - image * height * width) * pixel_stride
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
        for step in range(end):
            index = end - 1 - step
            row = tl.load(ids + index).to(tl.int64)
            record = load_tuple(records + row * RECORD, 1, 7)
            dx = center_x - record[0]
            dy = center_y - record[1]
            e = log2_alpha(record, dx, dy)
            if (ROWS == TILE) or tl.reduce_or(e >= LOG2_ALPHA_MIN, None):
                out = v_slots + tl.load(slots + index).to(tl.int64) * slot_width
                alpha = tl.where((e >= LOG2_ALPHA_MIN) & (index < last), clamped_alpha(record, e, APPROX), 0.0)
                if CHANNELS >= 0:
                    v_dot_c = dot_tuple(v_color, _load_features(colors, depths, row, CHANNELS, CHANNELS, dtype))
                else:
                    v_dot_c = tl.zeros([ROWS, TILE], dtype)
                    for channel in range(n_colors):
                        feature = tl.load(colors + row * n_colors + channel).to(dtype)
                        v = tl.load(v_image + channel * channel_stride, mask=inside, other=0.0)
                        v_dot_c = tl.fma(v, feature, v_dot_c)
                    if DEPTHS:
                        v_dot_c = tl.fma(v_depth, tl.load(depths + row), v_dot_c)
                transmittance, rest, weight, g = absorb_vjp(transmittance, alpha, rest, v_dot_c, APPROX)
                g = tl.where(e <= LOG2_ALPHA_MAX, g, 0.0)
                # Columns first: dx is one value per column.
                g_dy = g * dy
                sum_g = tl.sum(g, 0, keep_dims=True)
                sum_g_dy = tl.sum(g_dy, 0, keep_dims=True)
                sum_g_dx = sum_g * dx
                _add(out, tl.sum(sum_g), ROWS < TILE)
                _add(out + 1, tl.sum(sum_g_dx), ROWS < TILE)
                _add(out + 2, tl.sum(sum_g_dy), ROWS < TILE)
                _add(out + 3, tl.sum(sum_g_dx * dx), ROWS < TILE)
                _add(out + 4, tl.sum(sum_g_dy * dx), ROWS < TILE)
                _add(out + 5, tl.sum(g_dy * dy), ROWS < TILE)
                if CHANNELS >= 0:
                    for k in tl.static_range(CHANNELS + DEPTHS):
                        _add(out + MOMENTS + k, tl.sum(weight * v_color[k]), ROWS < TILE)
                else:
                    for channel in range(n_colors):
                        v = tl.load(v_image + channel * channel_stride, mask=inside, other=0.0)
                        _add(out + MOMENTS + channel, tl.sum(weight * v), ROWS < TILE)
                    if DEPTHS:
                        _add(out + MOMENTS + n_colors, tl.sum(weight * v_depth), ROWS < TILE)
                if ABSGRAD:
                    slope_x = tl.fma(2.0 * record[2], dx, record[3] * dy)
                    slope_y = tl.fma(2.0 * record[4], dy, record[3] * dx)
                    _add(out + MOMENTS + n_features, tl.sum(tl.abs(g * slope_x)), ROWS < TILE)
                    _add(out + MOMENTS + n_features + 1, tl.sum(tl.abs(g * slope_y)), ROWS < TILE)
        if ROWS == TILE:
            zero_slots(v_slots, slots, end, count, slot_width, COLUMNS)


def _pack(splats: Splats, numerics: Numerics) -> Tensor:
    n_rows = splats.opacities.numel()
    records = splats.means2d.new_empty(n_rows, RECORD.value)
    launch_elementwise(
        _pack_kernel,
        n_rows,
        BLOCK,
        means2d=splats.means2d,
        conics=splats.conics,
        opacities=splats.opacities,
        records=records,
        n_rows=n_rows,
        ALPHA_MAX=numerics.alpha_max,
        ALPHA_MIN=ALPHA_MIN,
    )
    return records


def composite_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    settings: CompositingSettings,
) -> None:
    """Writes the pixels of a band of tiles.

    Args:
        splats: With gathered colors [nnz, D].
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; a tile that is false shows the background.
        intersections: Of the band.
        buffers: Output.
        settings: See :class:`CompositingSettings`.
    """
    n_features, n_colors = buffers.colors.shape[-1], splats.n_colors
    grid = TileGrid.cover(len(buffers.colors), settings.width, settings.height, settings.tile_size)
    pass_width = min(settings.channel_chunk, PASS)
    records = _pack(splats, settings.numerics)
    if min(n_features, settings.channel_chunk) >= FEATURES_MIN:
        features_fwd(records, splats, backgrounds, masks, intersections, buffers, grid)
        return
    tile_order = longest_first(intersections.isect_offsets)
    for first in range(0, n_features, pass_width):
        end = min(first + pass_width, n_features)
        part = slice(first, min(end, n_colors))
        launch(
            _composite_fwd_kernel,
            programs(intersections.isect_offsets.numel() - 1, 1),
            records=records,
            colors=None if splats.colors is None else splats.colors[:, part],
            depths=splats.depths if end > n_colors else None,
            backgrounds=None if backgrounds is None else backgrounds[:, part],
            masks=masks,
            isect_offsets=intersections.isect_offsets,
            flatten_ids=intersections.flatten_ids,
            render_colors=buffers.colors[..., first:],
            transmittances=buffers.transmittances if first == 0 else None,
            last_ids=buffers.last_ids if first == 0 else None,
            tile_order=tile_order,
            first_tile=intersections.first_tile,
            width=settings.width,
            height=settings.height,
            tile_width=grid.tile_width,
            n_tiles=grid.tiles_per_image,
            stride=n_colors,
            out_stride=n_features,
            CHANNELS=max(part.stop - part.start, 0),
            TILE=settings.tile_size,
            ROWS=part_rows(splats.means2d, settings.tile_size),
            STEP=STEP,
            LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
            TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
            APPROX=approximate(splats.means2d),
            **walk_options(splats.means2d),
        )


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
) -> None:
    """Adds the contribution of a band of tiles to the moments and feature gradients of each row.

    Args:
        splats, backgrounds, intersections, settings: As for :func:`composite_fwd`; ``gaussian_major`` is required.
        transmittances, last_ids: [I, H, W] of :func:`composite_fwd`.
        v_render_colors, v_render_alphas: [I, H, W, D], [I, H, W].
        sums: [nnz, columns of ``sum_columns``], added to.
    """
    order = intersections.gaussian_major
    assert order is not None
    n_intersections = intersections.flatten_ids.numel()
    if n_intersections == 0:
        return
    grid = TileGrid.cover(len(v_render_colors), settings.width, settings.height, settings.tile_size)
    n_features, n_colors = v_render_colors.shape[-1], splats.n_colors
    held = n_features <= HELD
    v_slots = splats.means2d.new_empty(n_intersections, sums.shape[1])
    records = _pack(splats, settings.numerics)
    if n_features >= FEATURES_MIN:
        features_bwd(
            records,
            splats,
            backgrounds,
            intersections,
            transmittances,
            last_ids,
            v_render_colors,
            v_render_alphas,
            v_slots,
            settings,
        )
    else:
        v_image = v_render_colors if held else v_render_colors.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        launch(
            _composite_bwd_kernel,
            programs(intersections.isect_offsets.numel() - 1, 1),
            records=records,
            colors=splats.colors,
            depths=splats.depths,
            backgrounds=backgrounds,
            isect_offsets=intersections.isect_offsets,
            flatten_ids=intersections.flatten_ids,
            slots=order.slots,
            transmittances=transmittances,
            last_ids=last_ids,
            v_render_colors=v_image,
            v_render_alphas=v_render_alphas,
            v_slots=v_slots,
            tile_order=longest_first(intersections.isect_offsets),
            first_tile=intersections.first_tile,
            width=settings.width,
            height=settings.height,
            tile_width=grid.tile_width,
            n_tiles=grid.tiles_per_image,
            n_colors=n_colors,
            channel_stride=v_image.stride(3),
            image_stride=v_image.stride(0),
            pixel_stride=v_image.stride(2),
            CHANNELS=n_colors if held else -1,
            TILE=settings.tile_size,
            ROWS=part_rows(splats.means2d, settings.tile_size),
            ABSGRAD=settings.absgrad,
            COLUMNS=triton.next_power_of_2(sums.shape[1]),
            LOG2_ALPHA_MAX=math.log2(settings.numerics.alpha_max),
            LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
            APPROX=approximate(splats.means2d),
            **walk_options(splats.means2d),
        )
    sum_slots(v_slots, order, sums)
