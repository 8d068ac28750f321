"""Heartbeats; failing ranks are tested with the launcher."""

import json
import threading
from types import SimpleNamespace

import pytest
import torch

from tsplat.errors import PeerError
from tsplat.runtime.process_group import RankGroup
from tsplat.support.process_identity import describe_process
from tsplat.training.processes import heartbeat as heartbeats
from tsplat.training.processes.heartbeat import EXIT_PEER, INTERVAL, TIMEOUT, heartbeat


@pytest.mark.slow
def test_single_process_needs_no_heartbeat():
    n_threads = threading.active_count()
    with heartbeat(RankGroup()):
        assert threading.active_count() == n_threads


class Job:
    """The store, the event and the clock of the monitor of rank 0 of two, by a script.

    The script yields, for each round of the monitor, for how many seconds it waits, and by how much the count of
    rank 1 has grown.
    """

    def __init__(self, script):
        self.script, self.now, self.count, self.ended = iter(script), 0.0, 0, False

    def wait(self, interval):
        assert interval == INTERVAL
        seconds, beats = next(self.script, (None, 0))
        self.ended = seconds is None
        self.now += seconds or 0
        self.count += beats
        return self.ended

    def is_set(self):
        return self.ended

    def monotonic(self):
        return self.now

    def add(self, name, amount):
        return self.count if name == "1" else amount

    def get(self, name):
        return json.dumps(describe_process() | {"pid": 2**22 + 1})


def exit_status(monkeypatch, script):
    """The status with which the monitor ends its process; None if the script ends before."""
    job = Job(script)

    def leave(status):
        raise SystemExit(status)

    monkeypatch.setattr(heartbeats, "time", job)
    monkeypatch.setattr(heartbeats.os, "_exit", leave)
    try:
        heartbeats._monitor(job, SimpleNamespace(rank=0, world_size=2), job)
    except SystemExit as end:
        return end.code
    return None


AWAKE, STOPPED = (INTERVAL, 1), (INTERVAL, 0)
ROUNDS = int(TIMEOUT / INTERVAL)


@pytest.mark.parametrize(
    "script",
    [
        [AWAKE] * 40,
        [AWAKE, (3600, 0), AWAKE],  # all ranks stop for an hour
        [AWAKE, (3600, 0), *[STOPPED] * ROUNDS, AWAKE],  # the other one wakes later
        [*[STOPPED] * ROUNDS, (3600, 0), *[STOPPED] * ROUNDS, AWAKE],  # and stopped earlier
        [*[STOPPED] * (ROUNDS // 2), (TIMEOUT / 2 - 1, 0), AWAKE],  # a busy machine
    ],
)
def test_suspended_ranks_live_on(script, monkeypatch):
    assert exit_status(monkeypatch, script) is None


@pytest.mark.parametrize(
    "script",
    [
        [AWAKE, *[STOPPED] * (ROUNDS + 1)],
        [AWAKE, (3600, 0), *[STOPPED] * (ROUNDS + 1)],
        [(TIMEOUT / 3, 0)] * 4,  # a busy machine
    ],
)
def test_dead_rank_ends_the_others(script, monkeypatch, capsys):
    assert exit_status(monkeypatch, script) == EXIT_PEER
    assert "rank 0 exits: no heartbeat from rank 1 for 20 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "is_killed"),
    [({}, True), ({"ids": "pid:[1]"}, False), ({"machine": "other"}, False), ({"ticks": 1}, False)],
)
def test_only_the_process_of_a_dead_rank_is_killed(changes, is_killed, monkeypatch):
    """In another container, another process may have its id, or it has ended, and a later one has it."""
    process, killed = describe_process() | changes, []
    monkeypatch.setattr(heartbeats.os, "kill", lambda pid, signum: killed.append(pid) if signum else None)
    heartbeats._kill(SimpleNamespace(get=lambda name: json.dumps(process)), 1)
    assert killed == [process["pid"]] * is_killed


@pytest.mark.parametrize(
    ("message", "kind", "expected"),
    [
        (
            "[/a/gloo/transport/tcp/unbound.cc:81] Connection closed by peer [::1]:5",
            PeerError,
            r"lost \(Connection closed",
        ),
        ("an error of this rank", RuntimeError, "an error of this rank"),
    ],
)
def test_errors_of_other_ranks_are_told_in_words(message, kind, expected, monkeypatch):
    monkeypatch.setattr(heartbeats, "TIMEOUT", 0.0)
    monkeypatch.setattr(heartbeats.dist.distributed_c10d, "_get_default_store", torch.distributed.HashStore)
    monkeypatch.setattr(heartbeats, "_monitor", lambda store, ranks, done: None)
    with pytest.raises(kind, match=expected), heartbeat(SimpleNamespace(rank=0, world_size=2)):
        raise RuntimeError(message)
