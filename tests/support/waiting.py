"""Waiting for other threads and processes."""

import time


def wait_for(condition, seconds=60, every=0.005):
    """Waits until a condition holds, which is tested every few seconds; fails after some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not the case after {seconds} s"
        time.sleep(every)
