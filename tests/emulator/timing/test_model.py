"""Kernels whose cost on a GPU is published, on the timing model. Ranges are those of published measurements."""

import dataclasses

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from emulator.emulation import emulated
from emulator.timing.model import A100, H100, VARIATIONS, occupancy, predict
from emulator.timing.trace import Recorder
from tests.emulator.targets import needs_emulator

pytestmark = needs_emulator
REPEATS = 40


@triton.jit
def _dependent_fma(y, a, b, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = i.to(tl.float32)
    for _ in range(n):
        for _ in tl.static_range(64):
            x = tl.fma(x, a, b)
    tl.store(y + i, x)


@triton.jit
def _independent_fma(y, a, b, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = i.to(tl.float32)
    for _ in range(n):
        for _ in tl.static_range(32):
            x = tl.fma(x, a, b)
    tl.store(y + i, x)


@triton.jit
def _shuffles(y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = i
    for _ in range(n):
        for _ in tl.static_range(32):
            x = tl.inline_asm_elementwise(
                "shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1
            )
    tl.store(y + i, x)


@triton.jit
def _exponentials(y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = i.to(tl.float32)
    for _ in range(n):
        for _ in tl.static_range(32):
            x = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    tl.store(y + i, x)


@triton.jit
def _chase(y, start, n):
    at = start.to(tl.int64)
    for _ in range(n):
        for _ in tl.static_range(16):
            at = tl.load(at.to(tl.pointer_type(tl.int64)))
    tl.store(y, at)


@triton.jit
def _barriers(y, n):
    for _ in range(n):
        tl.debug_barrier()
    tl.store(y, n)


@triton.jit
def _copy(y, x, n, B: tl.constexpr):
    for first in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
        i = first + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i))


@triton.jit
def _sum(y, x, B: tl.constexpr):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, B))))


def _traced(kernel, grid, *args, **options):
    recorder = Recorder(lambda launch: True)
    with emulated("cuda:80", "sass", races=False, uninitialized=False) as gpu:
        gpu.machine.tracer = recorder
        kernel[(grid,)](*args, **options)
    (executed,) = recorder.launches
    return executed


def _cycles(gpu, executed):
    return predict(gpu, executed.trace).cycles - gpu.lat_launch


