"""Signals that end a run, such as Ctrl-C or signals that schedulers send before they kill a job, and their deferral."""

import _signal  # type: ignore[import-not-found]
import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, Self

from .output import protect_output

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
"""Signals that :func:`stop_on_signals` handles, if the platform has them."""

EXIT_SIGNALS = ("SIGTERM", "SIGHUP")
"""Signals that :func:`exit_on_signals` handles, if the platform has them."""

ALL_SIGNALS = tuple(sorted(signal.valid_signals()))

_handler_of: Callable[[int], Any] = _signal.getsignal
"""Returns the handler of a signal, without the enumerations of :mod:`signal`, which take most of the time."""

REPEAT = 1.0
"""Seconds within which another signal counts as the same request: schedulers signal every process, and launchers
forward signals."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the work; the state has been saved, if possible.

    Attributes:
        signum: Number of the signal.
        message: Message for the user; empty if another process prints it.
    """

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message)
        self.signum = signum
        self.message = message


class StopRequest:
    """Records whether a signal asked this process to stop.

    Attributes:
        signum: Number of the first signal; None if there was none.
    """

    signum: int | None = None
    _time = 0.0

    @property
    def is_set(self) -> bool:
        """Whether there was a signal."""
        return self.signum is not None

    def check(self) -> None:
        """Raises :class:`Interrupted` if a signal asked this process to stop."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """Records the first signal; a second one, after REPEAT seconds, ends the process."""
        if self.signum is None:
            self.signum, self._time = signum, time.monotonic()
        elif time.monotonic() - self._time >= REPEAT:
            if signum == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)


class DeferredSignals:
    """Context manager that defers signal handlers, such as that of Ctrl-C, to the end of a block.

    An interrupted block therefore changes either everything or nothing. Outside of the main thread, which handles
    signals, this does nothing. Handlers of :class:`StopRequest` run immediately, because they only set a flag.

    Attributes:
        patience: Seconds after which a repeated signal is handled at once, so that a block that hangs can be ended;
            :data:`REPEAT` if None is given. With 0, the first signal is handled at once, and with infinity, none is.
            The block may change `patience`, for example during setup and cleanup.
    """

    def __init__(self, patience: float | None = None) -> None:
        self.patience = REPEAT if patience is None else patience
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._received: dict[int, float] = {}
        self._active = False

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._handlers = {
            signum: handler
            for signum in ALL_SIGNALS
            if callable(handler := _handler_of(signum))
            and not isinstance(getattr(handler, "__self__", None), StopRequest)
        }
        try:
            self._active = True
            for signum in self._handlers:
                signal.signal(signum, self._handle)
        except BaseException:
            self._active = False
            self._restore()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.patience = math.inf
        try:
            self._restore()
        finally:
            self._active = False  # a restored handler may have raised before the others were restored
        for signum in self._received:
            self._handlers[signum](signum, None)

    def _restore(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Handler of all signals inside the block."""
        now = time.monotonic()
        age = now - self._received.setdefault(signum, now)
        # A handler that raises before the first statement of __exit__ would leave these handlers in place.
        is_leaving = frame is not None and frame.f_code is DeferredSignals.__exit__.__code__
        if self._active and (age < self.patience or is_leaving):
            return
        self._received.pop(signum)
        self._handlers[signum](signum, frame)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Context manager that yields an object that records the first of :data:`SIGNALS`; a second one ends the process.

    Ignored signals, such as SIGHUP under nohup, stay ignored, except for Ctrl-C. Outside of the main thread, no signals
    are recorded.
    """
    protect_output(full_disk=True)  # SIGHUP may mean that the terminal is gone
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handled = [s for s in SIGNALS if s == signal.SIGINT or signal.getsignal(s) is not signal.SIG_IGN]
    previous = {signum: signal.signal(signum, request.handle) for signum in handled}
    try:
        yield request
    finally:
        for signum, handler in previous.items():
            # None is a handler that was not installed from Python, and cannot be restored.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Context manager that raises SystemExit on SIGTERM and SIGHUP, unless they have a handler, so that code cleans up.

    Does nothing outside of the main thread, which handles signals.
    """
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        for name in EXIT_SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                replaced[number] = signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    # A second signal must not interrupt the cleanup.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
