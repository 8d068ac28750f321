"""Metrics over steps, and the warning about a low PSNR."""

import dataclasses
import json
import math

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat.training import History, Progress
from tsplat.training.history import PsnrMonitor

GAUSSIANS = make_gaussians(4)


def progress(step, steps, psnr, loss=0.5):
    return Progress(step, steps, torch.tensor(loss), torch.tensor(psnr), GAUSSIANS, len(GAUSSIANS))


def test_history_records_every_tenth_step_and_the_last():
    history = History()
    for step in range(1, 26):
        history.after_step(progress(step, 25, 20.0 + step))
    assert history.train_steps == [10, 20, 25]
    assert history.train_psnr == [30, 40, 45]


@pytest.mark.parametrize(("loss", "psnr"), [(math.nan, math.nan), (math.inf, 10.0)])
def test_checkpoints_can_hold_what_follows_a_loss_that_is_not_finite(loss, psnr):
    history, monitor = History(), PsnrMonitor(40)
    for step in (10, 20, 30):
        found = progress(step, 40, psnr, loss) if step == 20 else progress(step, 40, 25.0)
        history.after_step(found)
        assert monitor.check(found) is None
    json.dumps([dataclasses.asdict(history), monitor.state()], allow_nan=False)
    assert history.train_steps == [10, 30] and history.train_psnr == [25, 25]
    assert monitor.state()["smoothed"] == 25


def test_low_psnr_is_reported_once():
    monitor = PsnrMonitor(400)
    warnings = [monitor.check(progress(step, 400, 25.0 if step < 200 else 12.0)) for step in range(1, 401)]
    (warning,) = filter(None, warnings)
    assert "since step 2" in warning
    assert "well below its best of 25.0 dB" in warning
    restored = PsnrMonitor(400)
    restored.restore(monitor.state())
    assert restored.state() == monitor.state()
