"""Waits for other threads and processes."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 60, every: float = 0.005) -> None:
    """Waits until a condition holds, testing it every `every` seconds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not the case after {seconds} s"
        time.sleep(every)
