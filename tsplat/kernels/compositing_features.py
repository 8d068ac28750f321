"""Compositing of many channels: weights times features as matrix products, forward and backward.

The same rules and device functions as ``compositing.py``, for Gaussians in groups of ``GROUP``. A program renders one
tile, and in the forward pass a chunk of its channels. With W [pixels, GROUP] the weights of a group, found one Gaussian
after the other, F [GROUP, channels] its features and V [pixels, channels] the gradient of the image,

    image += W F    v_F = W^T V    v_W = V F^T

NVIDIA's tensor cores read 11 bits of an fp32 number. Numbers are split into a part that is read exactly and the
remainder; three products of parts give the product to 2^-22 (two if features are in half precision, which has no
remainder). Tensor cores also truncate where fp32 would round, so they sum no more than a group, or one warp's part of a
tile.

Slots and moments are those of ``compositing.py``. The moments of a group are summed at once, first along tile columns,
as dx is one value per column. See docs/decisions/0006 for the cost of all this.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, TRANSMITTANCE_MIN
from ..data import CompositingSettings, Intersections, RenderBuffers, Splats, TileGrid
from .compositing_records import pack_records
from .device_math import load_tuple
from .launch import Int, approximate, group_options, kernel, launch, longest_first, programs
from .tile_math import (
    MOMENTS,
    RECORD,
    absorb,
    absorb_vjp,
    clamped_alpha,
    load_list,
    log2_alpha,
    part_pixels,
    zero_slots,
)

FEATURES_MIN = 16
"""Number of channels from which matrix products cost fewer instructions than channels one by one."""

GROUP = tl.constexpr(16)
"""Gaussians whose weights make up a matrix; the minimum of ``tl.dot``."""

CHUNK = 32
"""Channels that a forward program accumulates if there are more than FEATURES_MIN; backward, FEATURES_MIN at a time."""


@triton.jit
def _put(group, k: tl.constexpr, values):
    """Replaces the k-th of group [GROUP, TILE, TILE] by values [TILE, TILE]. Free where threads hold whole pixels."""
    return tl.where(tl.arange(0, GROUP)[:, None, None] == k, values[None], group)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _take(group, k: tl.constexpr):
    """The k-th of group [GROUP, TILE, TILE]. An or of bits, which compilers remove as k is constant."""
    kind: tl.constexpr = tl.int64 if group.dtype == tl.float64 else tl.int32
    bits = tl.where(tl.arange(0, GROUP)[:, None, None] == k, group.to(kind, bitcast=True), 0)
    return tl.reduce(bits, 0, _either).to(group.dtype, bitcast=True)


@triton.jit
def _lanes_last(x):
    """x, gathered from itself, which makes the compiler lay its last dimension along the lanes of a warp.

    Threads then hold whole pixels of a group, which a matrix product would spread over them, and column sums are not
    repeated by every warp.
    """
    last: tl.constexpr = len(x.shape) - 1
    own = tl.arange(0, x.shape[last])
    own = own[None, None, :] if last == 2 else own[None, :]
    return tl.gather(x, tl.broadcast_to(own, x.shape), last)


@triton.jit
def _exponents(records, rows, listed, center_x, center_y):
    """Records, offsets dx [GROUP, 1, TILE] and dy [GROUP, TILE, 1], and log2 of unclamped alpha [GROUP, TILE, TILE].

    Gaussians that are not listed get an alpha below the threshold.
    """
    at = records + rows[:, None, None] * RECORD
    record = load_tuple(at, 1, 5)
    record = record + (tl.load(at + 5, mask=listed[:, None, None], other=-1e4), tl.load(at + 6))
    dx = center_x[None] - record[0]
    dy = center_y[None] - record[1]
    return record, dx, dy, log2_alpha(record, dx, dy)


@triton.jit
def _parts(x):
    """x rounded to the 11 bits that tensor cores read, and the remainder, of which they read 11 bits as well."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def _product(a, b, dtype: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr):
    """a b to the precision of dtype. SPLIT a and b into parts; a alone if b is EXACT in the bits that are read."""
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
    """Colors of rows [GROUP, 1] at channels [1, N], followed by depth if there are depths; zero beyond."""
    values = tl.load(colors + rows * n_colors + channel, mask=channel < n_colors, other=0.0).to(dtype)
    if depths is not None:
        values = tl.where(channel == n_colors, tl.load(depths + rows), values)
    return values


