"""Command line, machine and time per part of a run."""

import contextlib
import json
import sys
import time

import pytest
import torch

from tsplat import __version__
from tsplat.training.runs import sessions
from tsplat.training.runs.sessions import RunSession, read_sessions

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A function that lets time pass."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def test_parts_exclude_the_parts_inside_them(clock):
    session = RunSession()
    with session.measure("training"):
        clock(1)
        with session.measure("evaluation"):
            clock(10)
            with session.measure("saving"):
                clock(100)
        clock(2)
    clock(1000)
    with contextlib.suppress(KeyError), session.measure("saving"):
        clock(5)
        raise KeyError
    assert session.seconds == {"training": 3, "evaluation": 10, "saving": 105}


def test_sessions_of_a_resumed_run_are_kept(tmp_path, clock):
    first, second = RunSession(), RunSession()
    with first.measure("training"):
        clock(2)
        first.write(tmp_path, CPU)
    second.keep_earlier(tmp_path)
    with second.measure("training"):
        clock(3)
    for _ in range(2):
        second.write(tmp_path, CPU, ranks=2)
    sessions = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert [session["seconds"] for session in sessions] == [{"training": 2}, {"training": 3}]
    assert [session["machine"]["ranks"] for session in sessions] == [1, 2]
    assert sessions == read_sessions(tmp_path)


def test_machine_and_versions():
    (session,) = RunSession().sessions(CPU)
    assert session["software"]["torch"] == torch.__version__
    assert session["software"]["tsplat"] == __version__
    assert session["machine"]["device"] == "cpu"
    assert session["machine"]["gpu"] is None
    assert session["machine"]["cpu"]


def test_command_line_can_be_repeated_by_a_shell(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/venv/bin/tsplat", "train", "my scene", "--out", "a"])
    assert RunSession().sessions(CPU)[0]["command"] == "tsplat train 'my scene' --out a"
    monkeypatch.setattr(sys, "argv", ["script.py", "x"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "script.py", "x"])
    assert RunSession().sessions(CPU)[0]["command"] == "python script.py x"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sessions": 3}', '{"sessions": null}', "\xff"])
def test_damaged_files_have_no_sessions(text, tmp_path):
    assert read_sessions(tmp_path) == []
    (tmp_path / sessions.SESSIONS).write_bytes(text.encode("latin-1"))
    assert read_sessions(tmp_path) == []
