"""Both strategies in a custom training loop."""

import runpy

import pytest

from tests.support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_documented_training_loop(strategy):
    names = runpy.run_path(str(DOCS / "custom_training_loop.py"))
    first, last, n = names["train"](strategy, steps=60)
    assert last > first + 1
    assert n > 300
