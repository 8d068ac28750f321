"""tsplat's kernels on the emulator: results, order, counts of a scene."""

import pytest
import torch

from tests.support import scenes
from tests.support.closeness import assert_run_fp32, run

from .counters import total
from .package import tsplat_emulated
from .targets import QUICK, SLOW

STRUCTURE = scenes.Structure(n=40, cameras=1, width=24, height=20, size=4.0, sh_degree=1, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "code"), QUICK + SLOW, ids="-".join)
def test_rasterization_matches_reference(target, code):
    with tsplat_emulated(target, code) as gpu:
        assert_run_fp32(scenes.make(STRUCTURE, torch.float32), backend="triton", render_mode="RGB+ED")
    assert total(gpu.counts)["instructions"] > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_order_of_programs_and_warps_does_not_change_bits(target):
    scene = scenes.make(STRUCTURE, torch.float32)
    results = []
    for options in ({}, {"order": "reverse"}, {"order": "random", "shuffle_warps": True, "seed": 3}):
        with tsplat_emulated(target, **options):
            results.append(run(scene, backend="triton")[0])
    for other in results[1:]:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(results[0].values(), other.values()))


@pytest.mark.slow
def test_instruction_counts_of_a_scene_repeat():
    counts = []
    for _ in range(2):
        with tsplat_emulated("cuda:80") as gpu:
            run(scenes.make(STRUCTURE, torch.float32), backend="triton")
        counts.append(gpu.counters)
    assert counts[0] == counts[1]
