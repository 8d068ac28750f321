"""TensorBoard logs."""

import os
import sys
import time

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat.support.files import utf8_path
from tsplat.training.history import History
from tsplat.training.observers import Progress, RunStart
from tsplat.training.runs.tensorboard import TensorBoardLog

pytest.importorskip("tensorboard")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", os.fsdecode(b"r\xffn")])
def test_metrics_of_every_tenth_step_are_logged(name, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not name.isascii() and sys.platform != "linux":
        pytest.skip("other systems only have names that are UTF-8")
    folder = tmp_path / name
    gaussians = make_gaussians()
    log = TensorBoardLog(folder)
    with log.during(RunStart(0, 100, time.perf_counter)):
        for step in range(1, 2 * History.EVERY + 2):
            log.after_step(Progress(step, 100, torch.tensor(0.5), torch.tensor(20.0), gaussians, len(gaussians), None))
    with utf8_path(folder) as path:
        events = EventAccumulator(str(path)).Reload()
        found = [(event.step, event.value) for event in events.Scalars("train/psnr")]
    assert found == [(History.EVERY, 20), (2 * History.EVERY, 20)]
