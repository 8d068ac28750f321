"""Loads and stores rows: many consecutive values per lane, such as the coefficients of a Gaussian.

Accessing one value of all lanes at a time takes a CPU one access per lane, and a GPU one memory sector per lane, of
which it uses an eighth. Here, several consecutive values of each lane are accessed together, and the tile of lanes and
values is transposed by shuffles. Bits do not change.
"""

import triton
import triton.language as tl

ROW = tl.constexpr(16)
"""Number of values per lane that are loaded or stored at a time."""


@triton.jit
def _columns(tile, N: tl.constexpr):
    """Splits a tile [lanes, N] into N columns. N is a power of two."""
    if N == 1:
        return (tl.reshape(tile, [tile.shape[0]]),)
    else:
        even, odd = tl.split(tl.reshape(tile, [tile.shape[0], N // 2, 2]))
        even, odd = _columns(even, N // 2), _columns(odd, N // 2)
        columns = ()
        for k in tl.static_range(N // 2):
            columns = columns + (even[k], odd[k])
        return columns


@triton.jit
def _from_columns(columns):
    """Inverts :func:`_columns`."""
    N: tl.constexpr = len(columns)
    if N == 1:
        return tl.reshape(columns[0], [columns[0].shape[0], 1])
    else:
        tile = tl.join(_from_columns(columns[::2]), _from_columns(columns[1::2]))
        return tl.reshape(tile, [columns[0].shape[0], N])


@triton.jit
def load_side_by_side(pointer, N: tl.constexpr, mask):
    """Same as ``load_tuple`` with a stride of 1."""
    values = ()
    for first in tl.static_range(0, N, ROW):
        column = (first + tl.arange(0, ROW))[None, :]
        tile = tl.load(pointer[:, None] + column, mask=mask[:, None] & (column < N), other=0.0)
        values = values + _columns(tile, ROW)
    return values


@triton.jit
def store_side_by_side(pointer, values, mask):
    """Same as ``store_tuple`` with a stride of 1."""
    for first in tl.static_range(0, len(values), ROW):
        columns = ()
        for k in tl.static_range(first, first + ROW):
            columns = columns + (values[k] if k < len(values) else tl.zeros_like(values[0]),)
        column = (first + tl.arange(0, ROW))[None, :]
        tl.store(pointer[:, None] + column, _from_columns(columns), mask=mask[:, None] & (column < len(values)))


@triton.jit
def row_within(pointer, N: tl.constexpr, mask, bound):
    """Returns whether N consecutive values are at most `bound` in magnitude and not NaN. A loop, as N may be large."""
    valid = mask
    for first in range(0, N, ROW):
        column = (first + tl.arange(0, ROW))[None, :]
        tile = tl.load(pointer[:, None] + column, mask=mask[:, None] & (column < N), other=0.0).to(tl.float32)
        valid = valid & (tl.min((tl.abs(tile) <= bound).to(tl.int32), 1) != 0)
    return valid
