"""A mutant is caught by the tests, and all of them still apply to the code."""

import ast
import random

import pytest

from tests.tools.mutants import MUTANTS, ROOT, SURVIVED, judge

SAMPLED = random.Random(0).sample(MUTANTS, 1)


def statements_of(text):
    """The statements of a module, each with its lines."""
    lines = text.splitlines()
    return [(node, lines[node.lineno - 1 : node.end_lineno]) for node in ast.parse(text).body]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SAMPLED, ids=lambda m: m.name)
def test_mutant_is_caught(mutant):
    assert judge(mutant)[0] != SURVIVED


@pytest.mark.parametrize("path", sorted({mutant.path for mutant in MUTANTS}))
def test_mutants_apply(path, tmp_path):
    text = (ROOT / "tsplat" / path).read_text()
    before, copy = statements_of(text), tmp_path / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    for mutant in MUTANTS:
        if mutant.path != path:
            continue
        missing = [argument for argument in mutant.tests if "/" in argument and not (ROOT / argument).exists()]
        assert not missing, f"tests of {mutant.name} do not exist: {missing}"
        copy.write_text(text)
        mutant.apply(tmp_path)
        after = statements_of(copy.read_text())
        differ = [(one, other) for (one, lines), (other, others) in zip(before, after) if lines != others]
        # A replacement in a comment would be no bug.
        is_bug = len(before) != len(after) or any(ast.dump(one) != ast.dump(other) for one, other in differ)
        assert is_bug, mutant.name
