"""What a control calls: an action whose errors become messages on the page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ...errors import ArgumentError
from ...support.files import describe_os_error

Action = Callable[[], str | None]
"""Does something, and returns a message or None."""


class Callbacks:
    """Runs the actions of one client's controls.

    Args:
        tell: Shows a message.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._busy, self._lock = threading.Lock(), threading.Lock()
        self._waiting: dict[Action, None] | None = None
        self._closed = False

    def close(self) -> None:
        """Drops actions that wait."""
        self._closed = True

    def on_click(self, handle: Any, action: Action) -> None:
        """Connects a button, or what else can be clicked."""
        handle.on_click(lambda _: self._run_next(action))

    def on_update(self, handle: Any, action: Action, *, by_client: bool = False) -> None:
        """Connects a control, or the camera.

        Args:
            by_client: Whether only changes by a client count, not values that the program sets.
        """
        handle.on_update(lambda event: self._run_next(action) if not by_client or event.client is not None else None)

    def on_long_click(self, handle: Any, action: Action) -> None:
        """Connects a button whose action takes long: clicks are ignored while such an action runs."""
        handle.on_click(lambda _: self._run_alone(action))

    def run(self, action: Action) -> None:
        """Runs an action, and shows its message, or why it failed."""
        try:
            message = action()
        except (ArgumentError, OSError, RuntimeError, MemoryError) as error:
            text = describe_os_error(error) if isinstance(error, OSError) else str(error)
            message = f"**{text or type(error).__name__}**"
        if message:
            self._tell(message)

    def _run_next(self, action: Action) -> None:
        """Runs an action, one at a time; while another one runs, an action waits once, however often it is asked for.

        A client that sends many messages thus occupies one thread, and the others keep theirs.
        """
        with self._lock:
            if self._waiting is not None:
                self._waiting[action] = None
                return
            self._waiting = {action: None}
        while True:
            with self._lock:
                if not self._waiting or self._closed:
                    self._waiting = None
                    return
                action = next(iter(self._waiting))
                del self._waiting[action]
            self.run(action)

    def _run_alone(self, action: Action) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self.run(action)
            finally:
                self._busy.release()
