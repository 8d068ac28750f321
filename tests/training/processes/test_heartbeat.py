"""Heartbeats; failing ranks are tested with the launcher."""

import pytest

from tsplat.stages.process_group import RankGroup
from tsplat.training.processes.heartbeat import heartbeat


@pytest.mark.slow
def test_single_process_needs_no_heartbeat():
    with heartbeat(RankGroup(), pytest.fail):
        pass
