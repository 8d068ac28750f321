"""The pytest plugin runs tests marked `gpu` on the emulator, and fails them for what the emulator finds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTY_TEST = """
import pytest, torch, triton, triton.language as tl

@triton.jit
def stores_past_the_end(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0, mask=tl.arange(0, B) <= n)

@pytest.mark.gpu
def test_faulty():
    stores_past_the_end[(1,)](torch.zeros(100), 100, B=128)
"""


def emulated_pytest(*arguments):
    """Runs tests with the plugin on sm_80 in a process of their own; returns the output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "EMULATE"))}
    command = [sys.executable, "-m", "pytest", "-p", "tests.emulator.plugin", "-p", "no:cacheprovider", *arguments]
    environment |= {"EMULATE": "sm_80", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    return result.stdout + result.stderr


@pytest.mark.long
def test_gpu_tests_run_on_the_emulator_and_findings_fail_them(tmp_path):
    (tmp_path / "test_faulty.py").write_text(FAULTY_TEST)
    chosen = "test_faulty or (test_numbers_of_channels_match_reference and 3 and not 32)"
    output = emulated_pytest(
        "-c", str(ROOT / "pyproject.toml"), "tests/kernels/test_gpu.py", str(tmp_path / "test_faulty.py"), "-k", chosen
    )
    assert re.search(" 2 passed, .* 1 error in ", output), output  # what is found is an error of the teardown
    executed = re.search(r"emulated sm_80: (\d+) launches, ([\d,]+) warp instructions", output)
    assert executed and int(executed[1]) > 10 and int(executed[2].replace(",", "")) > 100_000, output

    assert "EmulationError: stores_past_the_end: out of bounds (1x) at test_faulty.py:6" in output, output
