"""benchmarks/gpu.sh: all parts on an emulated GPU, and what it says when tests fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from tests.emulator.targets import needs_emulator
from tests.support.paths import ROOT

FAILING_PYTHON = """#!/bin/sh
case "$*" in
    *--collect-only*) echo test_a.py::test_b ;;
    "-m pytest"*) exit 1 ;;
    *) echo "$* tests=$TSPLAT_GPU_TESTS" >> "$OUT/calls" ;;
esac
"""


def gpu_script(out, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "EMULATE"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the script calls python
    environment = inherited | {"OUT": str(out), "PATH": path, "PYTHONPATH": str(ROOT)} | environment
    command = ["sh", str(ROOT / "benchmarks" / "gpu.sh"), "--emulated"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)


def last_lines(result):
    return dict(line.split(": ", 1) for line in result.stdout.splitlines()[-5:] if ": " in line)


@pytest.mark.long
@needs_emulator
def test_all_parts_run_on_the_emulator(tmp_path):
    result = gpu_script(tmp_path)
    said = last_lines(result)
    assert result.returncode == 0, result.stdout + result.stderr
    assert said["passed"] == "tests.1 run profile"
    assert said["failed"] == said["cut off"] == "none"
    assert "counts (hardware_counts: only the emulator's counts" in said["not run"]
    assert "1 passed" in (tmp_path / "tests.1.log").read_text()
    times = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert {record["scene"] for record in times} == {"40 at 32x24, 2 px", "dense-tile at 48x32"}
    (counts,) = [json.loads(line) for line in (tmp_path / "counts.jsonl").read_text().splitlines()]
    assert counts["emulated"]["_composite_fwd_kernel"]["warp_instructions"] > 0
    for record in (*times, counts):
        assert record["tests"] == "passed"
        assert record["triton"] and record["torch"] and record["commit"] and record["device"]
    assert "_CompositeBackward" in (tmp_path / "profile.txt").read_text()


def test_timings_do_not_count_if_tests_fail(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(FAILING_PYTHON)
    python.chmod(0o755)
    result = gpu_script(tmp_path, PATH=f"{python.parent}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert last_lines(result)["failed"] == "tests.1"
    assert "do not count: its tests did not pass" in result.stdout.splitlines()[-1]
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "benchmarks.run" in line]
    assert calls and all(line.endswith("tests=failed") for line in calls)


def test_report_leaves_out_records_that_do_not_count(tmp_path, monkeypatch):
    records = [
        {"device": "a", "p50": 1.0},
        {"device": "b", "p50": 1.0, "tests": "failed"},
        {"device": "c", "p50": 1.0, "tests": "passed"},
        {"device": "d", "peer": "gsplat"},
    ]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert list(report.read_measurements()) == ["a", "c"]
