"""Tests that random scenes with every lens and primitive are within the tolerance policy, and that bugs are not."""

import dataclasses
from unittest.mock import patch

import pytest
import torch

import tsplat
from tests.support.slow import slow_after
from tests.tools import fuzz_lenses

pytestmark = pytest.mark.triton


@pytest.mark.slow
@pytest.mark.parametrize("family", fuzz_lenses.FAMILIES)
def test_random_scene_is_within_the_tolerance_policy(family):
    """`python -m tests.tools.fuzz_lenses` runs more scenes."""
    assert 0 < fuzz_lenses.check(family, 3) <= 1


@pytest.mark.parametrize(("family", "seed"), slow_after(1, [("2dgs", 96), ("unscented", 442), ("eval3d", 160)]))
def test_scenes_that_once_were_not(family, seed):
    assert 0 < fuzz_lenses.check(family, seed) <= 1


@pytest.mark.parametrize("family", fuzz_lenses.FAMILIES)
def test_an_error_of_one_part_in_a_thousand_is_a_violation(family, monkeypatch):
    run = fuzz_lenses.run_kernels

    def wrong(*arguments):
        found = run(*arguments)
        return found | {"means": 1.001 * found["means"]}

    monkeypatch.setattr(fuzz_lenses, "run_kernels", wrong)
    monkeypatch.setattr(fuzz_lenses, "SAMPLES", 2)
    with pytest.raises(AssertionError, match="means: error"):
        fuzz_lenses.check(family, 3)


@pytest.mark.parametrize("family", fuzz_lenses.FAMILIES)
def test_an_image_with_nothing_in_it_is_a_violation(family):
    name = "rasterization_2dgs" if family == "2dgs" else "rasterization"
    rasterization = getattr(tsplat, name)

    def render_nothing(**arguments):
        return rasterization(**arguments | ({"far_plane": 0.011} if arguments["backend"] == "triton" else {}))

    with (
        patch.object(tsplat, name, render_nothing),
        pytest.raises(AssertionError, match=r"visible: .* decisions differ away from thresholds"),
    ):
        fuzz_lenses.check(family, 6)


@pytest.mark.parametrize("family", fuzz_lenses.FAMILIES)
def test_visible_gaussians_that_no_pixel_shows_are_a_violation(family, monkeypatch):
    """Only pixels at which alpha is well above 1/255 count."""
    decisions_of = fuzz_lenses.decisions_of

    def of_nothing(*arguments):
        found = decisions_of(*arguments)
        return dataclasses.replace(found, contributes=torch.zeros_like(found.contributes))

    monkeypatch.setattr(fuzz_lenses, "decisions_of", of_nothing)
    with pytest.raises(AssertionError, match=r"contributes: .* decisions differ away from thresholds"):
        fuzz_lenses.check(family, 6)
