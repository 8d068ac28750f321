"""Bands: the horizontal strips of tiles into which a memory budget splits the rendering."""

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.backends import BACKENDS
from tests.support.closeness import run
from tsplat.data import GaussianMajor, Pairs, TileGrid
from tsplat.stages import memory


@pytest.mark.parametrize("backend", BACKENDS)
def test_bands_give_the_same_bits(backend):
    scene = scenes.make(scenes.Structure(n=10, cameras=2, width=6, height=18, size=4.0, seed=2), torch.float32)
    whole, meta = run(scene, backend=backend, tile_size=4)
    split, meta_split = run(scene, backend=backend, tile_size=4, memory_budget=meta["memory"]["peak_bytes"] // 3)
    assert meta_split["memory"]["bands"] >= 3
    assert meta_split["memory"]["pairs"] == meta["memory"]["pairs"]
    assert all(torch.equal(whole[name], split[name]) for name in whole)


def test_meta_of_bands():
    scene = scenes.make(scenes.Structure(n=40, cameras=2, width=40, height=36, size=2.0, seed=3), torch.float32)
    whole, meta = run(scene, tile_size=4)
    figures = meta["memory"]
    assert figures["bands"] == 1
    assert figures["budget"] is None
    assert figures["pairs"] == meta["flatten_ids"].numel() == int(meta["tiles_per_gauss"].sum())
    split, meta = run(scene, tile_size=4, memory_budget=figures["peak_bytes"] // 3)
    assert meta["memory"]["bands"] >= 3
    assert meta["memory"]["pairs"] == figures["pairs"]
    assert meta["memory"]["peak_bytes"] <= meta["memory"]["budget"] == figures["peak_bytes"] // 3
    assert meta["flatten_ids"] is meta["isect_ids"] is meta["isect_offsets"] is meta["tiles_per_gauss"] is None
    assert all(torch.equal(whole[name], split[name]) for name in whole)


@pytest.mark.parametrize("n_intersections", [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40])
def test_numbers_of_intersections_around_32_bits_split_bands_or_raise(n_intersections):
    """Only counts are this large: no memory is allocated."""
    listed = []

    def list_band(band, admit):
        listed.append(band)
        admit(1, n_intersections * (band[1] - band[0]) // 8)
        empty = torch.zeros(0, dtype=torch.int64)
        return Pairs(0, empty, empty.int(), GaussianMajor(empty, empty, empty, empty))

    bands = memory.Bands(list_band, TileGrid(2, 16, 1, 4), torch.device("cpu"), 2**62, 40, lambda: "no cause")
    if n_intersections // 8 > memory.PAIRS_LIMIT:
        with pytest.raises(tsplat.MemoryBudgetError, match=f"{n_intersections // 8:,} intersections"):
            list(bands)
        return
    for _ in bands:
        pass
    assert bands.figures()["peak_bytes"] <= memory.PAIRS_LIMIT * 104 + 32
    assert (bands.n_bands == 1) == (n_intersections <= memory.PAIRS_LIMIT)
    done = [band for band in listed if n_intersections * (band[1] - band[0]) // 8 <= memory.PAIRS_LIMIT]
    assert [strip for first, end in done for strip in range(first, end)] == list(range(8))
