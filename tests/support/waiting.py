"""Waiting for other threads and processes."""

import time


def wait_for(condition, seconds=60):
    """Waits until a condition holds; fails after some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not the case after {seconds} s"
        time.sleep(0.005)
