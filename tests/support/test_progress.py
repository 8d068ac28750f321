"""What is shown of work in stages."""

import re
import sys

import pytest

from tsplat.support.progress import stage_display, track


def run(stages=(("features", 9), ("matches", 400), ("nothing", 0))):
    with stage_display() as show:
        for stage, total in stages:
            for done in range(total + 1):
                show(stage, done, total)
                show(stage, done, total)


def test_a_few_lines_for_each_stage_where_there_is_no_terminal(capsys):
    run()
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"  \d+ s$", "", line) for line in lines] == [
        *(f"features  {done}/9" for done in (3, 5, 7, 9)),
        *(f"matches   {done}/400" for done in (100, 200, 300, 400)),
        "nothing   0/0",
    ]


def test_a_bar_for_each_stage_in_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    run()
    said = capsys.readouterr().out
    for words in ("features", "9/9", "matches", "400/400"):
        assert words in said
    assert len(said.splitlines()) < 100


def test_track_yields_items_and_prints_progress(capsys):
    assert list(track(iter("abc"), 3, "rendering")) == ["a", "b", "c"]
    assert capsys.readouterr().out.splitlines() == ["rendering 1/3", "rendering 2/3", "rendering 3/3"]
