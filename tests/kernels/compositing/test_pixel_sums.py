"""Sums over the lanes of a warp, on an emulated NVIDIA GPU."""

import pytest
import torch
import triton
import triton.language as tl

from emulator.emulation import emulated
from emulator.package import tsplat_emulated
from tests.emulator.targets import needs_emulator
from tests.support import scenes
from tests.support.closeness import assert_run_fp32
from tsplat.kernels.compositing import tuning
from tsplat.kernels.compositing.pixel_sums import SUMS_MAX, column_of_lane, fold

pytestmark = needs_emulator


@triton.jit
def _fold_kernel(values, sums, columns, firsts, N: tl.constexpr):
    lane = tl.arange(0, 32)
    loaded = ()
    for k in tl.static_range(N):
        loaded = loaded + (tl.load(values + k * 32 + lane),)  # noqa: RUF005 (Triton cannot unpack tuples)
    column, is_first = column_of_lane(N)
    tl.store(sums + lane, fold(loaded))
    tl.store(columns + lane, column)
    tl.store(firsts + lane, is_first.to(tl.int32))


@pytest.mark.parametrize("n", range(1, SUMS_MAX + 1))
def test_fold_sums_each_value_over_32_lanes(n):
    values = torch.randint(-1000, 1000, (n, 32), generator=torch.manual_seed(n)).float()
    sums, columns, firsts = torch.empty(32), torch.empty(32, dtype=torch.int32), torch.empty(32, dtype=torch.int32)
    with emulated("cuda:80"):
        _fold_kernel[(1,)](values, sums, columns, firsts, N=n, num_warps=1)
    columns = columns.tolist()
    assert sums.tolist() == values.sum(1)[columns].tolist()
    assert sorted(column for column, first in zip(columns, firsts.tolist()) if first) == list(range(n))
    assert all(first == (columns.index(column) == lane) for lane, (column, first) in enumerate(zip(columns, firsts)))


@pytest.mark.long
@pytest.mark.parametrize(("width", "height", "chunk"), [(8, 4, 1024), (16, 8, 1024), (8, 8, 3)])
def test_folded_gradients_match_reference(width, height, chunk, monkeypatch):
    """Parts of one to four blocks of 32 pixels."""
    from tsplat.kernels import compositing

    shape = tuning.PartShape(width, height, chunk)
    monkeypatch.setattr(compositing, "part_shape", lambda *arguments: shape)
    scene = scenes.make(scenes.Structure(n=14, cameras=1, width=21, height=13, size=4.0, seed=3), torch.float32)
    with tsplat_emulated("cuda:80"):
        assert_run_fp32(scene, backend="triton", tile_size=16, absgrad=True, render_mode="RGB+D")
