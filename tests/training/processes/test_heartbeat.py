"""Heartbeats; failing ranks are tested with the launcher."""

import threading

import pytest

from tsplat.stages.process_group import RankGroup
from tsplat.training.processes.heartbeat import heartbeat


@pytest.mark.slow
def test_single_process_needs_no_heartbeat():
    n_threads = threading.active_count()
    with heartbeat(RankGroup()):
        assert threading.active_count() == n_threads
