"""What a process did before does not change what a call gives; `python -m tests.tools.call_sequences` tries more."""

import pytest
import torch

from tsplat.runtime.backend import choose

pytestmark = [
    pytest.mark.triton,
    pytest.mark.long,
    pytest.mark.skipif(choose(torch.device("cpu"))[0] != "triton", reason="needs kernels that are compiled for a CPU"),
]

CODE = """
import sys
from tests.tools.call_sequences import main
sys.exit(main([*sys.argv[1:], "--jobs", "1", "--no-compile"]))
"""


def test_sequences_of_calls_are_equal_to_fresh_processes(forks):
    done = forks.run(CODE, "--count", 4, "--seed", 0, timeout=600)
    assert done.returncode == 0 and "4 sequences from seed 0, 0 differ" in done.stdout, done.stdout + done.stderr
