"""Callbacks of controls: actions whose errors become messages on the page."""

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
"""Does something, and returns a message or None."""

ON_SERVER = "On the computer that runs tsplat"
UNITS = "(scene units)"
"""Parts of hints and labels."""

SECONDARY = "gray"
"""Color of buttons beside the most important ones of a tab."""


class Callbacks:
    """Runs the actions of one client's controls.

    `tell` shows a message until a control is used; one about an error until it is dismissed, what failed succeeds or
    another message takes its place. It hides an empty one.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._busy, self._lock = threading.Lock(), threading.Lock()
        self._waiting: dict[Action, None] | None = None
        self._failed: object = None
        self._closed = False

    def close(self) -> None:
        """Drops actions that wait."""
        self._closed = True

    def on_click(self, handle: Any, action: Action) -> None:
        """Connects a button or anything else that can be clicked."""
        handle.on_click(lambda _: self._use(action))

    def on_update(self, handle: Any, action: Action, *, by_client: bool = False) -> None:
        """Connects a control, to changes by a client only or also to values that the program sets."""

        def update(event: Any) -> None:
            if getattr(event, "client", None) is not None:
                self._use(action)
            elif not by_client:
                self.run_soon(action)

        handle.on_update(update)

    def on_long_click(self, handle: Any, action: Action) -> None:
        """Connects a button whose action takes long: clicks are ignored while such an action runs."""
        handle.on_click(lambda _: self._run_alone(action))

    def on_upload(self, handle: Any, action: Callable[[str, bytes], str]) -> None:
        """Connects a button that uploads a file, with an action that gets its name and its content."""

        def upload(event: Any) -> None:
            file = event.target.value
            content, file.content = file.content, b""  # which viser would keep
            with self._busy:
                self.run(partial(action, file.name, content))

        handle.on_upload(upload)

    def run(self, action: Action) -> None:
        """Runs an action, and shows its message, or why it failed."""
        try:
            message = action()
        except (ArgumentError, OSError, RuntimeError, MemoryError) as error:
            self.fail(describe_error(error), action)
            return
        self.succeed(action)
        if message:
            self._failed = None
            self._tell(message)

    def fail(self, problem: str, cause: object) -> None:
        """Shows a problem until it is dismissed, or until its cause succeeds."""
        self._failed = cause
        self._tell(f"**{problem}**")

    def succeed(self, cause: object) -> None:
        """Hides the problem that had this cause."""
        if self._failed == cause:
            self.dismiss()

    def dismiss(self) -> None:
        """Hides the message."""
        self._failed = None
        self._tell("")

    def _clear(self) -> None:
        """Hides a message that is not about an error."""
        if self._failed is None:
            self._tell("")

    def _use(self, action: Action) -> None:
        """Runs the action of a control that the client uses."""
        self._clear()
        self.run_soon(action)

    def run_soon(self, action: Action) -> None:
        """Runs an action, one at a time; while another one runs, it waits once, however often it is asked for."""
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
    """The client of a tab, as its controls use it.

    Attributes:
        model, settings: Return what is shown, and how it is rendered.
        change: Renders again.
        move_to: Moves to a camera, all of whose image is shown.
        write: Writes a file of a name by a function that returns what it has written, or asks before it replaces one.
        ask: Shows a button of a label that runs an action; hides it without a label.
        folder: Files that the client may write and read.
        closed: Set when the client has gone.
    """

    client: Any
    callbacks: Callbacks
    tell: Callable[[str], None]
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
    """Returns the message that the command line prints for an error."""
    return (describe_os_error(error) if isinstance(error, OSError) else str(error)) or type(error).__name__


def escape_markdown(text: str) -> str:
    """Returns a line of text as Markdown. Pages of viser run scripts in Markdown, and names of files are not ours."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"([\\`\[\]])", r"\\\1", " ".join(text.split())))
