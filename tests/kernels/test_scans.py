"""Prefix sums of one and of several sections, and lists that do not fit."""

import pytest
import torch

pytest.importorskip("triton")

from emulator.package import tsplat_emulated
from tests.emulator.targets import each_target, needs_emulator
from tsplat import kernels_torch
from tsplat.data import N_NEEDED, Limit
from tsplat.kernels import scans
from tsplat.kernels.scans import prefix_sums

LENGTHS = [1, 17, 1024, 1025, 2600]


@pytest.fixture(autouse=True)
def _short_sections(monkeypatch):
    """Sections of 1,024 elements, of which a program adds 512 at a time, or 16 on a CPU."""
    monkeypatch.setattr(scans, "SECTION", 1024)
    monkeypatch.setattr(scans, "ONE_PROGRAM_MAX", 1024)
    monkeypatch.setattr(scans, "BLOCK", 512)


def check_sums(n, dtype=torch.int32):
    lengths = torch.randint(0, 9, (n,), dtype=torch.int32, generator=torch.Generator().manual_seed(n))
    sums = lengths.cumsum(0, dtype=dtype)
    found = prefix_sums(lengths, dtype)
    assert found.dtype == dtype and torch.equal(found, sums)
    total = int(sums[-1])
    for capacity, fits in ((total, 1), (total - 1, 0)):
        for resets in (0, 1):
            bitmasks, needed = torch.arange(n, dtype=torch.int32), torch.full((N_NEEDED,), resets)
            limited = prefix_sums(lengths, limit=Limit(needed, 2, capacity, 4, resets), bitmasks=bitmasks)
            assert torch.equal(limited, fits * sums.to(torch.int32))
            assert torch.equal(bitmasks, fits * torch.arange(n, dtype=torch.int32))
            assert needed.tolist() == [0, 0, -(-total // 4), 0, 0, 1 - fits]


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("n", LENGTHS)
def test_sums(n, dtype):
    check_sums(n, dtype)


@pytest.mark.interpreter
def test_sums_in_the_interpreter():
    check_sums(1025)


@needs_emulator
@pytest.mark.triton
@each_target
def test_sums_on_emulated_gpus(target, code):
    with tsplat_emulated(target, code):
        for n in LENGTHS[-2:]:
            check_sums(n)


@pytest.mark.triton
@pytest.mark.parametrize("n", [1024, 1025, 4096, 4097])
def test_one_program_sums_up_to_four_sections(n, monkeypatch):
    monkeypatch.setattr(scans, "ONE_PROGRAM_MAX", 4096)
    check_sums(n)


@pytest.mark.triton
def test_larger_sums_wrap_as_int32_and_not_as_int64():
    lengths = torch.full((3,), 2**30, dtype=torch.int32)
    assert prefix_sums(lengths, torch.int64)[-1] == 3 * 2**30
    assert prefix_sums(lengths)[-1] == 3 * 2**30 - 2**32
    assert kernels_torch.prefix_sums(lengths)[-1] == 3 * 2**30 - 2**32


def test_no_lengths():
    assert prefix_sums(torch.empty(0, dtype=torch.int32)).shape == (0,)


@pytest.mark.triton
def test_what_is_needed_is_the_most_of_several_passes():
    needed = torch.zeros(N_NEEDED, dtype=torch.int64)
    for total in (3, 7, 5):
        prefix_sums(torch.tensor([total], dtype=torch.int32), limit=Limit(needed, 3, 7))
    assert needed.tolist() == [0, 0, 0, 7, 0, 0]
