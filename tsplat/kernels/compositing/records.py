"""Records: the inputs of a walk for a projected Gaussian, contiguous in memory.

A record holds the values of the footprint (computed from mean and shape), the opacity, and the features that a walk
blends.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...config import ALPHA_MIN
from ...data import CompositingSettings, Splats
from ..device_math import constant, element, load4, load_tuple, store_tuple
from ..launch import Int, has_fast_fp32, kernel
from .footprints import FOOTPRINTS

BLOCK = 128

OPACITY_VALUES = tl.constexpr(2)
"""Number of values of a record between those of the footprint and the features: log2(opacity), and min(opacity,
alpha_max)."""


@triton.jit
def _store_record(out, values, mask, FAST: tl.constexpr):
    """Stores the values of records. With FAST, uses 16-byte stores."""
    if FAST:
        for k in tl.static_range(0, len(values), 4):
            even = tl.join(values[k], values[k + 2])
            odd = tl.join(values[k + 1], values[k + 3])
            four = tl.reshape(tl.join(even, odd), [out.shape[0], 4])
            tl.store(out[:, None] + k + tl.arange(0, 4)[None, :], four, mask=mask[:, None])
    else:
        store_tuple(out, 1, values, mask)


@kernel(strided=("colors",))
def _pack_kernel(
    means2d,  # [nnz, 2]
    shapes,  # [nnz, FOOTPRINT.SHAPE]
    opacities,  # [nnz]
    colors,  # [G, COLORS] with rows of any stride, any float dtype; or None
    color_ids,  # [nnz] int64, or None if G is nnz
    depths,  # [nnz] or None
    records,  # [nnz, WIDTH], output
    large,  # [nnz] bool, output, or None
    n_rows: "Int", color_stride: "Int",
    FOOTPRINT: tl.constexpr, COLORS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    ALPHA_MAX: tl.constexpr, ALPHA_MIN: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes records: values of the footprint, log2(o), min(o, alpha_max), and features. One lane per row."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    SHAPE: tl.constexpr = FOOTPRINT.SHAPE
    shape = load_tuple(shapes + row * SHAPE, 1, SHAPE, mask)
    opacity = tl.load(opacities + row, mask=mask, other=0.0)
    values, valid = FOOTPRINT.pack(mean, shape, opacity >= constant(ALPHA_MIN, opacity))
    values = values + (
        tl.where(valid, tl.log2(tl.where(valid, opacity, 1.0)), -1e4),
        tl.where(valid, tl.minimum(opacity, constant(ALPHA_MAX, opacity)), 0.0),
    )
    color_row = row
    if color_ids is not None:
        color_row = tl.load(color_ids + row, mask=mask, other=0)
    for k in tl.static_range(COLORS):
        color = tl.load(colors + color_row * color_stride + k, mask=mask, other=0.0)
        values = values + (color.to(mean[0].dtype),)
    if depths is not None:
        values = values + (tl.load(depths + row, mask=mask, other=0.0),)
    for _ in tl.static_range(FOOTPRINT.VALUES + OPACITY_VALUES + COLORS + (depths is not None), WIDTH):
        values = values + (tl.zeros_like(opacity),)
    _store_record(records + row * WIDTH, values, mask, FAST)
    if large is not None:
        tl.store(large + row, FOOTPRINT.is_large(shape, opacity, TILE, ALPHA_MIN), mask=mask)


@triton.jit
def load_record(records, row, WIDTH: tl.constexpr, VALUES: tl.constexpr, FAST: tl.constexpr):
    """Loads the first VALUES values of a row's record. With FAST, uses 16-byte loads, and may return three more."""
    pointer = element(records, row, WIDTH, FAST)
    if FAST:
        values = ()
        for k in tl.static_range(0, VALUES, 4):
            values = values + load4(pointer + k)
        return values
    else:
        return load_tuple(pointer, 1, VALUES)


@triton.jit
def first_record(records, ids, begin, VALUES: tl.constexpr, WALK: tl.constexpr):
    """Loads the record of the first entry of a walk, and the row of the second.

    Returns:
        Both, and the pointer to the row of the third entry, or () if ``next_record`` does not use it.
    """
    record = load_record(records, tl.load(ids + begin), WALK.RECORD_WIDTH, VALUES, WALK.FAST)
    row = tl.load(ids + begin + 1)
    ahead = ()
    if WALK.FAST:
        # The compiler moves loads earlier if they have a separate pointer. Triton cannot compile this for AMD.
        ahead = ids + begin + 2
    return record, row, ahead


@triton.jit
def next_record(records, row, ids, entry, ahead, VALUES: tl.constexpr, WALK: tl.constexpr):
    """Loads the record of the next entry, whose row is known, and the row of the entry after it.

    To be called before the current entry is blended, so that the loads overlap with it.

    Returns:
        Both, and the next pointer, see ``first_record``.
    """
    record = load_record(records, row, WALK.RECORD_WIDTH, VALUES, WALK.FAST)
    if WALK.FAST:
        row = tl.load(ahead)
        ahead += 1
    else:
        row = tl.load(ids + entry + 2)
    return record, row, ahead


def pack_records(splats: Splats, settings: CompositingSettings, large: Tensor | None = None) -> Tensor:
    """Packs projected Gaussians with their colors and depths.

    Args:
        large: [nnz] bool, output: whether a Gaussian may touch more than ``LARGE`` tiles. Independent of bands.

    Returns:
        [nnz, width], see ``Footprint``. The width is a multiple of 4, so that rows are aligned.
    """
    footprint = FOOTPRINTS[settings.footprint]
    n_rows, n_colors = splats.opacities.numel(), splats.n_colors
    width = -(-(footprint.VALUES + OPACITY_VALUES.value + splats.n_features) // 4) * 4
    records = splats.means2d.new_empty(n_rows, width)
    _pack_kernel.launch_elementwise(
        n_rows,
        BLOCK,
        means2d=splats.means2d,
        shapes=splats.shapes,
        opacities=splats.opacities,
        colors=splats.colors,
        color_ids=None if splats.colors is None or splats.color_ids is None else splats.color_ids.ids,
        depths=splats.depths,
        records=records,
        large=large,
        n_rows=n_rows,
        color_stride=0 if splats.colors is None else splats.colors.stride(0),
        FOOTPRINT=footprint,
        COLORS=n_colors,
        WIDTH=width,
        TILE=settings.tile_size,
        ALPHA_MAX=settings.numerics.alpha_max,
        ALPHA_MIN=ALPHA_MIN,
        FAST=has_fast_fp32(records),
    )
    return records
