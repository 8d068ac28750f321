"""Memory budgets: the default, the check before allocation, and the errors."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import run
from tsplat.stages import memory


def scene(n=40, **changes):
    structure = scenes.Structure(n=n, cameras=2, width=40, height=36, size=2.0, seed=3)
    return scenes.make(structure, torch.float32) | changes


def test_band_over_budget_raises_with_likely_cause():
    wrong = scene(scales=(scene()["scales"] + 4).exp())
    expected = r"in one row of tiles need [\d.]+ kB, budget 5 kB; scales: median scale .* was exp\(\) applied twice\?"
    with pytest.raises(tsplat.MemoryBudgetError, match=expected):
        run(wrong, tile_size=4, memory_budget=5_000)
    with pytest.raises(tsplat.MemoryBudgetError, match="; lower the resolution, or raise memory_budget"):
        run(scene(n=400), tile_size=4, memory_budget=2_000)


def test_default_budget_is_a_share_of_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "UNCHECKED_BYTES", 1_000)
    monkeypatch.setattr(memory, "free_memory", lambda device: 30_000)
    _, meta = run(scene(), tile_size=4)
    assert meta["memory"]["budget"] == int(memory.FREE_SHARE * 30_000)
    assert meta["memory"]["bands"] > 1


def test_free_memory_is_in_bytes():
    assert 2**20 < memory.free_memory(torch.device("cpu")) < 2**50


def test_invalid_memory_budget_raises():
    with pytest.raises(tsplat.ArgumentError, match="memory_budget: expected a positive int, found 0"):
        tsplat.rasterization(**scene(), memory_budget=0)
