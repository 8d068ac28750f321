"""Prefix sums of the lengths of lists, with a capacity: lists that do not fit are emptied.

A first launch sums each section of the lengths, if there are several sections. In a second launch, each program adds up
the sums of the preceding sections, and writes the prefix sums of its section. Integer sums do not depend on the order
of addition.

With a capacity, memory is allocated before lengths are known. The second launch compares the total with the capacity,
and writes zeros if it is exceeded, so that later kernels stay within their memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..data import NO_LIMIT, OVERFLOW, Limit
from .launch import CPU_BLOCK, Int, block_size, kernel, programs

SECTION = 2048
"""Elements per program. Each program reads the sums of all sections: 500 for a million Gaussians."""

BLOCK = 1024
"""Elements that a program adds at a time on a GPU. At least its number of threads, so that no two share an element."""

WARPS = 8
"""Number of warps of a program on a GPU."""

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
    bitmasks,  # [n] int32, updated in place, or None
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
            # needed[element] = max(needed[element], total). By one thread: others could read the updated value.
            first_lane = (lane == 0) & (section == 0)
            need = (total + limit.per_unit - 1) // limit.per_unit
            size = limit.needed + limit.element + lane * 0
            tl.store(size, tl.maximum(need, tl.load(size, mask=first_lane, other=0)), mask=first_lane)
            overflow = limit.needed + OVERFLOW_ELEMENT + lane * 0
            tl.store(overflow, 1 + 0 * total, mask=first_lane & (total > limit.capacity))


def prefix_sums(
    lengths: Tensor, dtype: torch.dtype = torch.int32, limit: Limit = NO_LIMIT, bitmasks: Tensor | None = None
) -> Tensor:
    """Returns the inclusive prefix sums of lengths, in the same shape.

    Args:
        lengths: int32 of any shape, contiguous.
        dtype: The dtype of the result, int32 or int64. Larger sums wrap around.
        limit: The capacity of the total. If it is exceeded, all sums are zero.
        bitmasks: int32, one per length, set to zero if the capacity is exceeded; or None.
    """
    n, sums = lengths.numel(), torch.empty_like(lengths, dtype=dtype)
    n_sections = programs(n, SECTION)
    section_sums = torch.empty(n_sections, dtype=torch.int64, device=lengths.device)
    # One kernel for both launches, so that a later call with more lengths does not compile another kernel.
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
