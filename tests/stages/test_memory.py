"""Memory: counted before it is taken, bands where it is short, and errors that say what the cause is."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.closeness import run
from tsplat.data import GaussianMajor, Pairs, TileGrid
from tsplat.stages import memory


def scene(n=40, **changes):
    structure = scenes.Structure(n=n, cameras=2, width=40, height=36, size=2.0, seed=3)
    return scenes.make(structure, torch.float32) | changes


def test_bands_have_the_same_bits_and_say_so():
    whole, meta = run(scene(), tile_size=4)
    figures = meta["memory"]
    assert figures["bands"] == 1
    assert figures["budget"] is None
    assert figures["pairs"] == meta["flatten_ids"].numel() == int(meta["tiles_per_gauss"].sum())
    parts, meta = run(scene(), tile_size=4, memory_budget=figures["peak_bytes"] // 3)
    assert meta["memory"]["bands"] >= 3
    assert meta["memory"]["pairs"] == figures["pairs"]
    assert meta["memory"]["peak_bytes"] <= meta["memory"]["budget"] == figures["peak_bytes"] // 3
    assert meta["flatten_ids"] is meta["isect_ids"] is meta["isect_offsets"] is meta["tiles_per_gauss"] is None
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_row_of_tiles_that_does_not_fit_is_an_error_with_its_cause():
    wrong = scene(scales=(scene()["scales"] + 4).exp())
    expected = r"in one row of tiles need [\d.]+ kB, budget 5 kB; scales: median scale .* exponentiated twice\?"
    with pytest.raises(tsplat.MemoryBudgetError, match=expected):
        run(wrong, tile_size=4, memory_budget=5_000)
    with pytest.raises(tsplat.MemoryBudgetError, match="; lower the resolution, or raise memory_budget"):
        run(scene(n=400), tile_size=4, memory_budget=2_000)


def test_the_default_budget_follows_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "UNQUESTIONED", 1_000)
    monkeypatch.setattr(memory, "free_memory", lambda device: 30_000)
    _, meta = run(scene(), tile_size=4)
    assert meta["memory"]["budget"] == int(memory.FREE_SHARE * 30_000)
    assert meta["memory"]["bands"] > 1


def test_free_memory_is_a_number_of_bytes():
    assert 2**20 < memory.free_memory(torch.device("cpu")) < 2**50


@pytest.mark.parametrize("n_pairs", [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40])
def test_counts_around_the_limits_of_32_bits_split_bands_or_raise(n_pairs):
    """Counts only: nothing of that size is made."""
    asked = []

    def list_band(band, admit):
        asked.append(band)
        admit(1, n_pairs * (band[1] - band[0]) // 8)
        empty = torch.zeros(0, dtype=torch.int64)
        return Pairs(0, empty, empty.int(), GaussianMajor(empty, empty, empty, empty))

    bands = memory.Bands(list_band, TileGrid(2, 16, 1, 4), torch.device("cpu"), 2**62, 40, lambda: "no cause")
    if n_pairs // 8 > memory.PAIRS_LIMIT:
        with pytest.raises(tsplat.MemoryBudgetError, match=f"{n_pairs // 8:,} intersections"):
            list(bands)
        return
    for _ in bands:
        pass
    assert bands.figures()["peak_bytes"] <= memory.PAIRS_LIMIT * 104 + 32
    assert (bands.n_bands == 1) == (n_pairs <= memory.PAIRS_LIMIT)
    done = [band for band in asked if n_pairs * (band[1] - band[0]) // 8 <= memory.PAIRS_LIMIT]
    assert [row for first, end in done for row in range(first, end)] == list(range(8))


def test_memory_budget_is_a_positive_number():
    with pytest.raises(tsplat.ArgumentError, match="memory_budget: expected a positive int, found 0"):
        tsplat.rasterization(**scene(), memory_budget=0)
