"""Sizes of lists: how many chunks there may be, and what fits into memory that was allocated before sizes are known.

A call with a capacity does not wait for the sizes of lists, here also those of spans and intersections. Their prefix
sums remain on the device, with the total as the last value. One kernel compares the total with what there is room for,
and empties the lists if they do not fit, so that all that follows stays within its memory.
"""

import torch
import triton.language as tl
from torch import Tensor

from ..launch import Int, kernel

BLOCK = 256
"""No fewer than the threads of a program on any GPU, so that each has elements of its own."""

CUT = 1.5
"""Lists longer than this many chunks are cut."""


@kernel
def _limit_kernel(
    sums,  # [n] int32 or int64, the last is the total
    limited,  # [n] int32, output
    words,  # [n] int32, changed in place, or None
    needed,  # [5] int64, output: element ``kind``, the most so far; and the last, 1 if the total does not fit
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
    # By one thread: others would read what it writes.
    need = (total.to(tl.int64) + per_intersection - 1) // per_intersection
    place = needed + kind + index * 0
    tl.store(place, tl.maximum(need, tl.load(place, mask=index == 0, other=0)), mask=index == 0)
    if tl.program_id(0) == 0:
        tl.store(needed + 4, (total * 0 + 1).to(tl.int64), mask=total > capacity)


def limit_starts(
    sums: Tensor, capacity: int, needed: Tensor, kind: int, words: Tensor | None = None, per_intersection: int = 1
) -> Tensor:
    """Empties lists if they do not fit into a capacity.

    Args:
        sums: Prefix sum of the lengths of lists, of any shape, int32 or int64; the last value is their total.
        capacity: The largest total that fits.
        needed: [5] int64, see :class:`Intersections`, zeros at first. The element ``kind``, in the order of
            ``Capacities``, becomes the total if that is more: two passes over features may have lists of other parts.
        words: Like sums, int32: zeroed if the total does not fit; or None.
        per_intersection: How much of the total counts as one in ``needed``, rounded up.

    Returns:
        The prefix sums as int32; zeros if the total does not fit.
    """
    limited = torch.empty_like(sums, dtype=torch.int32)
    _limit_kernel.launch_elementwise(
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


def most_chunks(n_entries: int, chunk: int) -> int:
    """Returns the most chunks that lists with ``n_entries`` in total are cut into: each list may round one up."""
    return int(n_entries / chunk * (1 + 1 / CUT))
