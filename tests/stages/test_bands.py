"""Bands: the horizontal strips of tiles into which a memory budget splits the rendering."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tsplat.data import Spans, TileGrid
from tsplat.stages import intersection, memory


@pytest.mark.parametrize("backend", BACKENDS)
def test_bands_give_the_same_bits(backend):
    scene = scenes.make(scenes.Structure(n=10, cameras=2, width=6, height=18, size=4.0, seed=2), torch.float32)
    whole, meta = run(scene, backend=backend, tile_size=4)
    split, meta_split = run(scene, backend=backend, tile_size=4, memory_budget=meta["memory"]["peak_bytes"] // 3)
    assert meta_split["memory"]["bands"] >= 3
    assert meta_split["memory"]["n_intersections"] == meta["memory"]["n_intersections"]
    assert all(torch.equal(whole[name], split[name]) for name in whole)


def test_meta_of_bands():
    scene = scenes.make(scenes.Structure(n=40, cameras=2, width=40, height=36, size=2.0, seed=3), torch.float32)
    whole, meta = run(scene, tile_size=4)
    figures = meta["memory"]
    assert figures["bands"] == 1
    assert figures["budget"] is None
    assert figures["n_intersections"] == meta["flatten_ids"].numel() == int(meta["tiles_per_gauss"].sum())
    split, meta = run(scene, tile_size=4, memory_budget=figures["peak_bytes"] // 3)
    assert meta["memory"]["bands"] >= 3
    assert meta["memory"]["n_intersections"] == figures["n_intersections"]
    assert meta["memory"]["peak_bytes"] <= meta["memory"]["budget"] == figures["peak_bytes"] // 3
    assert meta["flatten_ids"] is meta["isect_ids"] is meta["isect_offsets"] is meta["tiles_per_gauss"] is None
    assert all(torch.equal(whole[name], split[name]) for name in whole)


@pytest.mark.parametrize("n_intersections", [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40])
def test_numbers_of_intersections_around_32_bits_split_bands_or_raise(n_intersections, monkeypatch):
    """Only counts are this large: no memory is allocated."""
    found = []

    def find_spans(screen, grid, band, settings, budget):
        count = n_intersections * (band[1] - band[0]) // 8
        budget.admit(1, count)
        found.append(band)
        empty = torch.zeros(0, dtype=torch.int64)
        return Spans(empty, empty, empty, empty, torch.tensor([0, count]))

    monkeypatch.setattr(intersection, "find_spans", find_spans)
    monkeypatch.setattr(intersection, "list_intersections", lambda *arguments: None)
    budget = memory.MemoryBudget(torch.device("cpu"), 2**62, 40)

    def intersect():
        return intersection.BandedIntersections(None, TileGrid(2, 16, 1, 4), None, budget, lambda: "no cause")

    if n_intersections // 8 > memory.INDEX_MAX:
        with pytest.raises(tsplat.MemoryBudgetError, match=f"{n_intersections // 8:,} intersections"):
            intersect()
        return
    bands = intersect().bands
    assert budget.peak_bytes <= memory.INDEX_MAX * 104 + 32
    assert (len(bands) == 1) == (n_intersections <= memory.INDEX_MAX)
    assert bands == found
    assert [strip for first, end in bands for strip in range(first, end)] == list(range(8))
