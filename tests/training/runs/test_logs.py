"""Logs of TensorBoard, and of Weights & Biases, whose module is replaced."""

import os
import sys
import time
import types

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat.scene import procedural_capture
from tsplat.support.files import utf8_path
from tsplat.training import RunConfig, resume, train
from tsplat.training.history import History
from tsplat.training.observers import Progress, RunStart
from tsplat.training.runs import train as runs
from tsplat.training.runs.logs import TensorBoardLog


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", os.fsdecode(b"r\xffn")])
def test_metrics_of_every_tenth_step_are_logged(name, tmp_path):
    pytest.importorskip("tensorboard")
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


class FakeLog:
    def __init__(self, options):
        self.options, self.lines, self.finished = options, [], False
        self.id = options["id"] or "abc"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finished = True

    def log(self, metrics, step):
        self.lines.append((step, metrics))


@pytest.fixture
def capture(monkeypatch):
    """The capture of runs, which do not read one."""
    capture = procedural_capture(24, 18, 3, 1, 60)
    monkeypatch.setattr(runs, "read_run_capture", lambda config, device, *_: capture.to(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return capture


@pytest.mark.slow
def test_trackio_continues_the_log_of_a_resumed_run(tmp_path, monkeypatch, capture):
    logs = []

    class Log:
        def __init__(self, project, name, resume, config):
            self.options, self.lines, self.finished = (project, name, resume, config["steps"]), [], False

        def log(self, metrics, step=None):
            self.lines.append((step, metrics))

        def finish(self):
            self.finished = True

    module = types.ModuleType("trackio")
    module.init = lambda *, project, name, resume, config: logs.append(Log(project, name, resume, config)) or logs[-1]
    monkeypatch.setitem(sys.modules, "trackio", module)
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    run = tmp_path / "garden"
    train(RunConfig(steps=20, sh_degree=0, trackio=True, backend="torch"), run, stop_after=12)
    resume(run)
    assert [log.options for log in logs] == [("tsplat", "garden", "never", 20), ("tsplat", "garden", "allow", 20)]
    assert [log.finished for log in logs] == [True, True]
    assert [[step for step, _ in log.lines] for log in logs] == [[10], [20]]
    assert logs[1].lines[0][1]["train/gaussians"] == len(capture.points)


@pytest.mark.slow
def test_weights_and_biases_continues_the_log_of_a_resumed_run(tmp_path, monkeypatch, capture):
    logs = []
    module = types.ModuleType("wandb")
    module.init = lambda **options: logs.append(FakeLog(options)) or logs[-1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    run = tmp_path / "garden"
    train(RunConfig(steps=20, sh_degree=0, wandb=True, backend="torch"), run, stop_after=12)
    resume(run)
    assert [log.finished for log in logs] == [True, True]
    first, second = (log.options for log in logs)
    assert (first["project"], first["name"], first["dir"], first["id"]) == ("mine", "garden", run, None)
    assert first["config"]["steps"] == 20
    assert (second["id"], second["resume"]) == ("abc", "allow")
    assert [[step for step, _ in log.lines] for log in logs] == [[10], [20]]
    metrics = logs[1].lines[0][1]
    assert metrics["train/gaussians"] == len(capture.points)
    assert 0 < metrics["train/loss"] < 1 and metrics["train/psnr"] > 5
