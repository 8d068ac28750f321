"""Tests of docs/reliability.md, the page with results of long runs."""

import json

from tests.tools import scoreboard

RECORD = {"tried": 300, "violations": 0, "worst": 0.5, "seed": 1, "machine": "this one", "date": "2026-01-01"}


def test_page_is_up_to_date():
    records = json.loads(scoreboard.RESULTS.read_text())
    assert scoreboard.PAGE.read_text() == scoreboard.page(records), "run python -m tests.tools.scoreboard"


def test_what_did_not_run_is_listed():
    rows = scoreboard.page({"random scenes against fp64 (sm_80-ptx)": RECORD}).splitlines()
    name, ran = "random scenes against fp64", "NVIDIA PTX sm_80, emulated"
    assert f"| {name} | {ran} | 300 | 0 | 0.50 | 1 | this one | 2026-01-01 |" in rows
    for label in scoreboard.PLATFORMS.values():
        if label != ran:
            assert f"| {name} | {label} | not run | | | | | |" in rows
        others = [row for row in rows if row.startswith(f"| special values | {label} | not run |")]
        assert len(others) == ("emulated" not in label)
