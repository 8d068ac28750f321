"""Chunks of long lists, and sums of slots, compiled for the CPU."""

import dataclasses
import itertools
import math
import os

import pytest
import torch

import tsplat
from tests.support import scenes
from tests.support.cases import draw, draw_for_tests
from tests.support.closeness import assert_run_fp32, assert_same_bits, compare, run, run_reference
from tests.support.slow import slow_after
from tsplat import reference
from tsplat.passes import replay_cache

pytestmark = pytest.mark.triton

CASES = int(os.environ.get("TSPLAT_CHUNK_CASES", "10"))
SEED = int(os.environ.get("TSPLAT_CHUNK_SEED", "0"))
EXACT = 1e-12
UNCUT = 2**30


DENSE = scenes.Structure(n=40, cameras=2, width=14, height=11, size=5.0, seed=4)
OPTIONS = {
    "tile of 4": dict(tile_size=4),
    "tile of 8, depth, absgrad": dict(tile_size=8, render_mode="RGB+ED", absgrad=True, packed=False),
    "depth only": dict(tile_size=8, render_mode="D"),
    "passes of two channels": dict(tile_size=8, channel_chunk=2, render_mode="RGB+D"),
}


def _assert_exact(scene, **options):
    found, meta = run(scene, backend="triton", **options)
    truth, _ = run_reference(scene, **options)
    for name, expected in truth.items():
        compare(name, found[name], expected, EXACT)
    if options.get("absgrad"):
        _, expected = run(scene, backend="torch", **options)
        compare("absgrad", meta["means2d"].absgrad, expected["means2d"].absgrad, EXACT)
    return found, meta


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("chunk", slow_after(1, [3, 2, 16]))
def test_chunks_match_reference(chunk, options, cut_lists):
    counts = cut_lists(chunk)
    _assert_exact(scenes.make(DENSE), **options)
    assert counts[-1] > 0


@pytest.mark.parametrize("channels", slow_after(1, [9, 1, 8, 16, 19]))
def test_numbers_of_channels_in_chunks_match_reference(channels, cut_lists):
    counts = cut_lists(3)
    structure = scenes.Structure(n=30, cameras=1, channels=channels, width=10, height=9, size=5.0, seed=channels)
    _assert_exact(scenes.make(structure), tile_size=8, render_mode="RGB+ED", absgrad=True)
    assert counts[-1] > 0


