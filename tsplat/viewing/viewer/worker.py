"""A thread that renders the newest request of one client and drops older ones."""

import math
import threading
import time
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

from ...errors import ArgumentError
from .renderer import Frame

Request = TypeVar("Request")

MOVING_SECONDS = 0.1
"""Time budget of an image while the camera moves."""

REST_SECONDS = 0.1
"""Time without a new request after which the camera is at rest."""


class Worker(Generic[Request]):
    """Renders for one client: within a time budget while requests arrive, and at full size after they stop.

    `render` takes a request and a budget in seconds, None for full size. `show` sends an image to the client, given
    whether it is the last one, at rest. `fail` takes a message for the user if rendering raises an error.
    """

    def __init__(
        self,
        render: Callable[[Request, float | None], Frame],
        show: Callable[[Frame, bool], None],
        fail: Callable[[str], None],
    ) -> None:
        self._render, self._show, self._fail = render, show, fail
        self._condition = threading.Condition()
        self._newest: Request | None = None
        self._submitted = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tsplat-viewer", daemon=True)
        self._thread.start()

    def submit(self, request: Request, *, at_rest: bool = False) -> None:
        """Replaces the pending request, if there is one; an image `at_rest` is rendered at full size at once."""
        with self._condition:
            self._newest, self._submitted = request, -math.inf if at_rest else time.monotonic()
            self._condition.notify()

    def close(self, seconds: float = 5.0) -> None:
        """Ends the thread after its current image, and waits for it for at most `seconds`."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (request := self._take(None)) is not None:
            try:
                self._follow(request)
            except (ArgumentError, RuntimeError, MemoryError) as error:
                if not self._closed:
                    self._fail(str(error) or type(error).__name__)
            except Exception as error:
                if not self._closed:
                    traceback.print_exc()
                    self._fail(f"{type(error).__name__}: {error}")

    def _follow(self, request: Request) -> None:
        """Renders a request and those that replace it, until the camera is at rest."""
        newer: Request | None = request
        frame: Frame | None = None
        while newer is not None:
            request, frame = newer, None
            # If rendering takes long, the camera may be at rest by now.
            if self._seconds_to_rest() > 0:
                frame = self._render(request, MOVING_SECONDS)
                self._deliver(frame, at_rest=False)
            newer = self._take(max(self._seconds_to_rest(), 0.0))
        if not self._closed:
            self._deliver(frame if frame and frame.is_full else self._render(request, None), at_rest=True)

    def _deliver(self, frame: Frame, at_rest: bool) -> None:
        if not self._closed:
            self._show(frame, at_rest)

    def _seconds_to_rest(self) -> float:
        """Returns the seconds until the camera counts as at rest, unless it moves again."""
        return self._submitted + REST_SECONDS - time.monotonic()

    def _take(self, seconds: float | None) -> Request | None:
        """Waits for a request; returns None when the time is up or the worker is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._newest is not None, seconds)
            request, self._newest = self._newest, None
            return None if self._closed else request
