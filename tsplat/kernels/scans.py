"""Prefix sums of the lengths of lists, and lists that are emptied if they do not fit.

A first launch sums each section of the lengths, unless there is one only. In the second, each program adds up the sums
of the sections before its own, and then makes the sums within its own. Sums of integers do not depend on the order
in which they are added.

A call with a capacity allocates memory before lengths are known. The second launch then compares the total with the
capacity, and empties the lists if they do not fit, so that all that follows stays within its memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..data import NO_LIMIT, OVERFLOW, Limit
from .launch import CPU_BLOCK, Int, block_size, kernel, programs

SECTION = 2048
"""Elements of a program. Each program reads the sums of all sections, of which a million Gaussians have 500."""

BLOCK = 1024
"""Elements that a program adds at a time on a GPU: no fewer than its threads, so that each has elements of its own."""

WARPS = 8
"""Of a program on a GPU."""

OVERFLOW_ELEMENT = tl.constexpr(OVERFLOW)


@triton.jit
def _sum(values, first, end, BLOCK: tl.constexpr):
    """Returns the sum of values[first:end], int64."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for begin in range(first, end, BLOCK):
        total += tl.load(values + begin + lane, mask=begin + lane < end, other=0).to(tl.int64)
    return tl.sum(total)


@kernel
def _prefix_sums_kernel(
    lengths,  # [n] int32
    section_sums,  # [sections] int64, output of the first launch if there are several
    sums,  # [n] int32 or int64, output
    bitmasks,  # [n] int32, changed in place, or None
    limit: "Limit",
    n: "Int", n_sections: "Int", is_first: "Int",
    SECTION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums a section of lengths if ``is_first``, and otherwise writes its prefix sums. One program per section."""
    section = tl.program_id(0).to(tl.int64)
    first = section * SECTION
    end = tl.minimum(first + SECTION, n)
    if is_first != 0:
        tl.store(section_sums + section, _sum(lengths, first, end, BLOCK))
    else:
        # The sum before the section, and the total.
        before = section * 0
        if n_sections == 1:
            total = _sum(lengths, first, end, BLOCK)
        else:
            before = _sum(section_sums, section * 0, section, BLOCK)
            total = before + _sum(section_sums, section, section * 0 + n_sections, BLOCK)
        fits = total <= limit.capacity
        lane = tl.arange(0, BLOCK)
        for begin in range(first, end, BLOCK):
            index = begin + lane
            length = tl.load(lengths + index, mask=index < end, other=0).to(tl.int64)
            value = before + tl.cumsum(length)  # sums[i] = lengths[0] + ... + lengths[i]
            if limit.needed is not None:
                value = tl.where(fits, value, 0)
                if bitmasks is not None:
                    word = tl.load(bitmasks + index, mask=index < end, other=0)
                    tl.store(bitmasks + index, tl.where(fits, word, 0), mask=index < end)
            tl.store(sums + index, value.to(sums.dtype.element_ty), mask=index < end)
            before += tl.sum(length)
        if limit.needed is not None:
            # By one thread: others would read what it writes.
            first_lane = (lane == 0) & (section == 0)
            need = (total + limit.per_unit - 1) // limit.per_unit
            size = limit.needed + limit.element + lane * 0
            tl.store(size, tl.maximum(need, tl.load(size, mask=first_lane, other=0)), mask=first_lane)
            overflow = limit.needed + OVERFLOW_ELEMENT + lane * 0
            tl.store(overflow, 1 + 0 * total, mask=first_lane & (total > limit.capacity))


def prefix_sums(
    lengths: Tensor, dtype: torch.dtype = torch.int32, limit: Limit = NO_LIMIT, bitmasks: Tensor | None = None
) -> Tensor:
    """Returns the sum of the lengths up to and with each one, of the same shape.

    Args:
        lengths: int32, of any shape, contiguous.
        dtype: Of the result, int32 or int64. Larger sums wrap.
        limit: Their capacity in total. If that is exceeded, all sums are zero.
        bitmasks: int32, as many as lengths, zeroed if the limit is exceeded; or None.
    """
    n, sums = lengths.numel(), torch.empty_like(lengths, dtype=dtype)
    n_sections = programs(n, SECTION)
    section_sums = torch.empty(n_sections, dtype=torch.int64, device=lengths.device)
    # One kernel does both, so that more lengths in a later call need no other code.
    for is_first in (1, 0) if n_sections > 1 else (0,):
        _prefix_sums_kernel.launch(
            n_sections,
            lengths=lengths,
            section_sums=section_sums,
            sums=sums,
            bitmasks=bitmasks,
            limit=limit,
            n=n,
            n_sections=n_sections,
            is_first=is_first,
            SECTION=SECTION,
            BLOCK=block_size(lengths, BLOCK, CPU_BLOCK),
            num_warps=WARPS,
        )
    return sums
