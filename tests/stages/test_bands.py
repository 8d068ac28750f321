"""Bands: the horizontal strips of tiles into which a memory budget splits the rendering."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tsplat import kernels_torch
from tsplat.config import PRESETS
from tsplat.data import IntersectionSettings, ScreenGaussians, Spans, TileGrid
from tsplat.runtime import memory
from tsplat.stages import intersection, listing


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


@pytest.mark.parametrize(
    "n_intersections", [2**28 - 1, 2**28, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40]
)
def test_numbers_of_intersections_around_32_bits_split_bands_or_raise(n_intersections, monkeypatch):
    """Only counts are this large: no memory is allocated."""
    found = []

    def find_spans(screen, grid, band, settings, budget, read_n_intersections):
        count = n_intersections * (band[1] - band[0]) // 8
        budget.admit(1, count)
        found.append(band)
        empty = torch.zeros(0, dtype=torch.int32)
        return Spans(*[empty] * 6, count)

    monkeypatch.setattr(intersection, "find_spans", find_spans)
    monkeypatch.setattr(intersection, "list_intersections", lambda *arguments: None)
    budget = memory.MemoryBudget(torch.device("cpu"), 2**62, 40)

    def intersect():
        return intersection.BandedIntersections(None, TileGrid(2, 16, 1, 4), None, budget, lambda: "no cause")

    if n_intersections // 8 > memory.INTERSECTIONS_MAX:
        with pytest.raises(tsplat.MemoryBudgetError, match=f"{n_intersections // 8:,} intersections"):
            intersect()
        return
    bands = intersect().bands
    assert budget.peak_bytes <= memory.INTERSECTIONS_MAX * 104 + 32
    assert (len(bands) == 1) == (n_intersections <= memory.INTERSECTIONS_MAX)
    assert bands == found
    assert [strip for first, end in bands for strip in range(first, end)] == list(range(8))


@pytest.mark.parametrize("counts", [[2**31 - 1], [2**30, 2**30 - 1], [2**31 - 1, 1], [2**30] * 4, [2**30] * 9], ids=sum)
@pytest.mark.parametrize("counted", ["spans", "intersections"])
def test_calls_without_a_budget_raise_if_32_bits_do_not_hold_counts(counted, counts, monkeypatch):
    counts = torch.tensor(counts, dtype=torch.int32)
    ids = torch.zeros(len(counts), dtype=torch.int32)

    def behind_zero(counts):
        return torch.cat([counts.new_zeros(1), counts])

    class Launchers:
        def max_unread_spans(*arguments):
            return 0

        def tile_rows(*arguments):
            return ids, ids, behind_zero(counts if counted == "spans" else torch.ones_like(counts))

        def tile_columns(*arguments):
            return ids, ids, behind_zero(torch.ones_like(counts) if counted == "spans" else counts)

        prefix_sums = kernels_torch.prefix_sums

    monkeypatch.setattr(listing, "launchers", lambda *arguments: Launchers)
    screen = ScreenGaussians(torch.zeros(len(counts), 2), *[None] * 3, ids, None)
    total = int(counts.sum())
    grid = TileGrid(1, 16, *((1, memory.INDEX_MAX) if counted == "spans" else (memory.INDEX_MAX, 1)))

    def find():
        return listing.find_spans(
            screen, grid, (0, grid.n_tile_rows), IntersectionSettings(PRESETS["gsplat-1.5"], "torch")
        )

    if total > memory.INDEX_MAX:
        with pytest.raises(tsplat.ArgumentError, match=f"means2d: {total:,} intersections are more than 32-bit"):
            find()
    else:
        spans = find()
        found = spans.span_starts if counted == "spans" else spans.isect_starts
        assert found.tolist() == [0, *counts.cumsum(0).tolist()]
