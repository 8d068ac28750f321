"""Reads OpenUSD stages in processes forked from one process: importing usd-core takes ten times as long as reading."""

import collections
import contextlib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from tests.support.forks import Forks
from tsplat.scene.formats.interchange import usd


@contextlib.contextmanager
def forked_usd(timeout=10):
    """Makes ``usd_process.py`` run in forks within the block; SIGALRM ends each after `timeout` seconds.

    Yields the number of forks by exit status; negative ones are signals.
    """
    forks, statuses = Forks(("numpy", "pxr.Usd", "pxr.UsdGeom")), collections.Counter()

    def run(command, env, **pipes):
        *_, script, stage, folder, count = command
        result = forks.run(Path(script).read_text(), stage, folder, count, environment=env, timeout=timeout)
        statuses[result.returncode] += 1
        result.stderr = result.stderr.encode()
        return result

    try:
        with mock.patch.object(usd, "subprocess", SimpleNamespace(run=run, DEVNULL=None)):
            yield statuses
    finally:
        forks.close()