@kernel
def _features_fwd_kernel(
    records,  # [nnz, RECORD]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    masks,  # [I, n_tiles] bool or None
    isect_offsets,  # [tiles of the band + 1] int64
    flatten_ids,  # [M] int32
    render_colors,  # [I, height, width, n_colors + depth], output
    transmittances,  # [I, height, width], output
    last_ids,  # [I, height, width] int32, output, or None
    tile_order,  # [tiles of the band] int64 or None
    first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int", n_colors: "Int", chunks: "Int",
    TILE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, EXACT: tl.constexpr,
    LOG2_ALPHA_MIN: tl.constexpr, TRANSMITTANCE_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    PIXELS: tl.constexpr = TILE * TILE
    dtype = records.dtype.element_ty
    chunk = tl.program_id(0) % chunks
    program, start, count = load_list(tl.program_id(0) // chunks, tile_order, isect_offsets)
    tile = first_tile + program
    image, center_x, center_y, inside, pixel, _ = part_pixels(
        tile, 0, 0, width, height, tile_width, n_tiles, TILE, TILE, TILE, TILE, TILE, dtype
    )
    transmittance = tl.where(inside, 1.0, -1.0).to(dtype)
    color = tl.zeros([PIXELS, CHUNK], dtype)
    last = tl.zeros([TILE, TILE], tl.int32)
    channel = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    ids = flatten_ids + start
    alive = True
    if masks is not None:
        alive = tl.load(masks + tile) != 0
    done = 0
    while (done < count) & alive:
        # Past the end, repeats the last row with weight 0: other rows may hold NaN.
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
    # Recomputed: addresses kept during the walk would occupy registers.
    tile += tl.minimum(done, 0)
    image, _, _, inside, pixel, _ = part_pixels(
        tile, 0, 0, width, height, tile_width, n_tiles, TILE, TILE, TILE, TILE, TILE, dtype
    )
    if backgrounds is not None:
        background = tl.load(backgrounds + image * n_colors + channel, mask=channel < n_colors, other=0.0)
        color = tl.fma(tl.reshape(transmittance, [PIXELS, 1]), background, color)
    n_features = n_colors + (depths is not None)
    address = render_colors + tl.reshape(pixel, [PIXELS, 1]) * n_features + channel
    tl.store(address, color, mask=tl.reshape(inside, [PIXELS, 1]) & (channel < n_features))
    tl.store(transmittances + pixel, transmittance, mask=inside & (chunk == 0))
    if last_ids is not None:
        tl.store(last_ids + pixel, last, mask=inside & (chunk == 0))


@kernel
def _features_bwd_kernel(
    records,  # [nnz, RECORD]
    colors,  # [nnz, n_colors], any float dtype, or None
    depths,  # [nnz] or None
    backgrounds,  # [I, n_colors] or None
    isect_offsets,  # [tiles of the band + 1] int64
    flatten_ids,  # [M] int32
    slots,  # [M] int64
    transmittances,  # [I, height, width]
    last_ids,  # [I, height, width] int32
    v_tiles,  # [tiles of the band, chunks, PIXELS, CHUNK]
    v_render_alphas,  # [I, height, width]
    v_slots,  # [M, MOMENTS + n_colors + depth + 2 ABSGRAD], output
    tile_order,  # [tiles of the band] int64 or None
    first_tile: "Int", width: "Int", height: "Int", tile_width: "Int", n_tiles: "Int", n_colors: "Int",
    TILE: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr, ABSGRAD: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, EXACT: tl.constexpr,
    LOG2_ALPHA_MAX: tl.constexpr, LOG2_ALPHA_MIN: tl.constexpr, APPROX: tl.constexpr,
):  # fmt: skip
    """PARTS of a tile's pixels are summed separately, one by each warp, before they are added."""
    PIXELS: tl.constexpr = TILE * TILE
    dtype = records.dtype.element_ty
    program, start, count = load_list(tl.program_id(0), tile_order, isect_offsets)
    image, center_x, center_y, inside, pixel, _ = part_pixels(
        first_tile + program, 0, 0, width, height, tile_width, n_tiles, TILE, TILE, TILE, TILE, TILE, dtype
    )
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
    ids = flatten_ids + start
    slots += start
    column = tl.arange(0, GROUP)
    LANES: tl.constexpr = min(PIXELS, 32)
    for done in range(0, end, GROUP):
        # Back to front; before the start, repeats the first row with weight 0.
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
    zero_slots(v_slots, slots, end, count, slot_width, COLUMNS)


def features_fwd(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    intersections: Intersections,
    buffers: RenderBuffers,
    settings: CompositingSettings,
) -> None:
    """Does what ``composite_fwd`` does, for ``FEATURES_MIN`` channels or more."""
    grid = TileGrid.cover(len(buffers.colors), settings.width, settings.height, settings.tile_size)
    records = pack_records(splats._replace(colors=None, depths=None), settings)
    chunk = CHUNK if splats.n_features > FEATURES_MIN else FEATURES_MIN
    chunks = triton.cdiv(splats.n_features, chunk)
    isect_offsets = intersections.isect_offsets
    launch(
        _features_fwd_kernel,
        programs((isect_offsets.numel() - 1) * chunks, 1),
        records=records,
        colors=splats.colors,
        depths=splats.depths,
        backgrounds=backgrounds,
        masks=masks,
        isect_offsets=isect_offsets,
        flatten_ids=intersections.flatten_ids,
        render_colors=buffers.colors,
        transmittances=buffers.transmittances,
        last_ids=buffers.last_ids,
        tile_order=longest_first(isect_offsets),
        first_tile=intersections.first_tile,
        width=buffers.colors.shape[2],
        height=buffers.colors.shape[1],
        tile_width=grid.tile_width,
        n_tiles=grid.tiles_per_image,
        n_colors=splats.n_colors,
        chunks=chunks,
        TILE=grid.tile_size,
        CHUNK=chunk,
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        TRANSMITTANCE_MIN=TRANSMITTANCE_MIN,
        **_options(records, splats, grid.tile_size),
    )


def features_bwd(
    splats: Splats,
    backgrounds: Tensor | None,
    intersections: Intersections,
    transmittances: Tensor,
    last_ids: Tensor,
    v_render_colors: Tensor,
    v_render_alphas: Tensor,
    columns: int,
    large: Tensor,
    settings: CompositingSettings,
) -> Tensor:
    """Does what ``composite_bwd`` does before it adds slots, for ``FEATURES_MIN`` channels or more.

    Returns:
        The slots of intersections, [M, columns].
    """
    records = pack_records(splats._replace(colors=None, depths=None), settings, large)
    v_slots = records.new_empty(intersections.flatten_ids.numel(), columns)
    order, isect_offsets = intersections.gaussian_major, intersections.isect_offsets
    assert order is not None
    n_tiles = isect_offsets.numel() - 1
    grid = TileGrid.cover(len(v_render_colors), settings.width, settings.height, settings.tile_size)
    options = _options(records, splats, grid.tile_size)
    launch(
        _features_bwd_kernel,
        programs(n_tiles, 1),
        records=records,
        colors=splats.colors,
        depths=splats.depths,
        backgrounds=backgrounds,
        isect_offsets=isect_offsets,
        flatten_ids=intersections.flatten_ids,
        slots=order.slots,
        transmittances=transmittances,
        last_ids=last_ids,
        v_tiles=_by_tile(v_render_colors, grid, FEATURES_MIN, intersections.first_tile, n_tiles),
        v_render_alphas=v_render_alphas,
        v_slots=v_slots,
        tile_order=longest_first(isect_offsets),
        first_tile=intersections.first_tile,
        width=settings.width,
        height=settings.height,
        tile_width=grid.tile_width,
        n_tiles=grid.tiles_per_image,
        n_colors=splats.n_colors,
        TILE=grid.tile_size,
        CHUNK=FEATURES_MIN,
        PARTS=options["num_warps"],
        ABSGRAD=settings.absgrad,
        COLUMNS=triton.next_power_of_2(columns),
        LOG2_ALPHA_MAX=math.log2(settings.numerics.alpha_max),
        LOG2_ALPHA_MIN=math.log2(ALPHA_MIN),
        **options,
    )
    return v_slots


def _options(records: Tensor, splats: Splats, tile_size: int) -> dict[str, int | bool]:
    """How matrices are multiplied, and the compiler's options."""
    fast = approximate(records)
    colors = splats.colors
    half = colors is not None and colors.dtype in (torch.float16, torch.bfloat16) and splats.depths is None
    return {"SPLIT": fast, "EXACT": fast and half, "APPROX": fast, **group_options(records, tile_size)}


def _by_tile(image: Tensor, grid: TileGrid, chunk: int, first_tile: int, n_tiles: int) -> Tensor:
    """Rearranges images [I, H, W, D] into tiles [n_tiles, chunks, pixels of a tile, chunk]; zero beyond edges and D."""
    height, width, channels = image.shape[1:]
    size, rows, columns, chunks = grid.tile_size, grid.tile_height, grid.tile_width, -(-channels // chunk)
    first_image = first_tile // grid.tiles_per_image
    image = image[first_image : (first_tile + n_tiles - 1) // grid.tiles_per_image + 1]
    margins = (chunks * chunk - channels, columns * size - width, rows * size - height)
    if any(margins):
        image = torch.nn.functional.pad(image, (0, margins[0], 0, margins[1], 0, margins[2]))
    tiles = image.reshape(-1, rows, size, columns, size, chunks, chunk).permute(0, 1, 3, 5, 2, 4, 6)
    first_tile -= first_image * grid.tiles_per_image
    return tiles.reshape(-1, chunks, size**2, chunk)[first_tile : first_tile + n_tiles].contiguous()
