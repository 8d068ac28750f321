"""Tests of signals that end a run."""

import os
import signal
import threading

import pytest

from tsplat.support import interruption
from tsplat.support.interruption import ALL_SIGNALS, SIGNALS, DeferredSignals, Interrupted, stop_on_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
def test_first_signal_asks_to_stop(signum):
    before = signal.getsignal(signum)
    with stop_on_signals() as stop:
        stop.check()
        assert not stop.is_set
        os.kill(os.getpid(), signum)
        os.kill(os.getpid(), signum)  # the scheduler signals every process, and the launcher forwards the signal
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


def handlers():
    return {signum: signal.getsignal(signum) for signum in ALL_SIGNALS}


def test_ctrl_c_is_raised_at_the_end_of_a_block():
    def work():
        with DeferredSignals(), DeferredSignals():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    before, reached = handlers(), []
    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached
    assert handlers() == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_errors_leave_a_block_that_defers_signals():
    before = handlers()
    with pytest.raises(ZeroDivisionError), DeferredSignals():
        raise ZeroDivisionError
    assert handlers() == before


def test_ctrl_c_again_ends_a_block_that_hangs(monkeypatch):
    def work():
        with DeferredSignals():
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the block was not ended")

    monkeypatch.setattr(interruption, "REPEAT", 0.0)
    with pytest.raises(KeyboardInterrupt):
        work()


def test_requests_to_stop_are_noted_at_once():
    with stop_on_signals() as stop, DeferredSignals():
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set


@pytest.mark.parametrize("calls", range(1, 5))
def test_an_interrupt_while_signals_are_deferred_leaves_handlers_that_work(calls):
    """A handler raises when the n-th handler is installed or restored."""
    before, install, count = handlers(), signal.signal, 0

    def interrupted(signum, handler):
        nonlocal count
        count += 1
        previous = install(signum, handler)
        if count == calls:
            raise KeyboardInterrupt
        return previous

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "signal", interrupted)
        try:
            with DeferredSignals():
                pass
        except KeyboardInterrupt:
            pass
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for signum, handler in before.items():
            if callable(handler):
                signal.signal(signum, handler)


def test_signals_are_not_deferred_in_other_threads():
    def work():
        with DeferredSignals():
            assert signal.getsignal(signal.SIGINT) is before

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
