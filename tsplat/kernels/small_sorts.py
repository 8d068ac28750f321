"""Sorts of few values on a GPU, each by one launch. PyTorch's sort has several, and takes longer in Python.

`_order_kernel` finds the places of all values at once: the place of a value is the number of values that precede it, by
comparisons with all values. `_gather_tiles_kernel` has a program per tile, which reads all keys. Sorts are stable:
equal values keep their order.
"""

import torch
import triton.language as tl
from torch import Tensor

from .launch import Int, block_size, is_compiled_for_cpu, kernel

ORDER_BLOCK, COLUMNS = 32, 256
"""Values per program of ``_order_kernel``, and number of values that they are compared with at a time."""

WARPS = 8
"""Number of warps of a program."""

ORDERED_MAX = 4096
"""Number of values up to which each is compared with all others."""

GATHER_BLOCK = 2048
"""Keys that a program of ``_gather_tiles_kernel`` reads at a time."""

GATHERED_MAX = 8192
"""Number of keys up to which a program per tile reads all keys."""

GATHERED_TILES_MAX = 1024
"""Maximum number of tiles for which :func:`gather_tiles` is used."""


@kernel
def _order_kernel(
    values,  # [n]
    order,  # [n] int64, output
    n: "Int",
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the index of each value to its place. One lane per value."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + index, mask=index < n, other=0.0)
    n_before = tl.zeros([BLOCK, COLUMNS], tl.int32)
    for begin in range(0, n, COLUMNS):
        other_index = begin + tl.arange(0, COLUMNS)
        other = tl.load(values + other_index, mask=other_index < n, other=float("inf"))
        is_before = (other[None, :] == value[:, None]) & (other_index[None, :] < index[:, None])
        n_before += (is_before | (other[None, :] < value[:, None])).to(tl.int32)
    tl.store(order + tl.sum(n_before, 1), index.to(tl.int64), mask=index < n)


@kernel
def _gather_tiles_kernel(
    keys,  # [M] int16 or int32
    flatten_ids,  # [M] int32
    sorted_keys,  # [M] int16 or int32, output
    sorted_ids,  # [M] int32, output
    indices,  # [M] int32, output
    isect_offsets,  # [tiles + 1] int32, output
    n: "Int", first_key: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the intersections of a tile. One program per tile, and one for those that have no tile."""
    key = first_key + tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    n_before = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, n, BLOCK):
        other = tl.load(keys + begin + lane, mask=begin + lane < n, other=0).to(tl.int32)
        n_before += ((other < key) & (begin + lane < n)).to(tl.int32)
    start = tl.sum(n_before)
    tl.store(isect_offsets + tl.program_id(0), start)
    for begin in range(0, n, BLOCK):
        index = begin + lane
        is_in_tile = (tl.load(keys + index, mask=index < n, other=0).to(tl.int32) == key) & (index < n)
        place = start + tl.cumsum(is_in_tile.to(tl.int32)) - 1
        tl.store(sorted_keys + place, (lane * 0 + key).to(sorted_keys.dtype.element_ty), mask=is_in_tile)
        tl.store(sorted_ids + place, tl.load(flatten_ids + index, mask=is_in_tile, other=0), mask=is_in_tile)
        tl.store(indices + place, index, mask=is_in_tile)
        start += tl.sum(is_in_tile.to(tl.int32))


def max_ordered(tensor: Tensor) -> int:
    """Returns the number of values up to which :func:`order_values` takes less time than a sort. It is 0 on a CPU."""
    return 0 if is_compiled_for_cpu(tensor) else ORDERED_MAX


def order_values(values: Tensor) -> Tensor:
    """Returns the indices [n] int64 that sort values [n] stably. Values must not contain NaN."""
    n = values.numel()
    order = torch.empty(n, dtype=torch.int64, device=values.device)
    _order_kernel.launch_elementwise(
        n, ORDER_BLOCK, values=values, order=order, n=n, COLUMNS=block_size(values, COLUMNS), num_warps=WARPS
    )
    return order


def max_gathered(tensor: Tensor, n_tiles: int) -> int:
    """Returns the number of intersections up to which :func:`gather_tiles` takes less time than a sort.

    It is 0 on a CPU, and for many tiles.
    """
    return 0 if is_compiled_for_cpu(tensor) or n_tiles > GATHERED_TILES_MAX else GATHERED_MAX


def gather_tiles(
    keys: Tensor, flatten_ids: Tensor, n_tiles: int, first_key: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sorts intersections stably by key, and makes the lists of tiles.

    Args:
        keys: [M] int16 or int32, from ``first_key`` to ``first_key + n_tiles``, which stands for no tile.
        flatten_ids: [M] int32, row of each intersection.
        n_tiles, first_key: The number of tiles, and the key of the first tile.

    Returns:
        Sorted keys [M]; then the results of ``tile_lists``.
    """
    sorted_keys, sorted_ids, indices = (
        torch.empty_like(keys),
        torch.empty_like(flatten_ids),
        torch.empty_like(flatten_ids),
    )
    isect_offsets = flatten_ids.new_empty(n_tiles + 1)
    _gather_tiles_kernel.launch(
        n_tiles + 1,
        keys=keys,
        flatten_ids=flatten_ids,
        sorted_keys=sorted_keys,
        sorted_ids=sorted_ids,
        indices=indices,
        isect_offsets=isect_offsets,
        n=keys.numel(),
        first_key=first_key,
        BLOCK=block_size(keys, GATHER_BLOCK),
        num_warps=WARPS,
    )
    return sorted_keys, sorted_ids, indices, isect_offsets
