"""Random scenes of every lens and primitive are within the tolerance policy, and a bug would not be."""

import pytest

from tests.support.slow import slow_after
from tests.tools import fuzz_lenses

pytestmark = pytest.mark.triton


@pytest.mark.slow
@pytest.mark.parametrize("family", fuzz_lenses.FAMILIES)
def test_random_scene_is_within_the_tolerance_policy(family):
    """`python -m tests.tools.fuzz_lenses` tries more."""
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
