"""Rows that are packed with a capacity: visible ones first, by a prefix sum, or on a GPU for few rows without one."""

import pytest
import torch

pytest.importorskip("triton")

from emulator.package import tsplat_emulated
from tests.emulator.targets import each_target, needs_emulator
from tsplat.data import ProjectedGaussians
from tsplat.kernels import packed_rows

N = 600


def check():
    generator = torch.Generator().manual_seed(0)
    visible = torch.randint(0, 2, (N,), generator=generator, dtype=torch.int32)
    values = torch.randn(N, 3, generator=generator)
    rows = ProjectedGaussians(
        1, N, None, torch.randint(0, 9, (N, 2), dtype=torch.int32), values[:, :2].contiguous(),
        values[:, 0].contiguous(), values, None, values[:, 1].contiguous(),
    )  # fmt: skip
    n_visible = int(visible.sum())
    for capacity in (N + 1, n_visible + 5, n_visible, n_visible - 1):
        packed, n_rows = packed_rows.pack_rows(rows, visible, capacity), min(N, capacity)
        overflows = n_visible > capacity
        kept = torch.zeros_like(visible) if overflows else visible
        order = torch.cat([kept.nonzero(), (kept == 0).nonzero()])[:n_rows, 0]
        assert torch.equal(packed.dense_ids, order)
        assert torch.equal(packed.row_of, torch.where(kept != 0, kept.cumsum(0) - 1, -1).to(torch.int32))
        for name in ("radii", "means2d", "depths", "shapes", "opacities"):
            assert torch.equal(getattr(packed, name), getattr(rows, name)[order])
        assert packed.needed.tolist() == [0, 0, 0, 0, n_visible, int(overflows)]


@pytest.mark.triton
def test_rows_on_a_cpu():
    check()


@needs_emulator
@pytest.mark.triton
@each_target
def test_few_and_many_rows_on_emulated_gpus(target, code, monkeypatch):
    with tsplat_emulated(target, code):
        check()
        monkeypatch.setattr(packed_rows, "ONE_PROGRAM_MAX", 0)
        check()
