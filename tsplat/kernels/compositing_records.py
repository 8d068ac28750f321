"""Records: what compositing reads of a projected Gaussian, side by side in memory."""

import math

import triton
import triton.language as tl
from torch import Tensor

from ..config import ALPHA_MIN, Numerics
from ..data import Splats
from .device_math import constant, load4, load_tuple
from .launch import Int, kernel, launch_elementwise
from .tile_math import GEOMETRY

BLOCK = 128

LOG2_E = tl.constexpr(math.log2(math.e))


@kernel(strided=("colors",))
def _pack_kernel(
    means2d,  # [nnz, 2]
    conics,  # [nnz, 3]
    opacities,  # [nnz]
    colors,  # [nnz, COLORS] with rows of any stride, any float dtype; or None
    depths,  # [nnz] or None
    records,  # [nnz, WIDTH], output
    n_rows: "Int", color_stride: "Int",
    COLORS: tl.constexpr, WIDTH: tl.constexpr,
    ALPHA_MAX: tl.constexpr, ALPHA_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    mean = load_tuple(means2d + row * 2, 1, 2, mask)
    c = load_tuple(conics + row * 3, 1, 3, mask)
    opacity = tl.load(opacities + row, mask=mask, other=0.0)
    # Conics that are NaN, or not positive semidefinite beyond rounding, are not rendered.
    valid = (c[0] >= 0.0) & (c[2] >= 0.0) & (c[1] * c[1] <= c[0] * c[2] * 1.0001) & (opacity >= ALPHA_MIN)
    out = records + row * WIDTH
    tl.store(out, mean[0], mask=mask)
    tl.store(out + 1, mean[1], mask=mask)
    tl.store(out + 2, tl.where(valid, c[0] * (-0.5 * LOG2_E), 0.0), mask=mask)
    tl.store(out + 3, tl.where(valid, c[1] * -LOG2_E, 0.0), mask=mask)
    tl.store(out + 4, tl.where(valid, c[2] * (-0.5 * LOG2_E), 0.0), mask=mask)
    tl.store(out + 5, tl.where(valid, tl.log2(tl.where(valid, opacity, 1.0)), -1e4), mask=mask)
    tl.store(out + 6, tl.where(valid, tl.minimum(opacity, constant(ALPHA_MAX, opacity)), 0.0), mask=mask)
    for k in tl.static_range(COLORS):
        color = tl.load(colors + row * color_stride + k, mask=mask, other=0.0)
        tl.store(out + GEOMETRY + k, color.to(mean[0].dtype), mask=mask)
    if depths is not None:
        tl.store(out + GEOMETRY + COLORS, tl.load(depths + row, mask=mask, other=0.0), mask=mask)
    for k in tl.static_range(GEOMETRY + COLORS + (depths is not None), WIDTH):
        tl.store(out + k, tl.zeros_like(opacity), mask=mask)


@triton.jit
def load_record(records, row, WIDTH: tl.constexpr, VALUES: tl.constexpr, WIDE: tl.constexpr):
    """The first VALUES values of a row's record, or all WIDTH by 16-byte loads if WIDE."""
    at = records + row.to(tl.int64) * WIDTH
    if WIDE:
        values = ()
        for k in tl.static_range(0, WIDTH, 4):
            values = values + load4(at + k)
        return values
    else:
        return load_tuple(at, 1, VALUES)


def pack_records(splats: Splats, numerics: Numerics) -> Tensor:
    """Packs projected Gaussians with their colors and depths.

    Returns:
        [nnz, width], see ``GEOMETRY``, followed by features; ``width`` is a multiple of 4, so that rows are aligned.
    """
    n_rows, n_colors = splats.opacities.numel(), splats.n_colors
    width = triton.cdiv(GEOMETRY.value + splats.n_features, 4) * 4
    records = splats.means2d.new_empty(n_rows, width)
    launch_elementwise(
        _pack_kernel,
        n_rows,
        BLOCK,
        means2d=splats.means2d,
        conics=splats.conics,
        opacities=splats.opacities,
        colors=splats.colors,
        depths=splats.depths,
        records=records,
        n_rows=n_rows,
        color_stride=0 if splats.colors is None else splats.colors.stride(0),
        COLORS=n_colors,
        WIDTH=width,
        ALPHA_MAX=numerics.alpha_max,
        ALPHA_MIN=ALPHA_MIN,
    )
    return records
