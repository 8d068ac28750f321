"""Tests that the tests catch a mutant, and that all mutants still apply to the code."""

import ast
import random

import pytest

from tests.tools.mutants import MUTANTS, ROOT, SURVIVED, judge

SAMPLED = random.Random(0).sample(MUTANTS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SAMPLED, ids=lambda m: m.name)
def test_mutant_is_caught(mutant):
    assert judge(mutant)[0] != SURVIVED


@pytest.mark.parametrize("path", sorted({mutant.path for mutant in MUTANTS}))
def test_mutants_apply(path, tmp_path):
    text = (ROOT / "tsplat" / path).read_text()
    lines = text.splitlines()
    # First lines of the module's statements, including decorators. Only statements that a mutant changes are parsed
    # again.
    starts = [min(n.lineno for n in (s, *getattr(s, "decorator_list", ()))) - 1 for s in ast.parse(text).body]
    copy = tmp_path / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    for mutant in MUTANTS:
        if mutant.path != path:
            continue
        missing = [argument for argument in mutant.tests if "/" in argument and not (ROOT / argument).exists()]
        assert not missing, f"tests of {mutant.name} do not exist: {missing}"
        copy.write_text(text)
        mutant.apply(tmp_path)
        changed = copy.read_text().splitlines()
        same = next(i for i, (one, other) in enumerate(zip(lines, changed)) if one != other)
        start = max(line for line in starts if line <= same)
        end = min((line for line in starts if line > same + mutant.old.count("\n")), default=len(lines))
        before, after = lines[start:end], changed[start : end + len(changed) - len(lines)]
        # A replacement in a comment would not be a bug.
        assert len({ast.dump(ast.parse("\n".join(part))) for part in (before, after)}) == 2, mutant.name
