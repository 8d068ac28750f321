"""Prefix sums of the lengths of lists, with a capacity: lists that do not fit are emptied.

Up to `ONE_PROGRAM_MAX` lengths are summed by one program in one launch. Otherwise, a first launch sums each section of
the lengths. In a second launch, each program adds up the sums of the preceding sections, and writes the prefix sums of
its section. Integer sums do not depend on the order of addition.

With a capacity, memory is allocated before lengths are known. The second launch compares the total with the capacity,
and writes zeros if it is exceeded, so that later kernels stay within their memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..data import N_NEEDED, NO_LIMIT, OVERFLOW, Limit
from .launch import CPU_BLOCK, Int, block_size, kernel, programs

SECTION = 2048
"""Elements per program, if there are several programs. Each program reads the sums of all sections: 500 for a million
Gaussians."""

ONE_PROGRAM_MAX = 4 * SECTION
"""Number of elements up to which one program sums all, which costs less than a second launch."""

BLOCK = 1024
"""Elements that a program adds at a time on a GPU. At least its number of threads, so that no two share an element."""

WARPS = 8
"""Number of warps of a program on a GPU."""

OVERFLOW_ELEMENT, ELEMENTS = tl.constexpr(OVERFLOW), tl.constexpr(N_NEEDED)


@triton.jit
def sum_range(values, first, end, BLOCK: tl.constexpr):
    """Returns the sum of values[first:end], int64."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for begin in range(first, end, BLOCK):
        total += tl.load(values + begin + lane, mask=begin + lane < end, other=0).to(tl.int64)
    return tl.sum(total)


@triton.jit
def update_needed(limit, total, mask, BLOCK: tl.constexpr):
    """Updates the required size, needed[element] = max(needed[element], ceil(total / per_unit)), and the overflow flag.

    If ``limit.resets``, earlier values count as 0. ``total`` is int64; ``mask`` selects the program that does this.
    """
    lane = tl.arange(0, BLOCK)  # a lane per element
    mask = mask & (lane < ELEMENTS)
    old = tl.load(limit.needed + lane, mask=mask & (limit.resets == 0), other=0)
    new = tl.where(lane == limit.element, (total + limit.per_unit - 1) // limit.per_unit, 0)
    new = tl.where(lane == OVERFLOW_ELEMENT, (total > limit.capacity).to(tl.int64), new)
    tl.store(limit.needed + lane, tl.maximum(old, new), mask=mask)


@kernel
def _prefix_sums_kernel(
    lengths,  # [n] int32
    section_sums,  # [sections] int64, output of the first launch if there are several
    sums,  # [n] int32 or int64, output
    bitmasks,  # [n] int32, updated in place, or None
    limit: "Limit",
    n: "Int", n_sections: "Int", section_size: "Int", sums_sections: "Int",
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums a section of lengths if ``sums_sections``, and otherwise writes its prefix sums. One program per section."""
    section = tl.program_id(0).to(tl.int64)
    first = section * section_size
    end = tl.minimum(first + section_size, n)
    if sums_sections != 0:
        tl.store(section_sums + section, sum_range(lengths, first, end, BLOCK))
    else:
        # The sum before the section, and the total.
        before = section * 0
        if n_sections == 1:
            total = sum_range(lengths, first, end, BLOCK)
        else:
            before = sum_range(section_sums, section * 0, section, BLOCK)
            total = before + sum_range(section_sums, section, section * 0 + n_sections, BLOCK)
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
            update_needed(limit, total, section == 0, BLOCK)


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
    section_size = ONE_PROGRAM_MAX if n <= ONE_PROGRAM_MAX else SECTION
    n_sections = programs(n, section_size)
    section_sums = torch.empty(n_sections, dtype=torch.int64, device=lengths.device)
    # One kernel for both launches, so that a later call with more lengths does not compile another kernel.
    for sums_sections in (1, 0) if n_sections > 1 else (0,):
        _prefix_sums_kernel.launch(
            n_sections,
            lengths=lengths,
            section_sums=section_sums,
            sums=sums,
            bitmasks=bitmasks,
            limit=limit,
            n=n,
            n_sections=n_sections,
            section_size=section_size,
            sums_sections=sums_sections,
            BLOCK=block_size(lengths, BLOCK, CPU_BLOCK),
            num_warps=WARPS,
        )
    return sums
