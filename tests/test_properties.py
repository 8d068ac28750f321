"""Properties of rasterization on random cases, and on saved cases that once failed."""

import json

import pytest

from tests.support.cases import Case, draw, draw_for_tests
from tests.support.paths import CASES
from tests.support.properties import PROPERTIES

SAVED = sorted(CASES.glob("*.json"))
PARTS = [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 10))]
"""Parts of the cases of each property; the first runs in `make quick`."""


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name, part):
    rule = PROPERTIES[name]
    for seed in range(part, rule.in_tests, len(PARTS)):
        rule.check(draw_for_tests(seed), "triton")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_property_in_torch(name):
    rule = PROPERTIES[name]
    for seed in range(10_000, 10_000 + rule.in_tests // 4):
        rule.check(draw(seed), "torch")


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("name", PROPERTIES)
def test_property_on_gpu(name, part):
    rule = PROPERTIES[name]
    for seed in range(20_000 + part, 20_000 + rule.in_tests // 3, 10):
        rule.check(draw(seed), "triton")


@pytest.mark.parametrize("path", SAVED, ids=lambda p: p.stem)
def test_saved_case(path):
    saved = json.loads(path.read_text())
    PROPERTIES[saved["property"]].check(Case.from_json(saved["case"]), "torch")
