"""Signals that end a run."""

import os
import signal
import threading

import pytest

from tsplat.support import interruption
from tsplat.support.interruption import SIGNALS, Interrupted, stop_on_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
def test_first_signal_asks_to_stop(signum):
    before = signal.getsignal(signum)
    with stop_on_signals() as stop:
        stop.check()
        assert not stop.is_set
        os.kill(os.getpid(), signum)
        os.kill(os.getpid(), signum)  # what a scheduler sends to every process, and a launcher forwards
        assert stop.is_set
        assert stop.signum == signum
        with pytest.raises(Interrupted) as error:
            stop.check()
        assert error.value.signum == signum
    assert signal.getsignal(signum) is before


def test_second_ctrl_c_interrupts(monkeypatch):
    monkeypatch.setattr(interruption, "REPEAT", 0.0)
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_second_signal_ends_the_process(forks):
    code = """
import os, signal, time
from tsplat.support import interruption
interruption.REPEAT = 0.05
with interruption.stop_on_signals():
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
"""
    assert forks.run(code).returncode == -signal.SIGTERM


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_do_not_handle_signals():
    results = []

    def run():
        with stop_on_signals() as stop:
            results.append(stop.is_set)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [False]


@pytest.mark.slow
def test_importing_pycolmap_leaves_sigterm_as_it_was(forks):
    pytest.importorskip("pycolmap")
    code = """
import os, signal, sys
from tsplat.support.extras import require
assert "pycolmap" not in sys.modules
require("pycolmap")
os.kill(os.getpid(), signal.SIGTERM)
"""
    process = forks.run(code)
    assert (process.returncode, process.stderr) == (-signal.SIGTERM, "")
