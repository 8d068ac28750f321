"""Fixtures shared by the tests of training."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.support.paths import ROOT
from tests.support.training_scenes import make_gaussians, make_views

TIMEOUT = 600
"""Seconds after which ranks are killed; they take about a minute on an idle machine."""


def run_ranks(folder, world_size, *jobs):
    """Runs jobs of ``tests.support.train_worker`` on several ranks."""
    command = [sys.executable, "-m", "tests.support.train_worker"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank), str(world_size), str(folder), *jobs], env=environment, cwd=ROOT)
        for rank in range(world_size)
    ]
    deadline = time.monotonic() + TIMEOUT
    try:
        for process in processes:
            process.wait(max(deadline - time.monotonic(), 0.1))
    finally:
        for process in processes:
            process.kill()
            process.wait()


class RankResults:
    """Results of training and of loading sharded checkpoints with different numbers of ranks."""

    def __init__(self, folder):
        self.folder = folder
        run_ranks(folder, 4, "train", "save", "load")
        run_ranks(folder, 2, "train", "load", "train_degree_zero")
        run_ranks(folder, 1, "train", "load")
        for world_size in (3, 5):
            run_ranks(folder, world_size, "load")

    def of(self, job, world_size):
        """The result of a job on each rank."""
        paths = [self.folder / f"{job}_{world_size}_{rank}.json" for rank in range(world_size)]
        results = [json.loads(path.read_text()) for path in paths]
        for result in results:
            assert not (isinstance(result, dict) and "error" in result), result["error"]
        return results


@pytest.fixture(scope="session")
def rank_results(tmp_path_factory):
    return RankResults(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def scene():
    """Gaussians and views of them."""
    gaussians = make_gaussians()
    return gaussians, make_views(gaussians)
