"""Tests of progress displays."""

import re
import sys

import pytest

from tsplat.support import progress
from tsplat.support.progress import reported, stage_display, track


def run_stages(stages=(("features", 9), ("matches", 400), ("nothing", 0))):
    with stage_display() as show:
        for stage, total in stages:
            for done in range(total + 1):
                show(stage, done, total)
                show(stage, done, total)


def test_stage_display_prints_lines_without_a_terminal(capsys):
    run_stages()
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"  \d+ s$", "", line) for line in lines] == [
        *(f"features  {done}/9" for done in (3, 5, 7, 9)),
        *(f"matches   {done}/400" for done in (100, 200, 300, 400)),
        "nothing   0/0",
    ]


def test_stage_display_shows_bars_in_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    run_stages()
    printed = capsys.readouterr().out
    for words in ("features", "9/9", "matches", "400/400"):
        assert words in printed
    assert len(printed.splitlines()) < 100


def test_track_yields_values_and_prints_progress(capsys):
    assert list(track(iter("abc"), 3, "rendering")) == ["a", "b", "c"]
    assert capsys.readouterr().out.splitlines() == ["rendering 1/3", "rendering 2/3", "rendering 3/3"]


@pytest.mark.parametrize("delay", [0.0, 1e9])
def test_what_is_read_is_a_stage_once_it_is_slow(capsys, monkeypatch, delay):
    monkeypatch.setattr(progress, "STEP_DELAY", delay)
    assert list(reported("abcd", 4, "points")) == [*"abcd"]
    assert capsys.readouterr().out == ""  # no display
    with stage_display() as show:
        assert list(reported("abcd", 4, "points")) == [*"abcd"]
        show("reading", 1, 1)
    words = [" ".join(line.split()[:2]) for line in capsys.readouterr().out.splitlines()]
    assert words == [*(f"points {done}/4" for done in (1, 2, 3, 4) if not delay), "reading 1/1"]
