"""A thread that renders the newest request of one client and drops older ones."""

from __future__ import annotations

import threading
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
    """Renders for one client: within a time budget while requests arrive, at full size once they stop.

    Args:
        render: Renders a request within a time budget in seconds, or at full size where the budget is None.
        show: Takes an image to the client.
        fail: Takes a message for the user where rendering raises an error.
    """

    def __init__(
        self,
        render: Callable[[Request, float | None], Frame],
        show: Callable[[Frame], None],
        fail: Callable[[str], None],
    ) -> None:
        self._render, self._show, self._fail = render, show, fail
        self._condition = threading.Condition()
        self._newest: Request | None = None
        self._at_rest = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tsplat-viewer", daemon=True)
        self._thread.start()

    def submit(self, request: Request, *, at_rest: bool = False) -> None:
        """Replaces the request that waits to be rendered, if there is one.

        Args:
            at_rest: Whether the camera is at rest, so that the image is rendered at full size at once.
        """
        with self._condition:
            self._newest, self._at_rest = request, at_rest
            self._condition.notify()

    def close(self, seconds: float = 5.0) -> None:
        """Ends the thread after the image that it renders, and waits for it for some time."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (request := self._take(None)) is not None:
            if self._at_rest:
                self._try(request, None)
                continue
            frame = self._try(request, MOVING_SECONDS)
            while frame is not None and frame.divisor > 1 and not self._closed:
                newer = self._take(REST_SECONDS)
                if newer is None:
                    self._try(request, None)
                    break
                request = newer
                frame = self._try(request, MOVING_SECONDS)

    def _take(self, seconds: float | None) -> Request | None:
        """Waits for a request; returns None when the time is up or the worker is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._newest is not None, seconds)
            request, self._newest = self._newest, None
            return None if self._closed else request

    def _try(self, request: Request, seconds: float | None) -> Frame | None:
        try:
            frame = self._render(request, seconds)
            if not self._closed:
                self._show(frame)
            return frame
        except (ArgumentError, RuntimeError, MemoryError) as error:
            if not self._closed:
                self._fail(str(error) or type(error).__name__)
        except Exception as error:
            if not self._closed:
                traceback.print_exc()
                self._fail(f"{type(error).__name__}: {error}")
        return None
