"""Sums over the pixels of a part, for all values of a slot.

On NVIDIA GPUs, several values are summed over the lanes of a warp at once. Summing n values over 32 lanes one by one
takes 5 n shuffles. Here, in each of five steps, a lane keeps half of its values, and sends the other half to the lane
that keeps these. This takes about n + 3 shuffles. In the end, each lane holds one of the sums. CPUs sum the values of
vectors in the same way.
"""

import triton
import triton.language as tl

from ...config import TILE_SIZES
from ..device_math import add

SUMS_MAX = 32
"""Maximum number of values that are summed at once: one per lane."""

CAN_REORDER = tl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9))
"""Argument ``can_reorder`` of ``tl.reshape``. Triton 3.9 warns if it is true."""


STEPS_MAX = max(TILE_SIZES).bit_length() - 1
"""Maximum number of bits of the index of a pixel in a row."""

BITS = tl.constexpr(tuple((2,) * steps for steps in range(STEPS_MAX + 1)))
REVERSED = tl.constexpr(tuple(tuple(reversed(range(steps))) for steps in range(STEPS_MAX + 1)))
"""Shapes with an axis for each bit of an index, and the axes in reverse order, by number of bits."""


@triton.jit
def add_features(sums, record, weight, g, local, v_color, FOOTPRINT: tl.constexpr, ABSGRAD: tl.constexpr):
    """Adds w v, and with ABSGRAD the slopes, of the pixels of a block to sums. Sums are () before the first block."""
    added = ()
    for k in tl.static_range(len(v_color)):
        if len(sums) == 0:
            added = added + (weight * v_color[k],)
        else:
            added = added + (tl.fma(weight, v_color[k], sums[k]),)
    if ABSGRAD:
        slopes = FOOTPRINT.slopes(record, g, local)
        added = added + (slopes if len(sums) == 0 else add(sums[len(v_color) :], slopes))
    return added


@triton.jit
def _block_columns(sums, feature_sums, local, FOOTPRINT: tl.constexpr):
    """Returns the columns of a slot before they are summed over the block, see ``Footprint.BY_COLUMN``."""
    by_column = ()
    for k in tl.static_range(len(sums)):
        if k < FOOTPRINT.BY_COLUMN:
            by_column = by_column + (tl.sum(sums[k], 0, keep_dims=True),)
        else:
            by_column = by_column + (sums[k],)
    return FOOTPRINT.expand(by_column, local) + feature_sums


@triton.jit
def sum_block(sums, feature_sums, local, FOOTPRINT: tl.constexpr):
    """Returns the columns of a slot, summed over a block."""
    columns = _block_columns(sums, feature_sums, local, FOOTPRINT)
    totals = ()
    for k in tl.static_range(len(columns)):
        totals = totals + (tl.sum(columns[k]),)
    return totals


@triton.jit
def _add_halves(values):
    """Adds the second half of each value to the first half, and joins results two by two: [N, K] -> [N / 2, 2 K]."""
    N: tl.constexpr = values[0].shape[0]
    K: tl.constexpr = values[0].shape[1]
    joined = ()
    for k in tl.static_range(0, len(values), 2):
        both = tl.join(values[k], values[min(k + 1, len(values) - 1)])
        joined = joined + (tl.sum(tl.reshape(both, [2, N // 2, 2 * K]), 0),)
    return joined


@triton.jit
def add_block(out, sums, feature_sums, local, FOOTPRINT: tl.constexpr):
    """Adds the columns of a slot, summed over a block, to the slot. Same bits as ``sum_block``, for CPUs.

    As many columns as the block has pixels in a row become one vector of sums.
    """
    columns = _block_columns(sums, feature_sums, local, FOOTPRINT)
    N: tl.constexpr = columns[0].shape[1]
    STEPS: tl.constexpr = N.bit_length() - 1
    column = tl.arange(0, N)
    for first in tl.static_range(0, len(columns), N):
        values = ()
        for k in tl.static_range(first, min(first + N, len(columns))):
            values = values + (tl.reshape(tl.sum(columns[k], 0), [N, 1]),)
        for _ in tl.static_range(STEPS):
            values = _add_halves(values)
        # The bits of an index are in the order of the steps, the least significant bit of the column first.
        total = tl.reshape(tl.permute(tl.reshape(values[0], BITS[STEPS]), REVERSED[STEPS]), [N])
        mask = first + column < len(columns)
        tl.store(out + first + column, tl.load(out + first + column, mask=mask) + total, mask=mask)


def _fold_ptx(n: int) -> str:
    """Returns PTX that sums n values, operands $1 to $n, over a warp, and leaves one of the sums in $0."""
    lines = [f".reg .pred p; .reg .b32 lane, bit; .reg .f32 sent, v<{n}>; mov.u32 lane, %laneid;"]
    lines += [f"mov.f32 v{i}, ${i + 1};" for i in range(n)]
    mask, size = 16, n
    while mask:
        half = (size + 1) // 2
        if size > 1:
            lines.append(f"and.b32 bit, lane, {mask}; setp.ne.u32 p, bit, 0;")
        for i in range(half):
            other = i + half
            if other < size:
                lines.append(f"selp.f32 sent, v{i}, v{other}, p; selp.f32 v{i}, v{other}, v{i}, p;")
            else:
                lines.append(f"mov.f32 sent, v{i};")
            lines.append(f"shfl.sync.bfly.b32 sent, sent, {mask}, 31, -1; add.f32 v{i}, v{i}, sent;")
        mask, size = mask // 2, half
    return "{ " + " ".join(lines) + " mov.f32 $0, v0; }"


FOLD_PTX = tl.constexpr(tuple(_fold_ptx(n) for n in range(1, SUMS_MAX + 1)))
OPERANDS = tl.constexpr(tuple("=f" + ",f" * n for n in range(1, SUMS_MAX + 1)))


@triton.jit
def fold(values):
    """Sums each value over the lanes of a warp. A lane holds one element of each value.

    Returns:
        [32], one sum per lane; ``column_of_lane`` says which one.
    """
    sums = tl.inline_asm_elementwise(
        FOLD_PTX[len(values) - 1], OPERANDS[len(values) - 1], values, dtype=tl.float32, is_pure=False, pack=1
    )
    return tl.reshape(sums, [32], can_reorder=CAN_REORDER)  # moves no data, for any layout of the values


@triton.jit
def column_of_lane(N: tl.constexpr):
    """Returns the index of the sum that each lane holds after ``fold``, and whether it is the first lane with it."""
    lane = tl.arange(0, 32)
    column = tl.zeros_like(lane)
    is_first = lane >= 0
    for step in tl.static_range(5):
        # Number of values before and after a step, in reverse order of steps: N / 2^(4 - step), and half of it.
        before = (N + (1 << (4 - step)) - 1) >> (4 - step)
        after = (before + 1) // 2
        bit = (lane >> step & 1) != 0
        passed = bit & (column + after < before)
        is_first = is_first & (passed | (bit == 0))
        column = tl.where(passed, column + after, column)
    return column, is_first