def _ring(size, stride):
    """A tensor of `size` bytes in which addresses lead once through all places that are `stride` bytes apart."""
    order = np.concatenate([[0], np.random.default_rng(0).permutation(size // stride - 1) + 1])
    ring = torch.zeros(size // 8, dtype=torch.int64)
    ring[torch.from_numpy(order * (stride // 8))] = torch.from_numpy(ring.data_ptr() + np.roll(order, -1) * stride)
    return ring


def test_dependent_fma_takes_four_cycles():
    executed = _traced(_dependent_fma, 1, torch.zeros(32), 1.0, 1.0, REPEATS, B=32, num_warps=1)
    assert _cycles(A100, executed) / (64 * REPEATS) == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(("gpu", "expected"), [(A100, 2), (H100, 1)], ids=["a100", "h100"])
def test_throughput_of_independent_fma(gpu, expected):
    executed = _traced(_independent_fma, 1, torch.zeros(8 * 512), 1.0, 1.0, REPEATS, B=8 * 512, num_warps=16)
    per_sub_core = 8 * 32 * REPEATS * 16 / 4
    assert _cycles(gpu, executed) / per_sub_core == pytest.approx(expected, rel=0.1)


def test_latency_of_shuffles_and_exponentials():
    shuffles = _traced(_shuffles, 1, torch.zeros(32, dtype=torch.int32), REPEATS, B=32, num_warps=1)
    assert 23 <= _cycles(A100, shuffles) / (32 * REPEATS) <= 28
    exponentials = _traced(_exponentials, 1, torch.zeros(32), REPEATS, B=32, num_warps=1)
    assert 18 <= _cycles(A100, exponentials) / (32 * REPEATS) <= 28


def test_throughput_of_exponentials():
    executed = _traced(_exponentials, 1, torch.zeros(512), REPEATS, B=512, num_warps=16)
    assert _cycles(A100, executed) / (32 * REPEATS * 16 / 4) == pytest.approx(8, rel=0.1)


def test_throughput_of_shuffles():
    executed = _traced(_shuffles, 1, torch.zeros(8 * 512, dtype=torch.int32), REPEATS, B=8 * 512, num_warps=16)
    assert _cycles(A100, executed) / (8 * 32 * REPEATS * 16) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("size", "steps", "gpu", "low", "high"),
    [
        (8 << 10, 16 * 300, A100, 33, 45),
        (4 << 20, 16 * 64, A100, 200, 281),
        (64 << 20, 16 * 64, A100.replace(l2_warm=0), 390, 690),
    ],
    ids=["L1", "L2", "DRAM"],
)
def test_latency_of_memory(size, steps, gpu, low, high):
    ring, out = _ring(size, 128), torch.zeros(1, dtype=torch.int64)
    executed = _traced(_chase, 1, out, ring, steps // 16, num_warps=1)
    assert low <= _cycles(gpu, executed) / steps <= high


def test_bandwidth_of_a_copy():
    gpu, n = A100.replace(l2_warm=0), 4 << 20
    executed = _traced(_copy, 8 * gpu.sms, torch.zeros(n), torch.zeros(n), n, B=1024, num_warps=4)
    found = predict(gpu, executed.trace)
    assert found.dram_bytes == pytest.approx(4 * n, rel=0.02)  # all is read; L2 keeps most of what is written
    assert 1_000 <= found.dram_bytes / found.cycles * gpu.clock_mhz / 1e3 <= 1_555


def test_barrier_of_eight_warps():
    executed = _traced(_barriers, 1, torch.zeros(1, dtype=torch.int32), 100, num_warps=8)
    assert 20 <= _cycles(A100, executed) / 100 <= 40


def test_sum_of_several_warps_waits_at_barriers():
    one, several = (
        predict(A100, _traced(_sum, 1, torch.zeros(1), torch.ones(1024), B=1024, num_warps=warps).trace)
        for warps in (1, 8)
    )
    assert one.causes["barrier"] == 0 < several.causes["barrier"]


def test_prediction_executes_what_was_counted():
    executed = _traced(_sum, 3, torch.zeros(1), torch.ones(1024), B=1024, num_warps=4)
    found = predict(A100, executed.trace)
    assert found.instructions == executed.counts["instructions"]
    assert found.l1_sectors == executed.counts["load sectors"]
    assert sum(found.causes.values()) == pytest.approx(1)


def test_variations_differ():
    executed = _traced(_sum, 1, torch.zeros(1), torch.ones(1024), B=1024, num_warps=4)
    base = predict(A100, executed.trace).cycles
    for name in ("memory latency +30 %", "fixed latencies +30 %", "shared, shuffle, special +30 %", "cold L2"):
        assert predict(VARIATIONS[name](A100), executed.trace).cycles > base
    assert predict(VARIATIONS["memory latency -30 %"](A100), executed.trace).cycles < base


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "expected"),
    [(32, 0, 4, (16, 16)), (255, 0, 4, (2, 2)), (128, 0, 1, (16, 4)), (32, 60_000, 4, (2, 16)), (16, 0, 1, (32, 16))],
)
def test_occupancy(registers, shared_bytes, warps, expected):
    trace = _traced(_sum, 1, torch.zeros(1), torch.ones(1024), B=1024, num_warps=4).trace
    changed = dataclasses.replace(trace, registers=registers, shared_bytes=shared_bytes, warps=warps)
    found = occupancy(A100, changed)
    assert (found.programs_per_sm, found.warps_per_sub) == expected
    assert found.l1_bytes == (192 - (132 if shared_bytes else 0)) * 1024


def test_programs_that_do_not_fit_are_refused():
    trace = _traced(_sum, 1, torch.zeros(1), torch.ones(1024), B=1024, num_warps=4).trace
    with pytest.raises(ValueError, match="do not fit on an SM"):
        predict(A100, dataclasses.replace(trace, shared_bytes=200 * 1024))
