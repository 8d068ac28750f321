"""Properties on the first cases of each, and on every case that once failed."""

import json

import pytest

from tests.support.paths import CASES
from tests.support.properties import PROPERTIES, Case, draw

SAVED = sorted(CASES.glob("*.json"))
SHARE = 10

IN_INTERPRETER = 2
"""Cases of each property that the interpreter has time for; their seeds follow those of the host."""


@pytest.mark.parametrize("part", range(SHARE))
@pytest.mark.parametrize("name", PROPERTIES)
def test_holds(name, part):
    rule = PROPERTIES[name]
    for seed in range(part, rule.in_tests, SHARE):
        rule.check(draw(seed), "torch")


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what kernels compute for lanes that are masked out
@pytest.mark.parametrize("name", PROPERTIES)
def test_holds_in_the_interpreter(name):
    rule = PROPERTIES[name]
    for seed in range(10_000, 10_000 + IN_INTERPRETER):
        rule.check(draw(seed, max_n=8, max_pixels=12), "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROPERTIES)
def test_holds_on_a_gpu(name):
    rule = PROPERTIES[name]
    for seed in range(20_000, 20_000 + rule.in_tests // 3):
        rule.check(draw(seed), "triton")


@pytest.mark.parametrize("path", SAVED, ids=lambda p: p.stem)
def test_what_once_failed_holds(path):
    saved = json.loads(path.read_text())
    PROPERTIES[saved["property"]].check(Case.from_json(saved["case"]), "torch")
