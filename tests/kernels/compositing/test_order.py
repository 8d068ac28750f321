"""Compositing kernels: the order of tiles does not change results."""

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_same_bits, run


@pytest.mark.triton
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("banded", [False, True])
def test_order_of_tiles_does_not_change_bits(banded, gpu, monkeypatch):
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing import part_lists, slots, tuning

    if gpu:  # lists are cut and ordered as on a GPU, and each part has a program of its own
        for module in (part_lists, slots):
            monkeypatch.setattr(module, "is_compiled_for_cpu", lambda tensor: False)
        monkeypatch.setattr(compositing, "part_shape", lambda *_: tuning.PartShape(4, 2, 2))
    scene = scenes.make(scenes.Structure(n=10, cameras=2, width=12, height=11, size=2.0, seed=3), torch.float32)
    monkeypatch.setattr(tuning, "LENGTH_STEP", 1)
    original = compositing.list_parts
    runs = [[]]

    def recorded(*arguments, **options):
        found = original(*arguments, **options)
        runs[-1].append(found.launch_order)
        return found

    monkeypatch.setattr(compositing, "list_parts", recorded)
    results, budget = [], {}
    if gpu:
        budget["channel_chunk"] = 31  # memory by intersection is kept for options
    if banded:
        _, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D", **budget)
        budget["memory_budget"] = meta["memory"]["peak_bytes"] // 2
    for resident in (0, 10**6):
        monkeypatch.setattr(tuning, "RESIDENT", resident)
        runs.append([])
        result, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D", **budget)
        assert (meta["memory"]["bands"] > 1) == banded
        results.append(result)
    *_, ordered, unordered = runs
    assert all(order is None for order in unordered)
    # At least one order is not the identity.
    assert any((order.diff() < 0).any() for order in ordered)
    assert_same_bits(*results)
