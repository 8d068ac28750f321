"""Sizes of lists: into how many chunks long ones are cut, and what fits where sizes were chosen before they are known.

A call with a capacity does not wait for the sizes of lists. Their prefix sums remain on the device, with the total in
the end. One kernel compares the total with what there is room for, and empties lists that do not fit, so that all that
follows stays within its memory.
"""

import torch
import triton.language as tl
from torch import Tensor

from ...data import PartLists
from ..device_math import search_starts
from ..launch import Int, PartShape, kernel, launch_elementwise

BLOCK = 128

CUT = 1.5
"""Lists longer than this many chunks are cut."""


@kernel
def _limit_kernel(
    sums,  # [n] int32 or int64, the last is the total
    limited,  # [n] int32, output
    words,  # [n] int32, changed in place, or None
    needed,  # [3] int64, one of them is output
    n: "Int", capacity: "Int", per_intersection: "Int", kind: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    total = tl.load(sums + n - 1)
    fits = total <= capacity
    value = tl.load(sums + index, mask=mask, other=0)
    tl.store(limited + index, tl.where(fits, value, 0).to(tl.int32), mask=mask)
    if words is not None:
        word = tl.load(words + index, mask=mask, other=0)
        tl.store(words + index, tl.where(fits, word, 0), mask=mask)
    if tl.program_id(0) == 0:
        tl.store(needed + kind, (total.to(tl.int64) + per_intersection - 1) // per_intersection)


@kernel
def _chunk_counts_kernel(
    offsets,  # [lists + 1] int32
    counts,  # [1 + lists + 1] int32, output
    n: "Int", CHUNK: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Counts the chunks of each list, of which lists of up to LONGEST entries have none.

    A zero precedes the counts, and the number of entries follows them.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(offsets + index + 1, mask=index < n, other=0) - tl.load(offsets + index, mask=index < n, other=0)
    tl.store(counts + 1 + index, tl.where(length > LONGEST, (length + (CHUNK - 1)) // CHUNK, 0), mask=index < n)
    tl.store(counts + index, index * 0, mask=index == 0)
    tl.store(counts + n + 1 + index, tl.load(offsets + n) + index, mask=index == 0)


@kernel
def _chunk_lists_kernel(
    chunk_starts,  # [lists + 1] int32
    chunk_lists,  # [n_chunks] int32, output
    n: "Int", n_lists: "Int", steps: "Int", BLOCK: tl.constexpr,
):  # fmt: skip
    """Finds the list of each chunk; behind the last chunk, the last list."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = search_starts(chunk_starts, n_lists, tl.minimum(index, n - 1), steps)
    tl.store(chunk_lists + index, found, mask=index < n)


def limit_starts(
    sums: Tensor, capacity: int, needed: Tensor, kind: int, words: Tensor | None = None, per_intersection: int = 1
) -> Tensor:
    """Empties lists that do not fit into a capacity.

    Args:
        sums: Prefix sum of the lengths of lists, of any shape, int32 or int64; the last value is their total.
        capacity: The largest total that fits.
        needed: [3] int64, see :class:`Intersections`; ``kind`` is the place to write to.
        words: Like sums, int32: zeroed if the total does not fit; or None.
        per_intersection: Entries of the lists that a capacity has for each intersection.

    Returns:
        The prefix sums as int32; zeros if the total does not fit.
    """
    limited = torch.empty_like(sums, dtype=torch.int32)
    launch_elementwise(
        _limit_kernel,
        sums.numel(),
        BLOCK,
        sums=sums,
        limited=limited,
        words=words,
        needed=needed,
        n=sums.numel(),
        capacity=capacity,
        per_intersection=per_intersection,
        kind=kind,
    )
    return limited


def count_chunks(offsets: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Counts the chunks of lists. Lists of up to ``CUT`` chunks are not cut and have none.

    Returns:
        The first chunk of each list, and the number of chunks, [lists + 1] int32; the number of chunks, and its sum
        with the number of entries, [2] int32.
    """
    n = offsets.numel() - 1
    counts = offsets.new_empty(n + 2)
    longest = int(CUT * chunk)
    launch_elementwise(
        _chunk_counts_kernel, n, BLOCK, offsets=offsets, counts=counts, n=n, CHUNK=chunk, LONGEST=longest
    )
    sums = counts.cumsum(0, dtype=torch.int32)
    return sums[:-1], sums[-2:]


def most_chunks(n_entries: int, chunk: int) -> int:
    """Returns the most chunks that lists of so many entries in all are cut into: each list may round one up."""
    return int(n_entries / chunk * (1 + 1 / CUT))


def cut_lists(
    lists: PartLists, chunk_starts: Tensor, n_chunks: int, records: Tensor, n_features: int, shape: PartShape
) -> PartLists:
    """Adds the chunks of lists.

    Args:
        chunk_starts: Of :func:`count_chunks`.
        n_chunks: The number of chunks, or more.
        records, n_features: Of the dtype and with the D features of what chunks add.
        shape: Of the parts.
    """
    if n_chunks == 0:
        return lists
    chunk_lists = chunk_starts.new_empty(n_chunks)
    n_lists = chunk_starts.numel() - 1
    launch_elementwise(
        _chunk_lists_kernel,
        n_chunks,
        BLOCK,
        chunk_starts=chunk_starts,
        chunk_lists=chunk_lists,
        n=n_chunks,
        n_lists=n_lists,
        steps=n_lists.bit_length(),
    )
    pixels = shape.width * shape.height
    return lists._replace(
        chunk_starts=chunk_starts,
        chunk_lists=chunk_lists,
        chunk_transmittances=records.new_empty(n_chunks, pixels),
        chunk_colors=records.new_empty(n_chunks, n_features, pixels),
    )
