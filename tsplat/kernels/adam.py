"""One step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015), in place, of many parameters.

One lane per value, which reads parameter, gradient and both moments and writes all but the gradient: 28 bytes in fp32,
1,652 bytes for the 59 values of a Gaussian with spherical harmonics of degree 3. Invisible Gaussians are not read.

One launch updates all parameters of a dtype. Each program finds its parameter in a table of addresses by binary search.
The table also has the constants of the step, so that one copy takes everything to the device, for which nothing waits.
"""

import math
import struct
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Int, block_size, kernel, programs

BLOCK, CPU_ROUNDS = 1024, 64
WORDS = tl.constexpr(13)
"""Columns of the table: first program, values, values of a Gaussian, four addresses, and six constants in fp64."""
ROW = struct.Struct("<7q6d")


@triton.jit
def _pointer(word, dtype: tl.constexpr):
    """The tensor whose address a word of the table has."""
    return tl.load(word).to(tl.pointer_type(dtype))


@triton.jit
def _constant(word, dtype: tl.constexpr):
    """The constant that a word of the table has."""
    return tl.load(word).to(tl.float64, bitcast=True).to(dtype)


@kernel
def _adam_kernel(
    table,  # [n_parameters, WORDS] int64
    visible,  # [N] bool or None
    n_parameters: "Int", search_steps: "Int",
    FP64: tl.constexpr, BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,  # blocks of a program
):  # fmt: skip
    dtype = tl.float64 if FP64 else tl.float32
    program = tl.program_id(0)
    low = program * 0
    high = low + n_parameters
    for _ in range(search_steps):
        middle = (low + high) // 2
        after = tl.load(table + middle * WORDS) <= program
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    row = table + low * WORDS
    n = tl.load(row + 1)
    width = tl.load(row + 2)
    parameter = _pointer(row + 3, dtype)
    gradient = _pointer(row + 4, dtype)
    exp_avg = _pointer(row + 5, dtype)
    exp_avg_sq = _pointer(row + 6, dtype)
    one_minus_beta1 = _constant(row + 7, dtype)
    beta2 = _constant(row + 8, dtype)
    one_minus_beta2 = _constant(row + 9, dtype)
    step_size = _constant(row + 10, dtype)
    root_correction = _constant(row + 11, dtype)
    eps = _constant(row + 12, dtype)
    begin = (program - tl.load(row)) * (BLOCK * ROUNDS)
    for start in range(begin, tl.minimum(begin + BLOCK * ROUNDS, n), BLOCK):
        place = start + tl.arange(0, BLOCK)
        mask = place < n
        if visible is not None:
            mask = mask & (tl.load(visible + place // width, mask=mask, other=0) != 0)
        g = tl.load(gradient + place, mask=mask, other=0.0)
        m = tl.load(exp_avg + place, mask=mask, other=0.0)
        v = tl.load(exp_avg_sq + place, mask=mask, other=0.0)
        m = m + (g - m) * one_minus_beta1
        v = v * beta2 + g * g * one_minus_beta2
        tl.store(exp_avg + place, m, mask=mask)
        tl.store(exp_avg_sq + place, v, mask=mask)
        p = tl.load(parameter + place, mask=mask, other=0.0)
        tl.store(parameter + place, p - step_size * (m / (tl.sqrt(v) / root_correction + eps)), mask=mask)


def adam_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    constants: Sequence[Sequence[float]],
    visible: Tensor | None,
) -> None:
    """Updates parameters and their moments, [N, ...] contiguous, of one device and dtype.

    Args:
        constants: Of each parameter 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t), sqrt(1 - beta2^t), eps. They are
            rounded to the parameter's dtype. beta2 rounded to fp32 is too coarse to be subtracted from 1.
        visible: [N] bool; rows that are false stay as they are. None to update all.
    """
    first = parameters[0]
    block, rounds = block_size(first, BLOCK), block_size(first, 1, CPU_ROUNDS)
    rows, n_programs = bytearray(), 0
    for parameter, *others, values in zip(parameters, gradients, exp_avgs, exp_avg_sqs, constants, strict=True):
        addresses = [tensor.data_ptr() for tensor in (parameter, *others)]
        rows += ROW.pack(n_programs, parameter.numel(), math.prod(parameter.shape[1:]), *addresses, *values)
        n_programs += programs(parameter.numel(), block * rounds)
    table = torch.frombuffer(rows, dtype=torch.int64)
    if first.is_cuda:
        table = table.pin_memory().to(first.device, non_blocking=True)
    # For the emulator, which follows addresses only into tensors that it is told of.
    table.pointees = [*parameters, *gradients, *exp_avgs, *exp_avg_sqs]
    _adam_kernel.launch(
        n_programs, table=table, visible=visible, n_parameters=len(parameters),
        search_steps=len(parameters).bit_length(), FP64=first.dtype == torch.float64, BLOCK=block, ROUNDS=rounds,
    )  # fmt: skip
