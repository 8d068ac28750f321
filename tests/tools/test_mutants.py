"""A mutant is caught by the tests, and all of them still apply to the code."""

import ast
import functools
import random

import pytest

from tests.tools.mutants import MUTANTS, ROOT, is_caught

SAMPLED = random.Random(0).sample(MUTANTS, 1)


@functools.cache
def dump_of_package(path):
    return ast.dump(ast.parse((ROOT / "tsplat" / path).read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SAMPLED, ids=lambda m: m.name)
def test_mutant_is_caught(mutant):
    assert is_caught(mutant)[0]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_applies(mutant, tmp_path):
    missing = [argument for argument in mutant.tests if "/" in argument and not (ROOT / argument).exists()]
    assert not missing, f"tests of {mutant.name} do not exist: {missing}"
    copy = tmp_path / mutant.path
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text((ROOT / "tsplat" / mutant.path).read_text())
    mutant.apply(tmp_path)
    # A replacement in a comment or docstring would be no bug.
    assert ast.dump(ast.parse(copy.read_text())) != dump_of_package(mutant.path)
