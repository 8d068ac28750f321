"""Compositing of many channels: weights times features as products of matrices, forward and backward.

What `tsplat.kernels.compositing` does, by the same device functions and rules, for Gaussians in groups of `GROUP`. A
program owns one tile, and forward a chunk of its channels. With W [pixels, GROUP] the weights of a group, found one
Gaussian after the other, F [GROUP, channels] its features and V [pixels, channels] the gradient of the picture,

    picture += W F    v_F = W^T V    v_W = V F^T

NVIDIA's tensor cores read 11 bits of an fp32 number. Numbers are split into a part that they read whole and the rest,
and three products of parts give the product to 2^-22 (two if the features are in half precision, which has no rest).
Tensor cores also cut off what fp32 would round, so they sum no more than a group, or a tile's part for one warp.

The gradient's slots and moments are those of `tsplat.kernels.compositing`. Moments of a group are summed at once, over
rows first, as dx is one value per column. `docs/decisions/0006` has what all this costs.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN, Numerics
from .device_math import (
    MOMENTS,
    RECORD,
    absorb,
    absorb_vjp,
    clamped_alpha,
    load_tuple,
    log2_alpha,
    own_tile,
    tile_pixels,
)
from .launch import approximate, group_options, longest_first, programs, tile_counts

MANY = 16
"""Channels from which products of matrices cost fewer instructions than channels one by one."""

GROUP = tl.constexpr(16)
"""Gaussians whose weights make one matrix; `tl.dot` takes no fewer."""

CHUNK = 32
"""Channels accumulated by one program forward if there are more than `MANY`; backward, `MANY` at a time."""


@triton.jit
def _put(group, k: tl.constexpr, values):
    """group [GROUP, TILE, TILE] with values [TILE, TILE] as its k-th; nothing moves where threads hold whole pixels."""
    return tl.where(tl.arange(0, GROUP)[:, None, None] == k, values[None], group)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _take(group, k: tl.constexpr):
    """The k-th of group [GROUP, TILE, TILE]; an or of bits, as compilers see through it where k is known."""
    kind: tl.constexpr = tl.int64 if group.dtype == tl.float64 else tl.int32
    bits = tl.where(tl.arange(0, GROUP)[:, None, None] == k, group.to(kind, bitcast=True), 0)
    return tl.reduce(bits, 0, _either).to(group.dtype, bitcast=True)


@triton.jit
def _lanes_last(x):
    """x, its own entries gathered, which tells the compiler to lay its last dimension along a warp's lanes.

    A group then lies with whole pixels in threads, where a product of matrices would leave it across them, and sums
    over columns are not made by every warp alike.
    """
    last: tl.constexpr = len(x.shape) - 1
    own = tl.arange(0, x.shape[last])
    own = own[None, None, :] if last == 2 else own[None, :]
    return tl.gather(x, tl.broadcast_to(own, x.shape), last)


@triton.jit
def _exponents(records, rows, listed, center_x, center_y):
    """Records, offsets dx [GROUP, 1, TILE] and dy [GROUP, TILE, 1], and log2 of unclamped alpha [GROUP, TILE, TILE];
    far below the least for what is not listed."""
    at = records + rows[:, None, None] * RECORD
    record = load_tuple(at, 1, 5)
    record = record + (tl.load(at + 5, mask=listed[:, None, None], other=-1e4), tl.load(at + 6))
    dx = center_x[None] - record[0]
    dy = center_y[None] - record[1]
    return record, dx, dy, log2_alpha(record, dx, dy)


@triton.jit
def _parts(x):
    """x rounded to the 11 bits that tensor cores read, and the rest, of which they read 11 again."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def _product(a, b, dtype: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr):
    """a b to the precision of dtype; SPLIT into parts, or a alone if b is EXACT, no longer than tensor cores read."""
    if SPLIT:
        a_high, a_low = _parts(a)
        if EXACT:
            total = tl.dot(a_low, b, input_precision="tf32")
            return tl.dot(a_high, b, total, input_precision="tf32")
        else:
            b_high, b_low = _parts(b)
            total = tl.dot(a_low, b_high, input_precision="tf32")
            total = tl.dot(a_high, b_low, total, input_precision="tf32")
            return tl.dot(a_high, b_high, total, input_precision="tf32")
    else:
        return tl.dot(a, b, input_precision="ieee", out_dtype=dtype)


