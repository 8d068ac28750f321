"""One in-place step of Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015) for many parameters.

One lane per value. It reads the parameter, the gradient and both moments, and writes all but the gradient: 28 bytes in
fp32, 1,652 bytes for the 59 values of a Gaussian with spherical harmonics of degree 3. Invisible Gaussians are skipped.

Moments may be stored in bf16, which takes 20 bytes per value. They are computed in the parameter's dtype and rounded
stochastically, which preserves their expectation (Gupta et al., "Deep learning with limited numerical precision", 2015;
docs/decisions/0064). Rounding to nearest would leave a second moment unchanged if a step changes it by less than half a
unit in the last place, 0.2 to 0.4 %; without a gradient, beta2 = 0.999 changes it by only 0.1 %. The random bits are a
hash of the value's index and the step, so equal calls give equal bits.

One launch updates all parameters of a dtype. Each program finds its parameter in a table of addresses by binary search.
The table also holds the constants of the step, so a single asynchronous copy to the device suffices.
"""

import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .device_math import prefetch
from .launch import Int, block_size, is_compiled_for_cpu, kernel, prefetch_distance, programs

BLOCK, CPU_ROUNDS = 1024, 64
WORDS = tl.constexpr(14)
"""Columns of the table: first program, number of values, values per Gaussian, 4 addresses, and 7 fp64 constants."""
ROW = struct.Struct("<7q7d")


@triton.jit
def _pointer(word, dtype: tl.constexpr):
    """Loads the address of a tensor from the table, as a pointer."""
    return tl.load(word).to(tl.pointer_type(dtype))


