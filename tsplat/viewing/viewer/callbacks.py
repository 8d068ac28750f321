"""Callbacks of controls: actions whose errors are shown as messages on the page."""

import dataclasses
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from ...scene.cameras import Camera
from ...support.files import describe_os_error
from .folder import Folder
from .renderer import Settings
from .viewed_models import ViewedModel

Action = Callable[[], str | None]
"""Action of a control, which returns a message or None."""

ON_SERVER = "On the computer that runs tsplat"
UNITS = "(scene units)"
"""Parts of hints and labels."""

SECONDARY = "gray"
"""Color of secondary buttons."""


class Callbacks:
    """Runs the actions of one client's controls.

    `show_message` shows a message; an empty one hides it. Messages are hidden when a control is used. Errors are shown
    until they are dismissed, the failed action succeeds, or another message replaces them.
    """

    def __init__(self, show_message: Callable[[str], None]) -> None:
        self._show_message = show_message
        self._busy, self._lock = threading.Lock(), threading.Lock()
        self._waiting: dict[Action, None] | None = None
        self._failed: object = None
        self._closed = False

    def close(self) -> None:
        """Drops pending actions."""
        self._closed = True

    def on_click(self, handle: Any, action: Action) -> None:
        """Connects a button or another clickable element."""
        handle.on_click(lambda _: self._use(action))

    def on_update(self, handle: Any, action: Action, *, by_client: bool = False) -> None:
        """Connects a control to changes of its value; `by_client` ignores changes that the program makes."""

        def update(event: Any) -> None:
            if getattr(event, "client", None) is not None:
                self._use(action)
            elif not by_client:
                self.enqueue(action)

        handle.on_update(update)

    def on_long_click(self, handle: Any, action: Action) -> None:
        """Connects a button with a long action: clicks are ignored while any such action runs."""
        handle.on_click(lambda _: self._run_alone(action))

    def on_upload(self, handle: Any, action: Callable[[str, bytes], str]) -> None:
        """Connects a button that uploads a file to an action that gets the file's name and content."""

        def upload(event: Any) -> None:
            file = event.target.value
            content, file.content = file.content, b""  # viser would keep the content
            with self._busy:
                self.run(partial(action, file.name, content))

        handle.on_upload(upload)

    def run(self, action: Action) -> None:
        """Runs an action, and shows its message or its error."""
        try:
            message = action()
        except (ArgumentError, OSError, RuntimeError, MemoryError) as error:
            self.fail(describe_error(error), action)
            return
        self.succeed(action)
        if message:
            self._failed = None
            self._show_message(message)

    def fail(self, problem: str, cause: object) -> None:
        """Shows a problem until it is dismissed, or until :meth:`succeed` is called for its cause."""
        self._failed = cause
        self._show_message(f"**{problem}**")

    def succeed(self, cause: object) -> None:
        """Hides the problem with this cause."""
        if self._failed == cause:
            self.dismiss()

    def dismiss(self) -> None:
        """Hides the message."""
        self._failed = None
        self._show_message("")

    def _clear(self) -> None:
        """Hides a message that is not an error."""
        if self._failed is None:
            self._show_message("")

    def _use(self, action: Action) -> None:
        """Runs an action because the client used its control."""
        self._clear()
        self.enqueue(action)

    def enqueue(self, action: Action) -> None:
        """Runs an action after pending ones, one at a time. An action that is already pending is not added again."""
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
                self._clear()
                self.run(action)
            finally:
                self._busy.release()


@dataclasses.dataclass(frozen=True)
class Page:
    """The client's page, as the controls of a tab use it.

    Attributes:
        show_message: Shows a message.
        model, settings: Return the shown model and the settings of the renderer.
        change: Renders again.
        move_to: Moves to a camera, so that its whole image is visible.
        write: Writes a file with a given name by a function, which returns a message; asks before replacing a file.
        ask: Shows a button with a label, which runs an action; hides it without a label.
        folder: Files that the client may write and read.
        closed: Set when the client has disconnected.
    """

    client: Any
    callbacks: Callbacks
    show_message: Callable[[str], None]
    model: Callable[[], ViewedModel]
    settings: Callable[[], Settings]
    change: Callable[[], None]
    move_to: Callable[[Camera], None]
    write: Callable[[str, Callable[[Path], str]], str]
    ask: Callable[[str | None, Action], None]
    folder: Folder
    closed: threading.Event


def name_in(handle: Any) -> str:
    """Returns the file name in a text control; raises ArgumentError if it is invalid."""
    if not handle.value or "\0" in handle.value:
        raise ArgumentError(f"{handle.label}: expected the name of a file, found {handle.value!r}")
    return str(handle.value)


def describe_error(error: BaseException) -> str:
    """Returns the message of an error, as the command line prints it."""
    return (describe_os_error(error) if isinstance(error, OSError) else str(error)) or type(error).__name__


def escape_markdown(text: str) -> str:
    """Escapes a line of text for Markdown. viser runs scripts in Markdown, and file names are untrusted."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"([\\`\[\]])", r"\\\1", " ".join(text.split())))