@triton.jit
def _load_features(colors, depths, rows, channel, n_colors, dtype: tl.constexpr):
    """Colors of rows [GROUP, 1] at channels [1, N], and depth behind them if there are depths; zero beyond."""
    values = tl.load(colors + rows * n_colors + channel, mask=channel < n_colors, other=0.0).to(dtype)
    if depths is not None:
        values = tl.where(channel == n_colors, tl.load(depths + rows), values)
    return values


@triton.jit
def _features_fwd_kernel(
    records, colors, depths, backgrounds, masks, isect_offsets, flatten_ids,
    render_colors, transmittances, last_ids, tile_order,
    first_tile, width, height, tile_width, n_tiles, n_colors, chunks,
    TILE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    PIXELS: tl.constexpr = TILE * TILE
    dtype = records.dtype.element_ty
    program = own_tile(tl.program_id(0) // chunks, tile_order)
    chunk = tl.program_id(0) % chunks
    tile = first_tile + program
    image, center_x, center_y, inside, pixel = tile_pixels(tile, width, height, tile_width, n_tiles, TILE, dtype)
    transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
    color = tl.zeros([PIXELS, CHUNK], dtype)
    last = tl.zeros([TILE, TILE], tl.int32)
    channel = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    start = tl.load(isect_offsets + program).to(tl.int64)
    count = (tl.load(isect_offsets + program + 1) - start).to(tl.int32)
    ids = flatten_ids + start
    alive = True
    if masks is not None:
        alive = tl.load(masks + tile) != 0
    done = 0
    while (done < count) & alive:
        # Behind the end the last again, with weight 0: rows that are not listed may be no numbers.
        rows = tl.load(ids + tl.minimum(done + tl.arange(0, GROUP), count - 1)).to(tl.int64)
        weights = tl.zeros([GROUP, TILE, TILE], dtype)
        for k in tl.static_range(GROUP):
            row = tl.load(ids + tl.minimum(done + k, count - 1)).to(tl.int64)
            record = load_tuple(records + row * RECORD, 1, 7)
            e = log2_alpha(record, center_x - record[0], center_y - record[1])
            alpha = tl.where((e >= LOG2_ALPHA_MIN) & (done + k < count), clamped_alpha(record, e, APPROX), 0.0)
            weight, added, transmittance = absorb(transmittance, alpha, TRANSMITTANCE_MIN)
            weights = _put(weights, k, tl.where(added, weight, 0.0))
            if last_ids is not None:
                last = tl.where(added, tl.minimum(done + k + 1, count), last)
        features = _load_features(colors, depths, rows[:, None], channel, n_colors, dtype)
        color += _product(tl.trans(tl.reshape(weights, [GROUP, PIXELS])), features, dtype, SPLIT, EXACT)
        done += GROUP
        alive = tl.max(transmittance) > 0.0
    transmittance = tl.abs(transmittance)
    # Found again now, as addresses kept through the walk would take registers from it.
    tile += tl.minimum(done, 0)
    image, _, _, inside, pixel = tile_pixels(tile, width, height, tile_width, n_tiles, TILE, dtype)
    if backgrounds is not None:
        background = tl.load(backgrounds + image * n_colors + channel, mask=channel < n_colors, other=0.0)
        color = tl.fma(tl.reshape(transmittance, [PIXELS, 1]), background, color)
    n_features = n_colors + (depths is not None)
    address = render_colors + tl.reshape(pixel, [PIXELS, 1]) * n_features + channel
    tl.store(address, color, mask=tl.reshape(inside, [PIXELS, 1]) & (channel < n_features))
    tl.store(transmittances + pixel, transmittance, mask=inside & (chunk == 0))
    if last_ids is not None:
        tl.store(last_ids + pixel, last, mask=inside & (chunk == 0))


@triton.jit
def _features_bwd_kernel(
    records, colors, depths, backgrounds, isect_offsets, flatten_ids, slots,
    transmittances, last_ids, v_tiles, v_render_alphas, v_slots, tile_order,
    first_tile, width, height, tile_width, n_tiles, n_colors,
    TILE: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr, ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, EXACT: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """PARTS of a tile's pixels are summed apart, one by each warp, before they are added."""
    PIXELS: tl.constexpr = TILE * TILE
    dtype = records.dtype.element_ty
    program = own_tile(tl.program_id(0), tile_order)
    tile = first_tile + program
    image, center_x, center_y, inside, pixel = tile_pixels(tile, width, height, tile_width, n_tiles, TILE, dtype)
    DEPTHS: tl.constexpr = depths is not None
    n_features = n_colors + DEPTHS
    chunks = tl.cdiv(n_features, CHUNK)
    channels = tl.arange(0, CHUNK)[None, :]
    v_tile = v_tiles + program.to(tl.int64) * chunks * PIXELS * CHUNK + tl.arange(0, PIXELS)[:, None] * CHUNK + channels
    rest = -tl.load(v_render_alphas + pixel, mask=inside, other=0.0)
    if backgrounds is not None:
        for chunk in range(chunks):
            channel = chunk * CHUNK + channels
            background = tl.load(backgrounds + image * n_colors + channel, mask=channel < n_colors, other=0.0)
            v = tl.load(v_tile + chunk * PIXELS * CHUNK)
            rest += tl.reshape(tl.sum(v * background, 1), [TILE, TILE])
    transmittance = tl.load(transmittances + pixel, mask=inside, other=1.0)
    rest = rest * transmittance
    last = tl.load(last_ids + pixel, mask=inside, other=0)
    end = tl.max(last)
    slot_width = MOMENTS + n_features + 2 * ABSGRAD
    start = tl.load(isect_offsets + program).to(tl.int64)
    ids = flatten_ids + start
    slots += start
    column = tl.arange(0, GROUP)
    LANES: tl.constexpr = min(PIXELS, 32)
    for done in range(0, end, GROUP):
        # Back to front; before the start of the list, its first Gaussian again, with weight 0.
        place = end - 1 - done - column
        listed = place >= 0
        rows = tl.load(ids + tl.maximum(place, 0)).to(tl.int64)
        out = v_slots + tl.load(slots + tl.maximum(place, 0)).to(tl.int64) * slot_width
        v_dot_c = tl.zeros([PIXELS, GROUP], dtype)
        for chunk in range(chunks):
            channel = chunk * CHUNK + channels
            v = tl.load(v_tile + chunk * PIXELS * CHUNK)
            features = _load_features(colors, depths, rows[:, None], channel, n_colors, dtype)
            v_dot_c += _product(v, tl.trans(features), dtype, SPLIT, EXACT)
        v_weights = tl.reshape(tl.trans(v_dot_c), [GROUP, PIXELS // LANES, LANES])
        v_weights = tl.reshape(_lanes_last(v_weights), [GROUP, TILE, TILE])
        record, dx, dy, e = _exponents(records, rows, listed, center_x, center_y)
        kept = (e >= LOG2_ALPHA_MIN) & (place[:, None, None] < last[None])
        alphas = tl.where(kept, clamped_alpha(record, e, APPROX), 0.0)
        weights = tl.zeros([GROUP, TILE, TILE], dtype)
        g = tl.zeros([GROUP, TILE, TILE], dtype)
        for k in tl.static_range(GROUP):
            transmittance, rest, weight, v_alpha = absorb_vjp(
                transmittance, _take(alphas, k), rest, _take(v_weights, k), APPROX
            )
            weights = _put(weights, k, weight)
            g = _put(g, k, tl.where(_take(e, k) <= LOG2_ALPHA_MAX, v_alpha, 0.0))
        g_dy = g * dy
        sum_g = _lanes_last(tl.sum(g, 1))
        sum_g_dy = _lanes_last(tl.sum(g_dy, 1))
        sum_g_dy_dy = _lanes_last(tl.sum(g_dy * dy, 1))
        dx = tl.reshape(dx, [GROUP, TILE])
        sum_g_dx = sum_g * dx
        tl.store(out, tl.sum(sum_g, 1), mask=listed)
        tl.store(out + 1, tl.sum(sum_g_dx, 1), mask=listed)
        tl.store(out + 2, tl.sum(sum_g_dy, 1), mask=listed)
        tl.store(out + 3, tl.sum(sum_g_dx * dx, 1), mask=listed)
        tl.store(out + 4, tl.sum(sum_g_dy * dx, 1), mask=listed)
        tl.store(out + 5, tl.sum(sum_g_dy_dy, 1), mask=listed)
        if ABSGRAD:
            ends = out + MOMENTS + n_features
            slope_x = tl.fma(2.0 * record[2], dx[:, None, :], record[3] * dy)
            slope_y = tl.fma(2.0 * record[4], dy, record[3] * dx[:, None, :])
            tl.store(ends, tl.sum(_lanes_last(tl.sum(tl.abs(g * slope_x), 1)), 1), mask=listed)
            tl.store(ends + 1, tl.sum(_lanes_last(tl.sum(tl.abs(g * slope_y), 1)), 1), mask=listed)
        weights = tl.permute(tl.reshape(weights, [GROUP, PARTS, PIXELS // PARTS]), (1, 0, 2))
        for chunk in range(chunks):
            channel = chunk * CHUNK + channels
            v = tl.load(v_tile + chunk * PIXELS * CHUNK)
            v_features = _product(weights, tl.reshape(v, [PARTS, PIXELS // PARTS, CHUNK]), dtype, SPLIT, False)
            address = out[:, None] + MOMENTS + channel
            tl.store(address, tl.sum(v_features, 0), mask=listed[:, None] & (channel < n_features))
    # Pairs behind the last that any pixel added.
    column = tl.arange(0, COLUMNS)
    for index in range(end, (tl.load(isect_offsets + program + 1) - start).to(tl.int32)):
        out = v_slots + tl.load(slots + index).to(tl.int64) * slot_width
        tl.store(out + column, tl.zeros([COLUMNS], dtype), mask=column < slot_width)


def features_fwd(
    records: Tensor,
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
) -> None:
    """`composite_fwd` for `MANY` channels or more, from packed records."""
    height, width, n_features = render_colors.shape[1:]
    tile_width, n_tiles = tile_counts(width, height, tile_size)
    chunk = CHUNK if n_features > MANY else MANY
    chunks = triton.cdiv(n_features, chunk)
    _features_fwd_kernel[(programs((isect_offsets.numel() - 1) * chunks, 1),)](
        records, colors, depths, backgrounds, masks, isect_offsets, flatten_ids,
        render_colors, transmittances, last_ids, longest_first(isect_offsets),
        first_tile, width, height, tile_width, n_tiles,
        n_features - (depths is not None), chunks,
        TILE=tile_size,
        CHUNK=chunk,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
        **_options(records, colors, depths, tile_size),
    )  # fmt: skip


def features_bwd(
    records: Tensor,
    colors: Tensor | None,
    depths: Tensor | None,
    backgrounds: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    slots: Tensor,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    v_slots: Tensor,
    *,
    first_tile: int,
    tile_size: int,
    absgrad: bool,
    numerics: Numerics,
) -> None:
    """Fills the pairs' slots, as a part of `composite_bwd`, for `MANY` channels or more."""
    height, width, n_features = v_render_colors.shape[1:]
    tile_width, n_tiles = tile_counts(width, height, tile_size)
    n_range = isect_offsets.numel() - 1
    options = _options(records, colors, depths, tile_size)
    _features_bwd_kernel[(programs(n_range, 1),)](
        records, colors, depths, backgrounds, isect_offsets, flatten_ids, slots,
        transmittances, last_ids, _by_tile(v_render_colors, tile_size, MANY, first_tile, n_range), v_render_alphas,
        v_slots, longest_first(isect_offsets),
        first_tile, width, height, tile_width, n_tiles,
        n_features - (depths is not None),
        TILE=tile_size,
        CHUNK=MANY,
        PARTS=options["num_warps"],
        ABSGRAD=absgrad,
        COLUMNS=triton.next_power_of_2(v_slots.shape[1]),
        LOG2_ALPHA_MAX=math.log2(numerics.alpha_max),
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        **options,
    )  # fmt: skip


def _options(records: Tensor, colors: Tensor | None, depths: Tensor | None, tile_size: int) -> dict[str, int | bool]:
    """How matrices are multiplied, and the compiler's options."""
    fast = approximate(records)
    half = colors is not None and colors.dtype in (torch.float16, torch.bfloat16) and depths is None
    return {"SPLIT": fast, "EXACT": fast and half, "APPROX": fast, **group_options(records, tile_size)}


def _by_tile(picture: Tensor, tile_size: int, chunk: int, first_tile: int, n_tiles: int) -> Tensor:
    """Tiles [n_tiles, chunks, pixels of a tile, chunk] of pictures [I, H, W, D]; zero beyond their edges and D."""
    height, width, channels = picture.shape[1:]
    rows, columns, chunks = -(-height // tile_size), -(-width // tile_size), -(-channels // chunk)
    first_image = first_tile // (rows * columns)
    picture = picture[first_image : (first_tile + n_tiles - 1) // (rows * columns) + 1]
    margins = (chunks * chunk - channels, columns * tile_size - width, rows * tile_size - height)
    if any(margins):
        picture = torch.nn.functional.pad(picture, (0, margins[0], 0, margins[1], 0, margins[2]))
    tiles = picture.reshape(-1, rows, tile_size, columns, tile_size, chunks, chunk).permute(0, 1, 3, 5, 2, 4, 6)
    first_tile -= first_image * rows * columns
    return tiles.reshape(-1, chunks, tile_size**2, chunk)[first_tile : first_tile + n_tiles].contiguous()
