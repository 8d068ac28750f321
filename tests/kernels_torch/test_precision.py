"""The torch backend in fp32 against the fp64 reference, and the share of pixels whose decisions differ."""

import pytest
import torch
from hypothesis import given, settings

from tests.support import scenes
from tests.support.closeness import assert_decisions, assert_run_fp32
from tests.support.slow import slow_after


@pytest.mark.slow
@settings(max_examples=60)
@given(scenes.structures(max_pixels=40, max_n=40), scenes.modes(), scenes.layouts())
def test_random_scenes_match_reference(structure, mode, layout):
    scene = scenes.make(structure, torch.float32)
    assert_run_fp32(scene, seed=structure.seed, backend="torch", **mode, **layout)


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
@pytest.mark.parametrize("rasterize_mode", ["classic", "antialiased"])
def test_crowded_scenes_match_reference(seed, rasterize_mode):
    """Many overlapping Gaussians, whose rounding errors accumulate."""
    structure = scenes.Structure(n=300, cameras=1, width=40, height=32, size=4.0, sh_degree=2, seed=seed)
    scene = scenes.make(structure, torch.float32)
    assert_run_fp32(scene, seed=seed, backend="torch", rasterize_mode=rasterize_mode, render_mode="RGB+ED")


@pytest.mark.slow
def test_decisions_differ_from_reference_only_near_thresholds():
    differing = pixels = 0
    for seed in range(12):
        structure = scenes.Structure(n=200, cameras=1, width=40, height=32, size=4.0, seed=seed)
        found = assert_decisions(scenes.make(structure, torch.float32), backend="torch")
        differing, pixels = differing + found[0], pixels + found[1]
    assert pixels > 0
    assert differing <= 0.005 * pixels
