"""Ways of compositing that must not show: the order of tiles."""

import pytest
import torch

from tests import scenes
from tests.closeness import run

pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")


def _offsets(counts):
    return torch.tensor([0, *counts]).cumsum(0)


def test_longest_lists_come_first(monkeypatch):
    launch = pytest.importorskip("tsplat.kernels.launch", reason="needs Triton")
    monkeypatch.setattr(launch, "RESIDENT", 3)
    monkeypatch.setattr(launch, "GRAIN", 10)
    # Lengths within a grain keep the order of tiles.
    order = launch.longest_first(_offsets([5, 31, 0, 200, 39, 9, 10]))
    assert order.tolist() == [3, 1, 4, 6, 0, 2, 5]
    # Beyond what 16 bits can tell apart, all are equally long.
    assert launch.longest_first(_offsets([2**40, 1, 2**20, 2**41])).tolist() == [0, 2, 3, 1]
    assert launch.longest_first(_offsets([1, 2, 3])) is None


@pytest.mark.interpreter
@pytest.mark.parametrize("banded", [False, True])
def test_order_of_tiles_leaves_every_bit(banded, monkeypatch):
    from tsplat.kernels import compositing, launch

    scene = scenes.make(scenes.Structure(n=12, cameras=2, width=20, height=11, size=2.0, seed=3), torch.float32)
    monkeypatch.setattr(launch, "GRAIN", 1)
    kept = launch.longest_first
    orders = []

    def noted(isect_offsets):
        orders.append(kept(isect_offsets))
        return orders[-1]

    monkeypatch.setattr(compositing, "longest_first", noted)
    results, budget = [], {}
    if banded:
        _, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D")
        budget = dict(memory_budget=meta["memory"]["peak_bytes"] // 2)
        orders.clear()
    for resident in (0, 10**6):
        monkeypatch.setattr(launch, "RESIDENT", resident)
        result, meta = run(scene, backend="triton", tile_size=4, absgrad=True, render_mode="RGB+D", **budget)
        assert (meta["memory"]["bands"] > 1) == banded
        results.append(result)
    n_orders = len(orders) // 2
    assert all(order is None for order in orders[n_orders:])
    # The order is one that changes something.
    assert any((order.diff() < 0).any() for order in orders[:n_orders])
    for name, tensor in results[0].items():
        assert tensor is results[1][name] is None or torch.equal(tensor, results[1][name]), name
