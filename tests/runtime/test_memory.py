"""Memory budgets: the default, the check before allocation, and the errors."""

import sys

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tsplat.runtime import memory


def scene(n=40, **changes):
    structure = scenes.Structure(n=n, cameras=2, width=40, height=36, size=2.0, seed=3)
    return scenes.make(structure, torch.float32) | changes


def test_band_over_budget_raises_with_likely_cause():
    wrong = scene(scales=(scene()["scales"] + 4).exp())
    expected = r"need [\d.]+ kB, budget 5 kB, in one row of tiles; scales: median scale .* was exp\(\) applied twice\?"
    with pytest.raises(tsplat.MemoryBudgetError, match=expected):
        run(wrong, tile_size=4, memory_budget=5_000)
    with pytest.raises(tsplat.MemoryBudgetError, match="; lower the resolution, or raise memory_budget"):
        run(scene(n=400), tile_size=4, memory_budget=2_000)


def test_error_counts_what_is_over_budget():
    budget = memory.MemoryBudget(torch.device("cpu"), 5_000, 0)
    with pytest.raises(memory.OverBudgetError, match=r"^1,000 spans of tile rows need 32 kB, budget 5 kB"):
        budget.admit(1_000, 0)
    with pytest.raises(memory.OverBudgetError, match=r"^200 intersections need 13.1 kB, budget 5 kB"):
        budget.admit(10, 200)


def test_default_budget_is_a_share_of_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "UNCHECKED_BYTES", 1_000)
    monkeypatch.setattr(memory, "free_memory", lambda device: 30_000)
    _, meta = run(scene(), tile_size=4)
    assert meta["memory"]["budget"] == int(memory.FREE_SHARE * 30_000)
    assert meta["memory"]["bands"] > 1


def test_free_memory_is_in_bytes():
    assert 2**20 < memory.free_memory(torch.device("cpu")) < 2**50


def test_memory_that_the_system_does_not_tell_is_no_limit(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    assert 2**20 < memory.free_memory(torch.device("cpu")) < 2**50
    monkeypatch.delattr("os.sysconf")  # as on Windows
    assert memory.free_memory(torch.device("cpu")) == sys.maxsize


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
def test_images_beyond_the_free_memory_raise(backend):
    message = r"width: images of 1000000×1000000 with 3 channels each need 20 TB of memory, .* free; render smaller"
    with pytest.raises(tsplat.MemoryBudgetError, match=message):
        tsplat.rasterization(**scene(width=10**6, height=10**6), backend=backend)


def test_memory_of_all_images(monkeypatch):
    """Colors, alphas and transmittances, 4 bytes each; fewer bytes than `UNCHECKED_BYTES_MAX` are not looked up."""
    splats = dict(means2d=torch.rand(2, 5, 2), conics=torch.rand(2, 5, 3), colors=torch.rand(2, 5, 3))
    lists = torch.zeros(2, 3, 3).int(), torch.zeros(0).int()

    def render():
        return tsplat.rasterize_to_pixels(**splats, opacities=torch.rand(2, 5), image_width=40, image_height=36,
                                          tile_size=16, isect_offsets=lists[0], flatten_ids=lists[1])  # fmt: skip

    needed = 2 * 40 * 36 * 5 * 4
    monkeypatch.setattr(memory, "free_memory", lambda device: needed - 1)
    for call in (render, lambda: tsplat.rasterization(**scene())):
        monkeypatch.setattr(memory, "UNCHECKED_BYTES_MAX", needed)
        call()
        monkeypatch.setattr(memory, "UNCHECKED_BYTES_MAX", needed - 1)
        with pytest.raises(
            tsplat.MemoryBudgetError, match=r"width: 2 images .* 57.6 kB are free; render fewer cameras"
        ):
            call()


def test_tiles_beyond_the_free_memory_raise():
    screen = torch.rand(1, 5, 2), torch.ones(1, 5, 2).int(), torch.rand(1, 5)
    for call in (
        lambda: tsplat.isect_tiles(*screen, 4, 10**7, 10**7),
        lambda: tsplat.isect_offset_encode(torch.zeros(0).long(), 1, 10**7, 10**7),
    ):
        with pytest.raises(tsplat.MemoryBudgetError, match=r"tile_width: 100,000,000,000,000 tiles need 1.6e.03 TB"):
            call()


def test_invalid_memory_budget_raises():
    with pytest.raises(tsplat.ArgumentError, match="memory_budget: expected a positive int, found 0"):
        tsplat.rasterization(**scene(), memory_budget=0)
