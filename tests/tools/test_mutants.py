"""A few of the seeded bugs of `make mutants` in every run, and that all of them still fit the code."""

import ast
import random

import pytest

from tests.tools.mutants import MUTANTS, ROOT, is_caught

SAMPLED = random.Random(0).sample(MUTANTS, 10)


@pytest.mark.parametrize("mutant", SAMPLED, ids=lambda m: m.name)
def test_is_caught(mutant):
    assert is_caught(mutant)[0]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_fits_the_code(mutant, tmp_path):
    copy = tmp_path / mutant.path
    copy.parent.mkdir(exist_ok=True)
    before = (ROOT / "tsplat" / mutant.path).read_text()
    copy.write_text(before)
    mutant.apply(tmp_path)
    assert ast.dump(ast.parse(copy.read_text())) != ast.dump(ast.parse(before))
