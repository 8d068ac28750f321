"""Metrics over steps, and the warning about a low PSNR."""

import torch

from tests.support.training_scenes import make_gaussians
from tsplat.training import History, Progress
from tsplat.training.history import PsnrMonitor

GAUSSIANS = make_gaussians(4)


def progress(step, steps, psnr):
    return Progress(step, steps, torch.tensor(0.5), torch.tensor(psnr), GAUSSIANS, len(GAUSSIANS))


def test_history_records_every_tenth_step_and_the_last():
    history = History()
    for step in range(1, 26):
        history.after_step(progress(step, 25, 20.0 + step))
    assert history.train_steps == [10, 20, 25]
    assert history.train_psnr == [30, 40, 45]


def test_low_psnr_is_reported_once():
    monitor = PsnrMonitor(400)
    warnings = [monitor.check(progress(step, 400, 25.0 if step < 200 else 12.0)) for step in range(1, 401)]
    (warning,) = filter(None, warnings)
    assert "since step 2" in warning
    assert "well below its best of 25.0 dB" in warning
    restored = PsnrMonitor(400)
    restored.restore(monitor.state())
    assert restored.state() == monitor.state()
