"""Ctrl-C during training: the first one ends the run after the current step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C was pressed; pressing it again raises KeyboardInterrupt as usual.

    Outside the main thread, where Python does not handle signals, the function always returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    stopped = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped.is_set
    finally:
        signal.signal(signal.SIGINT, previous)
