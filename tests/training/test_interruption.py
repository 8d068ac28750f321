"""Ctrl-C during training."""

import os
import signal
import threading

import pytest

from tsplat.training.interruption import stop_on_interrupt


def test_first_ctrl_c_stops_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_do_not_handle_ctrl_c():
    results = []

    def run():
        with stop_on_interrupt() as stopped:
            results.append(stopped())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [False]
