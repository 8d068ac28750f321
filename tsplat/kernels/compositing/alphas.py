"""Alphas of Gaussians at the pixels of a tile, with the same bits as in compositing, to find contributors of pixels."""

from collections.abc import Callable

import triton.language as tl
from torch import Tensor

from ...data import CompositingSettings, Splats
from ..device_math import load_tuple
from ..launch import Int, kernel
from .records import OPACITY_VALUES, pack_records
from .walk_arguments import Walk
from .walk_steps import alpha_at

BLOCK = 128


@kernel
def _alphas_kernel(
    records,  # [nnz, RECORD_WIDTH]
    rows,  # [K] int32 or int64
    x,  # [w] centers of the pixel columns of the tile
    y,  # [h] centers of the pixel rows
    alphas,  # [K, h, w], output
    n: "Int", width: "Int", height: "Int",
    WALK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes alpha of each row at each pixel of a tile. One lane per (row, pixel)."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    line = index // width
    row = tl.load(rows + line // height, mask=mask, other=0).to(tl.int64)
    record = load_tuple(records + row * WALK.RECORD_WIDTH, 1, WALK.FOOTPRINT.VALUES + OPACITY_VALUES, mask)
    pixel = (tl.load(x + index % width, mask=mask, other=0.0), tl.load(y + line % height, mask=mask, other=0.0))
    # alpha = min(alpha_max, o exp(-sigma)), 0 below 1/255
    alpha, _, _ = alpha_at(record, pixel, True, WALK)
    tl.store(alphas + index, alpha, mask=mask)


def tile_alphas(splats: Splats, settings: CompositingSettings) -> Callable[[Tensor, tuple[Tensor, Tensor]], Tensor]:
    """Returns a function that computes the alphas of Gaussians at the pixels of a tile, 0 below ALPHA_MIN.

    The arguments of the function are rows [K] and the pixel centers x [w] and y [h]. It returns [h * w, K].
    """
    records = pack_records(splats, settings)

    def compute(rows: Tensor, centers: tuple[Tensor, Tensor]) -> Tensor:
        x, y = centers
        alphas = records.new_empty(rows.numel(), y.numel(), x.numel())
        _alphas_kernel.launch_elementwise(
            alphas.numel(),
            BLOCK,
            records=records,
            rows=rows,
            x=x,
            y=y,
            alphas=alphas,
            n=alphas.numel(),
            width=x.numel(),
            height=y.numel(),
            WALK=Walk.of(records, settings),
            enable_fp_fusion=False,  # as in walks
        )
        return alphas.flatten(1).T

    return compute
