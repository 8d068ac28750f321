"""Sorts of few values by one launch have the results of PyTorch's stable sort."""

import pytest
import torch

pytest.importorskip("triton")

from emulator.package import tsplat_emulated
from tests.emulator.targets import each_target, needs_emulator
from tsplat import kernels_torch
from tsplat.kernels import small_sorts

SIZES = [1, 31, 32, 33, 700]
N_TILES, BIAS = 40, 2**15


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
    monkeypatch.setattr(small_sorts, "GATHER_BLOCK", 256)


def check(n, dtype=torch.float32, key_dtype=torch.int16):
    generator = torch.Generator().manual_seed(n)
    values = torch.randint(-9, 99, (n,), generator=generator).to(dtype) / 8  # some are equal
    values[:: max(n // 3, 1)] = torch.tensor(float("inf"))
    values[n // 2 :: 7] = -0.0
    assert torch.equal(small_sorts.order_values(values), kernels_torch.order_values(values))
    first_key = -BIAS if key_dtype == torch.int16 else 0
    keys = (torch.randint(3, N_TILES + 1, (n,), generator=generator) + first_key).to(key_dtype)
    ids = torch.randint(0, 99, (n,), generator=generator, dtype=torch.int32)
    found = small_sorts.gather_tiles(keys, ids, N_TILES, first_key)
    for one, other in zip(found, kernels_torch.gather_tiles(keys, ids, N_TILES, first_key), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.triton
@pytest.mark.parametrize("key_dtype", [torch.int16, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", SIZES)
def test_sorts(n, dtype, key_dtype):
    check(n, dtype, key_dtype)


@pytest.mark.interpreter
def test_sorts_in_the_interpreter():
    check(33)


@needs_emulator
@pytest.mark.triton
@each_target
def test_sorts_on_emulated_gpus(target, code):
    with tsplat_emulated(target, code):
        for n in SIZES[-2:]:
            check(n)
        assert small_sorts.max_ordered(torch.empty(0)) == small_sorts.ORDERED_MAX
        assert small_sorts.max_gathered(torch.empty(0), small_sorts.GATHERED_TILES_MAX) == small_sorts.GATHERED_MAX
        assert small_sorts.max_gathered(torch.empty(0), small_sorts.GATHERED_TILES_MAX + 1) == 0


def test_a_cpu_sorts_by_numpy():
    assert small_sorts.max_ordered(torch.empty(0)) == small_sorts.max_gathered(torch.empty(0), 1) == 0
