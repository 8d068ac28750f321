"""Traces say what each warp did: which instructions, and which sectors they accessed."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from emulator.emulation import emulated


@triton.jit
def _copy(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


class _Keep:
    """Keeps all launches. Tensors lie one megabyte apart."""

    def __init__(self):
        self.addresses, self.launches = [], []

    def base(self, memory):
        if memory.address not in self.addresses:
            self.addresses.append(memory.address)
        return self.addresses.index(memory.address) << 20

    def traces(self, launch):
        return True

    def executed(self, program, launch, counts, raw):
        self.launches.append((program, launch, counts, raw))


def _accesses(words):
    """Yields (kind, lanes, bank passes, sectors) of each memory instruction."""
    while len(words):
        header, count = int(words[0]), int(words[0]) & 255
        yield header >> 16 & 15, (header >> 20 & 31) + 1, header >> 8 & 255, words[1 : 1 + count].tolist()
        words = words[1 + count :]


def _traced(n, programs, warps):
    keep, x, y = _Keep(), torch.zeros(n), torch.zeros(n)
    with emulated("cuda:80", "sass") as gpu:
        gpu.machine.tracer = keep
        _copy[(programs,)](x, y, n, B=32 * warps, num_warps=warps)
    ((program, launch, counts, raw),) = keep.launches
    return program, launch, counts, raw


def test_runs_hold_every_instruction():
    program, launch, counts, raw = _traced(200, 4, 2)
    assert launch.module == __name__
    issued = np.zeros(len(program.statements), np.uint64)
    for run in raw.runs.tolist():
        issued[run >> 16 : (run >> 16) + (run & 0xFFFF)] += np.uint64(1)
    assert np.array_equal(issued, counts["issued"])


def test_sectors_of_each_warp():
    _, _, _, raw = _traced(200, 4, 2)
    assert raw.index.shape == (8, 4)
    for warp, (_, _, first, count) in enumerate(raw.index.tolist()):
        lanes = min(max(200 - 32 * warp, 0), 32)
        sectors = list(range(4 * warp, 4 * warp + lanes // 8))
        found = list(_accesses(raw.accesses[first : first + count]))
        if lanes:
            assert found == [(1, lanes, 0, sectors), (1, lanes, 0, [s + (1 << 15) for s in sectors])]
        else:
            assert all(kind == 0 and not sectors for kind, _, _, sectors in found)


@triton.jit(do_not_specialize=["n"])
def _barriers(y, n):
    for _ in range(n):
        tl.debug_barrier()
    tl.store(y, n)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_barriers_that_are_not_reached_are_left_out(n):
    keep = _Keep()
    with emulated("cuda:80", "sass") as gpu:
        gpu.machine.tracer = keep
        _barriers[(1,)](torch.zeros(1, dtype=torch.int32), n, num_warps=2)
    ((program, _, counts, raw),) = keep.launches
    executed = [row for run in raw.runs.tolist() for row in range(run >> 16, (run >> 16) + (run & 0xFFFF))]
    assert sum("BAR.SYNC" in program.statements[row] for row in executed) == 2 * n
    assert len(executed) <= counts["issued"].sum()


@triton.jit
def _sum(x, y, B: tl.constexpr):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, B))))


def test_passes_over_shared_memory():
    keep = _Keep()
    with emulated("cuda:80", "sass") as gpu:
        gpu.machine.tracer = keep
        _sum[(1,)](torch.ones(256), torch.zeros(1), B=256, num_warps=4)
    (counters,) = gpu.counters.values()
    ((_, _, _, raw),) = keep.launches
    shared = [entry for entry in _accesses(raw.accesses) if entry[0] == 2]
    assert shared and sum(passes for _, _, passes, _ in shared) == counters["bank passes"]