@triton.jit
def _constant(word, dtype: tl.constexpr):
    """Loads an fp64 constant from the table."""
    return tl.load(word).to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def _random_bits(element, step):
    """Returns 32 pseudorandom bits: the hash "lowbias32" (C. Wellons, 2018) of index + step * 2^32 / 1.618."""
    x = element.to(tl.uint32) + step.to(tl.int64).to(tl.uint32) * 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _load_moment(moment, mask):
    """Loads values of a moment. bf16 is loaded as bits, as not all devices have bf16 instructions."""
    if moment.dtype.element_ty == tl.uint16:
        values = (tl.load(moment, mask=mask, other=0).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        values = tl.load(moment, mask=mask, other=0.0)
    return values


@triton.jit
def _store_moment(moment, values, random_bits, mask):
    """Stores values of a moment. bf16 is rounded stochastically: random bits are added to the bits that are cut off."""
    if moment.dtype.element_ty == tl.uint16:
        bits = values.to(tl.float32).to(tl.uint32, bitcast=True)
        bits = tl.where(values == values, bits + (random_bits & 0xFFFF), 0x7FC00000)
        tl.store(moment, (bits >> 16).to(tl.uint16), mask=mask)
    else:
        tl.store(moment, values, mask=mask)


@triton.jit
def _update(element, source, mask, tensors, constants, ZEROS: tl.constexpr):
    """Updates values of a parameter and its moments at `element`, by the gradient at `source`."""
    parameter, gradient, exp_avg, exp_avg_sq = tensors
    one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, eps, step = constants
    if ZEROS:
        g = 0.0
    else:
        g = tl.load(gradient + source, mask=mask, other=0.0)
    m = _load_moment(exp_avg + element, mask)
    v = _load_moment(exp_avg_sq + element, mask)
    # m <- m + (1 - beta1) (g - m);  v <- beta2 v + (1 - beta2) g^2
    m = m + (g - m) * one_minus_beta1
    v = v * beta2 + g * g * one_minus_beta2
    random_bits = _random_bits(element, step)  # eliminated by the compiler unless moments are bf16
    _store_moment(exp_avg + element, m, random_bits, mask)
    _store_moment(exp_avg_sq + element, v, random_bits >> 16, mask)
    # p <- p - step_size m / (sqrt(v) / root_correction + eps)
    p = tl.load(parameter + element, mask=mask, other=0.0)
    tl.store(parameter + element, p - step_size * (m / (tl.sqrt(v) / root_correction + eps)), mask=mask)


@triton.jit
def _update_by_values(
    begin, end, visible, width, tensors, constants, SKIP: tl.constexpr, ZEROS: tl.constexpr, BLOCK: tl.constexpr
):
    """Updates the values of visible Gaussians in a section. With SKIP, blocks without visible Gaussians are skipped."""
    for start in range(begin, end, BLOCK):
        element = start + tl.arange(0, BLOCK)
        mask = element < end
        mask = mask & (tl.load(visible + element // width, mask=mask, other=0) != 0)
        if not SKIP or tl.max(mask.to(tl.int32)) > 0:
            _update(element, element, mask, tensors, constants, ZEROS)


@triton.jit
def _update_by_rows(begin, end, visible, width, tensors, constants, ZEROS: tl.constexpr, BLOCK: tl.constexpr):
    """Same as ``_update_by_values``, in a loop over Gaussians, for many values per Gaussian."""
    for gaussian in range(begin // width, (end - 1) // width + 1):
        if tl.load(visible + gaussian) != 0:
            after = tl.minimum((gaussian + 1) * width, end)
            for start in range(tl.maximum(gaussian * width, begin), after, BLOCK):
                element = start + tl.arange(0, BLOCK)
                _update(element, element, element < after, tensors, constants, ZEROS)


@triton.jit
def _update_selected(
    begin, end, rows, visible, width, tensors, constants, BLOCK: tl.constexpr, PREFETCH: tl.constexpr
):  # fmt: skip
    """Updates the visible Gaussians among `rows`, for a section of the values of their gradients."""
    last = (end - 1) // width
    for row in range(begin // width, last + 1):
        if PREFETCH > 0:
            # The rows are scattered in memory.
            later = tl.load(rows + tl.minimum(row + PREFETCH, last)) * width
            for start in range(0, width, BLOCK):
                n = tl.minimum(width - start, BLOCK)
                prefetch(tensors[0] + later + start, n)
                prefetch(tensors[2] + later + start, n)
                prefetch(tensors[3] + later + start, n)
        if tl.load(visible + row) != 0:
            ahead = (tl.load(rows + row) - row) * width
            after = tl.minimum((row + 1) * width, end)
            for start in range(tl.maximum(row * width, begin), after, BLOCK):
                source = start + tl.arange(0, BLOCK)
                _update(source + ahead, source, source < after, tensors, constants, False)


@kernel
def _adam_kernel(
    table,  # [n_parameters, WORDS] int64
    visible,  # [N] bool, or [R] with `rows`; or None
    rows,  # [R] int64, the Gaussians whose gradients [R, ...] are given; None for all
    n_parameters: "Int", search_steps: "Int",
    FP64: tl.constexpr, BF16: tl.constexpr,  # dtypes of parameters, and of moments
    ZEROS: tl.constexpr,  # whether gradients are zero, without being read; only without rows
    BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,  # blocks of a program
    PREFETCH: tl.constexpr, ON_CPU: tl.constexpr,
):  # fmt: skip
    """Updates a section of a parameter and its moments."""
    dtype = tl.float64 if FP64 else tl.float32
    moments_dtype = tl.uint16 if BF16 else dtype
    program = tl.program_id(0)
    # The parameter of the program: the last one whose first program is <= this program.
    low = program * 0
    high = low + n_parameters
    for _ in range(search_steps):
        middle = (low + high) // 2
        after = tl.load(table + middle * WORDS) <= program
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    row = table + low * WORDS
    width = tl.load(row + 2)
    tensors = _pointer(row + 3, dtype), _pointer(row + 4, dtype)
    tensors = tensors + (_pointer(row + 5, moments_dtype), _pointer(row + 6, moments_dtype))
    constants = ()
    for k in tl.static_range(7):
        constants = constants + (_constant(row + 7 + k, dtype),)
    begin = (program - tl.load(row)) * (BLOCK * ROUNDS)
    end = tl.minimum(begin + BLOCK * ROUNDS, tl.load(row + 1))
    if rows is not None:
        _update_selected(begin, end, rows, visible, width, tensors, constants, BLOCK, PREFETCH)
    elif visible is None:
        for start in range(begin, end, BLOCK):
            element = start + tl.arange(0, BLOCK)
            _update(element, element, element < end, tensors, constants, ZEROS)
    elif ON_CPU:
        # On a CPU, a gather and a division per value would take longer than the update.
        if width >= BLOCK:
            _update_by_rows(begin, end, visible, width, tensors, constants, ZEROS, BLOCK)
        else:
            _update_by_values(begin, end, visible, width, tensors, constants, True, ZEROS, BLOCK)
    else:
        _update_by_values(begin, end, visible, width, tensors, constants, False, ZEROS, BLOCK)


class AdamTable:
    """The table of parameters, gradients, moments and constants that the kernel reads.

    Parameters are contiguous [N, ...] tensors on one device and of one dtype. Moments have the same dtype, or are all
    bf16.

    Args:
        gradients: [N, ...], or [R, ...] for steps of selected rows; None if they are zero.
        constants: For each parameter 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t), sqrt(1 - beta2^t), eps, t. They
            are rounded to the parameter's dtype. 1 - beta2 is passed, as beta2 in fp32 is too coarse for it.

    Attributes:
        words: [n_parameters, WORDS] int64, on the device.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor] | None,
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        constants: Sequence[Sequence[float]],
    ) -> None:
        self._zeros = gradients is None
        gradients = parameters if gradients is None else gradients  # which are not read, but have as many values
        self._first = first = parameters[0]
        self._bf16 = exp_avgs[0].dtype == torch.bfloat16
        self._block, self._rounds = block_size(first, BLOCK), block_size(first, 1, CPU_ROUNDS)
        rows, self._n_programs = bytearray(), 0
        for parameter, *others, values in zip(parameters, gradients, exp_avgs, exp_avg_sqs, constants, strict=True):
            addresses = [tensor.data_ptr() for tensor in (parameter, *others)]
            width = math.prod(parameter.shape[1:])
            n = others[0].numel()
            rows += ROW.pack(self._n_programs, n, width, *addresses, *values)
            self._n_programs += programs(n, self._block * self._rounds)
        self._on_cpu = self.words = torch.frombuffer(rows, dtype=torch.int64).view(len(parameters), ROW.size // 8)
        if first.is_cuda:
            self._on_cpu = self._on_cpu.pin_memory()
            self.words = self._on_cpu.to(first.device, non_blocking=True)
        # The emulator resolves only the addresses of tensors in this list.
        self.words.pointees = [*parameters, *gradients, *exp_avgs, *exp_avg_sqs]

    def change(self, constants: Sequence[Sequence[float]]) -> None:
        """Sets the constants of the next step. The copy of the previous ones to the device must be complete."""
        self._on_cpu.numpy()[:, -len(constants[0]) :].view(np.float64)[...] = constants
        if self.words is not self._on_cpu:
            self.words.copy_(self._on_cpu, non_blocking=True)

    def step(self, visible: Tensor | None, rows: Tensor | None = None) -> None:
        """Updates parameters and moments; see :func:`adam_step`.

        With `rows`, [R] int64, only those of these Gaussians are updated for which `visible`, [R] bool, is true. The
        other rows may contain any number.
        """
        n = len(self.words)
        _adam_kernel.launch(
            self._n_programs, table=self.words, visible=visible, rows=rows, n_parameters=n, search_steps=n.bit_length(),
            FP64=self._first.dtype == torch.float64, BF16=self._bf16, ZEROS=self._zeros,
            BLOCK=self._block, ROUNDS=self._rounds,
            PREFETCH=prefetch_distance(self._first), ON_CPU=is_compiled_for_cpu(self._first),
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
        visible: [N] bool; Gaussians that are not visible keep their values. None to update all.
    """
    AdamTable(parameters, gradients, exp_avgs, exp_avg_sqs, constants).step(visible)
