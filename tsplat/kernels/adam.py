"""One step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015), in place, of many parameters.

One lane per value, which reads parameter, gradient and both moments and writes all but the gradient: 28 bytes in fp32,
1,652 bytes for the 59 values of a Gaussian with spherical harmonics of degree 3. Invisible Gaussians are not read.

One launch updates all parameters of a dtype. Each program finds its parameter in a table of addresses by binary search.
The table also has the constants of the step, so that one copy takes everything to the device, for which nothing waits.
"""

import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Int, block_size, is_compiled_for_cpu, kernel, programs

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


@triton.jit
def _update(element, mask, tensors, constants):
    """Updates values of a parameter and its moments."""
    parameter, gradient, exp_avg, exp_avg_sq = tensors
    one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps = constants
    g = tl.load(gradient + element, mask=mask, other=0.0)
    m = tl.load(exp_avg + element, mask=mask, other=0.0)
    v = tl.load(exp_avg_sq + element, mask=mask, other=0.0)
    m = m + (g - m) * one_minus_beta1
    v = v * beta2 + g * g * one_minus_beta2
    tl.store(exp_avg + element, m, mask=mask)
    tl.store(exp_avg_sq + element, v, mask=mask)
    p = tl.load(parameter + element, mask=mask, other=0.0)
    tl.store(parameter + element, p - step_size * (m / (tl.sqrt(v) / root_correction + eps)), mask=mask)


@triton.jit
def _update_by_values(begin, end, visible, width, tensors, constants, SKIP: tl.constexpr, BLOCK: tl.constexpr):
    """Updates the values of a section that belong to visible Gaussians. SKIP tests whether a block has any."""
    for start in range(begin, end, BLOCK):
        element = start + tl.arange(0, BLOCK)
        mask = element < end
        mask = mask & (tl.load(visible + element // width, mask=mask, other=0) != 0)
        if not SKIP or tl.max(mask.to(tl.int32)) > 0:
            _update(element, mask, tensors, constants)


@triton.jit
def _update_by_rows(begin, end, visible, width, tensors, constants, BLOCK: tl.constexpr):
    """Does the same, Gaussian by Gaussian, for many values of each."""
    for gaussian in range(begin // width, (end - 1) // width + 1):
        if tl.load(visible + gaussian) != 0:
            after = tl.minimum((gaussian + 1) * width, end)
            for start in range(tl.maximum(gaussian * width, begin), after, BLOCK):
                element = start + tl.arange(0, BLOCK)
                _update(element, element < after, tensors, constants)


@kernel
def _adam_kernel(
    table,  # [n_parameters, WORDS] int64
    visible,  # [N] bool or None
    n_parameters: "Int", search_steps: "Int",
    FP64: tl.constexpr, BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,  # blocks of a program
    ON_CPU: tl.constexpr,
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
    width = tl.load(row + 2)
    tensors = _pointer(row + 3, dtype), _pointer(row + 4, dtype), _pointer(row + 5, dtype), _pointer(row + 6, dtype)
    constants = ()
    for k in tl.static_range(6):
        constants = constants + (_constant(row + 7 + k, dtype),)
    begin = (program - tl.load(row)) * (BLOCK * ROUNDS)
    end = tl.minimum(begin + BLOCK * ROUNDS, tl.load(row + 1))
    if visible is None:
        for start in range(begin, end, BLOCK):
            element = start + tl.arange(0, BLOCK)
            _update(element, element < end, tensors, constants)
    elif ON_CPU:
        # A gather and a division for each value take a CPU longer than the update.
        if width >= BLOCK:
            _update_by_rows(begin, end, visible, width, tensors, constants, BLOCK)
        else:
            _update_by_values(begin, end, visible, width, tensors, constants, True, BLOCK)
    else:
        _update_by_values(begin, end, visible, width, tensors, constants, False, BLOCK)


class AdamTable:
    """The table of parameters and their moments, for steps of all of them.

    They are [N, ...] contiguous, of one device and dtype.

    Args:
        constants: Of each parameter 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t), sqrt(1 - beta2^t), eps. They are
            rounded to the parameter's dtype. beta2 rounded to fp32 is too coarse to be subtracted from 1.

    Attributes:
        words: [n_parameters, WORDS] int64, on the device.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        constants: Sequence[Sequence[float]],
    ) -> None:
        self._first = first = parameters[0]
        self._block, self._rounds = block_size(first, BLOCK), block_size(first, 1, CPU_ROUNDS)
        rows, self._n_programs = bytearray(), 0
        for parameter, *others, values in zip(parameters, gradients, exp_avgs, exp_avg_sqs, constants, strict=True):
            addresses = [tensor.data_ptr() for tensor in (parameter, *others)]
            width = math.prod(parameter.shape[1:])
            rows += ROW.pack(self._n_programs, parameter.numel(), width, *addresses, *values)
            self._n_programs += programs(parameter.numel(), self._block * self._rounds)
        self._on_cpu = self.words = torch.frombuffer(rows, dtype=torch.int64).view(len(parameters), ROW.size // 8)
        if first.is_cuda:
            self._on_cpu = self._on_cpu.pin_memory()
            self.words = self._on_cpu.to(first.device, non_blocking=True)
        # For the emulator, which follows addresses only into tensors that it is told of.
        self.words.pointees = [*parameters, *gradients, *exp_avgs, *exp_avg_sqs]

    def change(self, constants: Sequence[Sequence[float]]) -> None:
        """Changes the constants for the next step. The device must have taken over those of the one before."""
        self._on_cpu.numpy()[:, -len(constants[0]) :].view(np.float64)[...] = constants
        if self.words is not self._on_cpu:
            self.words.copy_(self._on_cpu, non_blocking=True)

    def step(self, visible: Tensor | None) -> None:
        """Updates parameters and moments; see :func:`adam_step`."""
        n = len(self.words)
        _adam_kernel.launch(
            self._n_programs, table=self.words, visible=visible, n_parameters=n, search_steps=n.bit_length(),
            FP64=self._first.dtype == torch.float64, BLOCK=self._block, ROUNDS=self._rounds,
            ON_CPU=is_compiled_for_cpu(self._first),
        )  # fmt: skip


def adam_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    constants: Sequence[Sequence[float]],
    visible: Tensor | None,
) -> None:
    """Updates parameters and their moments; see :class:`AdamTable`.

    Args:
        visible: [N] bool; rows that are false stay as they are. None to update all.
    """
    AdamTable(parameters, gradients, exp_avgs, exp_avg_sqs, constants).step(visible)
