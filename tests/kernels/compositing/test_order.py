"""Compositing kernels: the order of tiles does not change results."""

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_same_bits, run


@pytest.mark.triton
@pytest.mark.parametrize("banded", [False, True])
def test_order_of_tiles_does_not_change_bits(banded, monkeypatch):
    from tsplat.kernels import launch
    from tsplat.kernels.compositing import slots

    scene = scenes.make(scenes.Structure(n=10, cameras=2, width=12, height=11, size=2.0, seed=3), torch.float32)
    monkeypatch.setattr(launch, "GRAIN", 1)
    original = launch.longest_first
    runs = [[]]

    def recorded(*bounds):
        runs[-1].append(original(*bounds))
        return runs[-1][-1]

    monkeypatch.setattr(launch, "longest_first", recorded)  # for the forward pass
    monkeypatch.setattr(slots, "longest_first", recorded)
    results, budget = [], {}
    if banded:
        _, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D")
        budget = dict(memory_budget=meta["memory"]["peak_bytes"] // 2)
    for resident in (0, 10**6):
        monkeypatch.setattr(launch, "RESIDENT", resident)
        runs.append([])
        result, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D", **budget)
        assert (meta["memory"]["bands"] > 1) == banded
        results.append(result)
    *_, ordered, unordered = runs
    assert all(order is None for order in unordered)
    # At least one order is not the identity.
    assert any((order.diff() < 0).any() for order in ordered)
    assert_same_bits(*results)
