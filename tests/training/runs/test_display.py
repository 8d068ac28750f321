"""The live progress display."""

import dataclasses
import io
import sys

import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tsplat.scene import MissingExtraError
from tsplat.training import Progress
from tsplat.training.runs.display import progress_display

GAUSSIANS = make_gaussians(3)


def progress_of_steps(last, first=1):
    for step in range(first, last + 1):
        yield Progress(step, last, torch.tensor(0.125), torch.tensor(20.0), GAUSSIANS, len(GAUSSIANS))


def test_without_a_terminal_a_few_lines_are_printed(capsys):
    with progress_display(200) as show:
        for progress in progress_of_steps(200):
            show(progress)
    lines = capsys.readouterr().out.splitlines()
    assert 8 <= len(lines) <= 12
    assert lines[-1].startswith("step 200/200  loss 0.1250  PSNR 20.00 dB")
    assert "3 Gaussians" in lines[0]
    assert "steps/s" in lines[0]
    assert "GiB" in lines[0]


def test_speed_is_that_of_the_given_clock(capsys):
    now = [0.0]
    with progress_display(200, clock=lambda: now[0]) as show:
        for progress in progress_of_steps(200):
            now[0] += 0.25
            show(progress)
    assert all("  4.0 steps/s  " in line for line in capsys.readouterr().out.splitlines())


def test_slow_steps_are_all_shown_with_seconds_per_step(monkeypatch):
    terminal = use_terminal(monkeypatch)
    now = [0.0]
    monkeypatch.setattr("tsplat.training.runs.display.time.perf_counter", lambda: now[0])
    with progress_display(200) as show:
        for progress in progress_of_steps(7):
            now[0] += 40
            show(dataclasses.replace(progress, steps=200))
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
    with progress_display(30_000, start=29_970) as show:
        for progress in progress_of_steps(30_000, first=29_971):
            show(progress)
    for text in ("30000/30000", "0:00:00", "loss 0.1250  PSNR 20.00 dB  3 Gaussians", "steps/s", "GiB"):
        assert text in terminal.getvalue()


def test_bar_needs_rich(monkeypatch):
    use_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingExtraError, match="rich"), progress_display(30):
        pass