@pytest.mark.parametrize(("chunk", "channels"), slow_after(1, [(3, 3), (2, 3), (16, 3), (3, 16)]))
def test_bands_of_chunks_give_the_same_bits(chunk, channels, cut_lists):
    counts = cut_lists(chunk)
    scene = scenes.make(dataclasses.replace(DENSE, channels=channels))
    options = dict(tile_size=4, render_mode="RGB+D", absgrad=True)
    whole, meta = _assert_exact(scene, **options)
    split, meta_split = run(scene, backend="triton", memory_budget=meta["memory"]["peak_bytes"] // 3, **options)
    assert meta_split["memory"]["bands"] >= 3
    assert min(counts) > 0
    assert_same_bits(whole, split)


def _stack(n, n_before):
    """n flat Gaussians over an image of 8 x 8 pixels; behind the first n_before of alpha 0.02, all have alpha 0.8."""
    generator = torch.Generator().manual_seed(n_before)
    inputs = dict(
        means2d=4.0 + 0.5 * torch.randn(1, n, 2, generator=generator, dtype=torch.float64),
        conics=torch.tensor([1e-4, 2e-5, 1e-4], dtype=torch.float64).repeat(1, n, 1),
        opacities=torch.full((1, n), 0.8, dtype=torch.float64),
        colors=torch.rand(1, n, 3, generator=generator, dtype=torch.float64),
        backgrounds=torch.rand(1, 3, generator=generator, dtype=torch.float64),
    )
    inputs["opacities"][:, :n_before] = 0.02
    return inputs


STOPS = [*itertools.product([2, 3, 16], [27], range(6)), (20, 64, 25), (20, 64, 35)]
"""Entries of a chunk, Gaussians, and how many of them come before those that make all pixels stop."""


@pytest.mark.parametrize(("chunk", "n", "n_before"), STOPS)
@pytest.mark.parametrize("masked", [False, True])
def test_pixels_that_stop_match_reference(chunk, n, n_before, masked, cut_lists):
    """All pixels stop after ``n_before`` + 5 of n Gaussians: inside of a chunk, or where one ends.

    With masks, every other tile of 4 x 4 pixels is not shown.
    """
    counts = cut_lists(chunk)
    inputs = _stack(n, n_before)
    tile_size = 4 if masked else 8
    tiles = (8 // tile_size) ** 2
    shown = torch.arange(tiles) % 2 == 0
    results = []
    for which in ("triton", "reference"):
        leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
        order = torch.arange(n)
        if which == "reference":
            truth = reference.composite(
                leaves["means2d"], leaves["conics"], leaves["opacities"], leaves["colors"], leaves["backgrounds"],
                order[None], torch.ones(1, n, dtype=torch.bool), 8, 8,
            )  # fmt: skip
            colors, alphas = truth.colors, truth.alphas[..., None]
            if masked:
                pixels = shown.view(2, 2).repeat_interleave(4, 0).repeat_interleave(4, 1)[None, ..., None]
                colors = torch.where(pixels, colors, leaves["backgrounds"][:, None, None])
                alphas = torch.where(pixels, alphas, 0.0)
        else:
            colors, alphas = tsplat.rasterize_to_pixels(
                image_width=8, image_height=8, tile_size=tile_size, flatten_ids=order.int().repeat(tiles),
                isect_offsets=(n * torch.arange(tiles)).int().view(1, 8 // tile_size, -1), backend=which,
                masks=shown.view(1, 8 // tile_size, -1) if masked else None, **leaves,
            )  # fmt: skip
        images = (colors, alphas)
        gradients = torch.autograd.grad(images, list(leaves.values()), scenes.random_like(images, 0))
        results.append((*images, *gradients))
    assert results[1][1].max() > 0.999
    assert not results[1][4][0, n_before + 5 :].any()
    assert counts[-1] > 0
    for name, found, expected in zip(("colors", "alphas", *inputs), *results):
        compare(name, found, expected, EXACT)


@pytest.mark.parametrize("channels", [3, 17])
def test_chunks_behind_the_last_gaussian_of_all_pixels_may_hold_nan(channels, cut_lists):
    """With many channels, a chunk without weights still multiplies them by features."""
    counts = cut_lists(3)
    inputs = _stack(27, 2)
    inputs["colors"] = torch.rand(1, 27, channels, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs["backgrounds"] = torch.ones(1, channels, dtype=torch.float64)
    results = []
    for hidden in (0.5, math.nan):
        inputs["colors"][:, 9:] = hidden
        leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
        images = tsplat.rasterize_to_pixels(
            image_width=8, image_height=8, tile_size=8, flatten_ids=torch.arange(27).int(),
            isect_offsets=torch.zeros(1, 1, 1).int(), backend="triton", **leaves,
        )  # fmt: skip
        results.append((*images, *torch.autograd.grad(images, list(leaves.values()), scenes.random_like(images, 0))))
    assert min(counts) > 0
    for expected, found in zip(*results, strict=True):
        assert expected.isfinite().all()
        assert torch.equal(expected, found)


@pytest.mark.long
@pytest.mark.parametrize("chunk", [2, 3])
def test_random_chunks_in_fp32_match_reference(chunk, cut_lists):
    counts, n_cut = cut_lists(chunk), 0
    for seed in range(SEED + chunk, SEED + chunk + CASES, 2):
        case = draw(seed) if SEED else draw_for_tests(seed)
        counts.clear()
        scene = scenes.make(case.structure, torch.float32)
        assert_run_fp32(scene, case.seed, **case.mode, **case.layout, backend="triton")
        n_cut += max(counts) > 0
    assert n_cut > 0


@pytest.mark.parametrize("chunk", slow_after(1, [3, UNCUT]))
def test_sums_of_large_and_small_gaussians_do_not_depend_on_bands(chunk, cut_lists, monkeypatch):
    from tsplat.kernels import compositing
    from tsplat.kernels.compositing.footprints.interface import LARGE

    cut_lists(chunk)
    found, original = [], compositing.sum_slots

    def recorded(slots, layer, order, large, *rest, **options):
        found.append(large.clone())
        original(slots, layer, order, large, *rest, **options)

    monkeypatch.setattr(compositing, "sum_slots", recorded)
    structure = scenes.Structure(n=30, cameras=2, channels=9, width=45, height=37, size=1.5, seed=8)
    scene = scenes.make(structure, torch.float32)
    scene["scales"][::3] *= 10
    scene["scales"][1::3] *= 3
    options = dict(tile_size=4, render_mode="RGB+D", absgrad=True, backend="triton")
    whole, meta = run(scene, **options)
    tiles = meta["tiles_per_gauss"]
    assert (found[0][tiles > LARGE.value]).all(), "a Gaussian on many tiles is not large"
    assert 0 < found[0].sum() < found[0].numel()
    found.clear()
    split, meta = run(scene, memory_budget=meta["memory"]["peak_bytes"] // 4, **options)
    assert len(found) == meta["memory"]["bands"] >= 4
    assert_same_bits(whole, split)
    assert_run_fp32(scene, **options)


@pytest.mark.parametrize(("tile_size", "channels"), slow_after(1, [(8, 3), (16, 3), (16, 17)]))
def test_parts_with_slots_of_their_own_give_the_same_gradients(tile_size, channels, monkeypatch):
    from tsplat.kernels.compositing import slot_sums, slots

    structure = scenes.Structure(n=30, cameras=2, channels=channels, width=21, height=19, size=4.0, seed=5)
    scene = scenes.make(structure)
    options = dict(tile_size=tile_size, render_mode="RGB+D", absgrad=True)
    used, assign = [], slots._entries
    monkeypatch.setattr(slots, "_entries", lambda *arguments: used.append(True) or assign(*arguments))
    shared, _ = _assert_exact(scene, **options)
    assert not used
    for module in (slots, slot_sums):
        monkeypatch.setattr(module, "is_compiled_for_cpu", lambda tensor: False)
    replay_cache.clear_caches()
    own, _ = _assert_exact(scene, **options)
    assert used
    for name, expected in shared.items():
        compare(name, own[name], expected, EXACT)
