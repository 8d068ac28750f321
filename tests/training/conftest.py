"""Fixtures shared by the tests of training."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.training_scenes import make_gaussians, make_views

TIMEOUT = 600
"""Seconds after which ranks are killed; they take about a minute on an idle machine."""

GROUPS = (
    "1:train,train_sizes",
    "4:train,train_sizes,save,load,train_selected",
    "2:train,load,train_with_capacity,train_selected_with_capacity,train_degree_zero,train_sizes,"
    "train_timed_and_extended,run_within_shards,train_selected",
    "1:load,train_timed_and_extended",
    "3:load",
    "5:load",
)


def run_groups(folder, *groups):
    """Runs jobs of ``tests.support.train_worker`` on groups of ranks."""
    command = [sys.executable, "-m", "tests.support.train_worker", str(folder), *groups]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True) as process:
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


class RankResults:
    """Results of training and of loading sharded checkpoints with different numbers of ranks."""

    def __init__(self, folder):
        self.folder = folder
        run_groups(folder, *GROUPS)

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
