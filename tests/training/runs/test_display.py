"""The live progress display."""

import dataclasses
import io
import sys
import time
import types

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat.scene import MissingExtraError
from tsplat.training import Progress, RunStart
from tsplat.training.runs.logs import ProgressDisplay

GAUSSIANS = make_gaussians(3)


def progress_of_steps(last, first=1):
    for step in range(first, last + 1):
        yield Progress(step, last, torch.tensor(0.125), torch.tensor(20.0), GAUSSIANS, len(GAUSSIANS))


def show_steps(steps, start=RunStart(0, 200, time.perf_counter)):  # noqa: B008 - immutable
    display = ProgressDisplay()
    with display.during(start):
        for progress in steps:
            display.after_step(progress)


def test_without_a_terminal_a_few_lines_are_printed(capsys):
    show_steps(progress_of_steps(200))
    lines = capsys.readouterr().out.splitlines()
    assert 8 <= len(lines) <= 12
    assert lines[-1].startswith("step 200/200  loss 0.1250  PSNR 20.00 dB")
    assert "3 Gaussians" in lines[0]
    assert lines[0].endswith(" GiB"), "the first step compiles kernels, and tells nothing about the others"
    assert all("steps/s" in line and line.endswith(" left") for line in lines[1:])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_long_runs_print_a_line_every_minute_and_on_a_cpu_a_hint(device, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("tsplat.training.runs.logs.time.perf_counter", lambda: now[0])
    display = ProgressDisplay()
    gaussians = types.SimpleNamespace(means=torch.empty(0, device=device))
    with display.during(RunStart(0, 1000, lambda: now[0])):
        for progress in progress_of_steps(21):
            now[0] += 30
            display.after_step(dataclasses.replace(progress, steps=1000, gaussians=gaussians))
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("step")]
    assert [line.split()[1] for line in steps] == [f"{step}/1000" for step in range(1, 22, 2)]
    assert steps[-1].endswith("  8 h 09 min left")
    hints = [i for i, line in enumerate(lines) if "--downscale" in line]
    assert hints == ([2] if device == "cpu" else [])


def test_the_share_of_waiting_for_images_is_shown(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("tsplat.training.runs.logs.time.perf_counter", lambda: now[0])
    display = ProgressDisplay()
    with display.during(RunStart(0, 2, lambda: now[0])):
        for progress, waited in zip(progress_of_steps(2), (3.0, 3.5)):
            now[0] += 10
            display.after_step(dataclasses.replace(progress, waited=waited))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[4] for line in lines] == ["30.0% waiting for images", "5.0% waiting for images"]


def test_speed_is_that_of_the_given_clock(capsys):
    now = [0.0]
    display = ProgressDisplay()
    with display.during(RunStart(0, 200, lambda: now[0])):
        for progress in progress_of_steps(200):
            now[0] += 0.25
            display.after_step(progress)
    assert all("  4.0 steps/s  " in line for line in capsys.readouterr().out.splitlines()[1:])


def test_slow_steps_are_all_shown_with_seconds_per_step(monkeypatch):
    terminal = use_terminal(monkeypatch)
    now = [0.0]
    monkeypatch.setattr("tsplat.training.runs.logs.time.perf_counter", lambda: now[0])
    display = ProgressDisplay()
    with display.during(RunStart(0, 200, lambda: now[0])):
        for progress in progress_of_steps(7):
            now[0] += 40
            display.after_step(dataclasses.replace(progress, steps=200))
    assert "40.0 s/step" in terminal.getvalue()
    assert "0.0 steps/s" not in terminal.getvalue()
    assert "7/200" in terminal.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch):
    # Not a fixture, as pytest replaces stdout after fixtures ran.
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return terminal


def test_in_a_terminal_a_bar_is_shown(monkeypatch):
    terminal = use_terminal(monkeypatch)
    show_steps(progress_of_steps(30_000, first=29_971), RunStart(29_970, 30_000, time.perf_counter))
    for text in ("30000/30000", "0:00:00", "loss 0.1250  PSNR 20.00 dB  3 Gaussians", "steps/s", "GiB"):
        assert text in terminal.getvalue()


def test_bar_needs_rich(monkeypatch):
    use_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingExtraError, match="rich"):
        show_steps([])
