"""How runs start: extensions of a run, and the number of steps that fit into a time."""

import dataclasses
import functools
import json
import shutil

import pytest
import torch

from tests.training.runs.test_train import capture, configuration, results  # noqa: F401 - a fixture
from tsplat import ArgumentError
from tsplat.scene.formats.checkpoints import find_checkpoints
from tsplat.strategies import LongAxisStrategy, MCMCStrategy
from tsplat.training import RunConfig, preset, resume, train
from tsplat.training.runs import run_settings
from tsplat.training.runs import train as runs
from tsplat.training.trainer import Trainer


@pytest.fixture(autouse=True)
def _procedural_scene(capture, monkeypatch):  # noqa: F811
    monkeypatch.setattr(runs, "read_run_capture", lambda config, device, *_: capture.to(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_extension_moves_the_ends_of_schedules():
    config = RunConfig(steps=40, sh_degree=3, strategy=LongAxisStrategy(refine_start_iter=3, refine_stop_iter=30))
    longer = run_settings.extend(config, 100)
    assert longer == dataclasses.replace(
        config, steps=100, sh_interval=10, strategy=dataclasses.replace(config.strategy, refine_stop_iter=75)
    )
    with_end = MCMCStrategy(refine_stop_iter=31, noise_injection_stop_iter=20)
    found = run_settings.extend(dataclasses.replace(config, strategy=with_end), 60).strategy
    assert (found.refine_stop_iter, found.noise_injection_stop_iter) == (47, 30)
    assert run_settings.extend(RunConfig(steps=40), 41).strategy is None
    for steps in (40, 39):
        with pytest.raises(ArgumentError, match=rf"more than the 40 steps of the run, to extend it, found {steps}"):
            run_settings.extend(config, steps)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["default", "long-axis"])
def test_extended_run_is_resumed_bit_exactly(kind, tmp_path, capsys):
    config = configuration(kind)
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    resume(tmp_path / "whole", steps=40)
    assert "resumed from step_00000024: step 24 of 40" in capsys.readouterr().out
    resume(tmp_path / "cut", steps=40, stop_after=31)
    resume(tmp_path / "cut")
    tensors, figures, metrics = results(tmp_path / "whole")
    found = results(tmp_path / "cut")
    assert figures["trainer"]["step"] == metrics["steps"] == 40
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["steps"] == 40
    assert found[0].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[0][name], tensor), name
    assert found[1:] == (figures, metrics)


@pytest.mark.slow
def test_extended_run_that_is_killed_before_its_first_step_stays_extended(tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(RunConfig(steps=2, sh_degree=0), run)

    def killed(trainer):
        raise SystemExit

    with monkeypatch.context() as patches:
        patches.setattr(Trainer, "advance", killed)
        with pytest.raises(SystemExit):
            resume(run, steps=4)
    assert [path.name for path in find_checkpoints(run / "checkpoints")] == ["step_00000002", "step_00000002_2"]
    assert resume(run)["steps"] == 4


class Clock:
    """Time that passes only when a step is taken: 10 ms and 1 ms for each Gaussian."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        advance = Trainer.advance

        def timed(trainer):
            self.now += 0.01 + 0.001 * trainer.n_gaussians
            return advance(trainer)

        monkeypatch.setattr(Trainer, "advance", timed)
        monkeypatch.setattr(run_settings.time, "perf_counter", lambda: self.now)


@pytest.mark.long
def test_steps_fit_into_the_time(tmp_path, monkeypatch, capsys):
    Clock(monkeypatch)
    schedule = dict(refine_start_iter=2, refine_every=5)
    lengths = []

    def configure(steps):
        lengths.append(steps)
        strategy = LongAxisStrategy(growth=1.5, refine_stop_iter=steps, **schedule)
        return RunConfig(steps=steps, sh_degree=0, strategy=strategy)

    # 200 Gaussians become 300, so that a step takes 10 + 200 + 0.85 * 100 ms.
    metrics = train(configure, tmp_path / "timed", minutes=0.3)
    assert abs(metrics["steps"] - 0.3 * 60 / 0.295) <= 1
    assert f"{metrics['steps']} steps of about 295 ms fit into 0.3 minutes" in capsys.readouterr().out
    assert lengths[-1] == metrics["steps"]
    # The same bits as a run with this number of steps.
    train(configure(metrics["steps"]), tmp_path / "counted")
    (timed, *_), (counted, *_) = results(tmp_path / "timed"), results(tmp_path / "counted")
    assert all(torch.equal(timed[name], counted[name]) for name in counted)
    fixed = train(lambda steps: RunConfig(steps=steps, sh_degree=0), tmp_path / "fixed", minutes=0.1)
    assert abs(fixed["steps"] - 0.1 * 60 / 0.21) <= 1


def test_time_and_configuration_must_fit(tmp_path):
    for minutes in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="minutes: expected a positive number"):
            train(functools.partial(preset, "standard"), tmp_path, minutes=minutes)
    with pytest.raises(ArgumentError, match="adaptive"):
        train(functools.partial(preset, "adaptive"), tmp_path, minutes=1)
    for config, minutes in ((RunConfig(), 1), (functools.partial(preset, "standard"), None)):
        with pytest.raises(ArgumentError, match="config: expected settings or, with minutes"):
            train(config, tmp_path, minutes=minutes)
