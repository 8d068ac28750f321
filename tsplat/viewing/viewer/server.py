"""The web server of the viewer."""

import atexit
import contextlib
import io
import logging
import math
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import warnings
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import numpy as np

from ...errors import ArgumentError
from ...scalars import check_choice
from ...support.extras import require
from ..view_options import ADDRESS, PORT, DrawnBy
from .folder import Folder
from .guard import Guard
from .live_training import LiveTraining
from .messages import allows
from .session import OpenModel, Session
from .viewed_models import ViewedModel

MODULES = ("viser", "PIL", "matplotlib", "scipy")
"""Optional dependencies of the viewer."""

LAST_MESSAGE_SECONDS = 0.3
"""Seconds until a last message has reached the pages."""


class Viewer:
    """Shows models to web browsers.

    Each client has its own camera and controls. Idle clients use no CPU time.

    Args:
        models: Models to show, at least one; new clients see the first.
        address: Address to listen on; "0.0.0.0" for all addresses of this computer.
        port: Port to listen on; the next free one if it is taken.
        training: The training of the only model; None for models that do not change.
        open_model: Reads another model from a path that a client gives, and calls its second argument with notes; None
            if clients cannot open models.
        host_name: Host name of a proxy through which clients reach the server.
        folder: Folder to which clients write; they must confirm overwriting. They read from it and from the paths of
            `models`.
        draw: Where images are drawn at first: "server", or "browser", by WebGL if the browser has a GPU. With
            `training`, the server draws.

    Attributes:
        port: Port that the server listens on.
        proxy_url: Address of the page through the proxy; empty without one.
        url: Address of the page for a browser on this computer. It contains a token that requests must have.

    Raises:
        ArgumentError: There are no models, the address is not one of this computer, the host name is invalid, or
            `draw` is unknown.
        MissingExtraError: viser is not installed.
        UnsupportedError: The installed viser cannot be protected.
    """

    def __init__(
        self,
        models: Sequence[ViewedModel],
        *,
        address: str = ADDRESS,
        port: int = PORT,
        training: LiveTraining | None = None,
        open_model: OpenModel | None = None,
        folder: str | os.PathLike[str] = ".",
        host_name: str = "",
        draw: DrawnBy = "server",
    ) -> None:
        if not models:
            raise ArgumentError("models: expected at least one, found none")
        require(*MODULES)
        import viser

        check_address(address)
        check_host_name(host_name)
        check_choice("draw", draw, get_args(DrawnBy))
        # Hides messages about clients that disconnect while they receive a message.
        logging.getLogger("websockets").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "Queued a .* on a closed connection", UserWarning)
        self._training, self._read_model, self._draw = training, open_model, draw
        self._folder = Folder(folder, [model.path for model in models if model.path is not None])
        self._sessions: dict[int, Session] = {}
        self._models: list[ViewedModel] = []
        self._lock = threading.Lock()
        for model in models:
            self._add(model)
        guard = Guard(address, self._allows, f"{self._models[0].name} · tsplat", host_name)
        guard.answer = self._answer
        with contextlib.ExitStack() as stack, contextlib.redirect_stdout(io.StringIO()):  # viser prints addresses
            with guard.guard_server():
                self._server = viser.ViserServer(address, port, "tsplat", verbose=False)
                stack.callback(self._server.stop)
            stack.pop_all()
        self._server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        self._server.gui.main_panel.dock_right()  # beside the image, except on phones
        first = self._models[0]
        self._server.scene.set_up_direction(np.array(first.up))
        camera = self._server.initial_camera
        camera.position, camera.look_at = np.array(first.eye), np.array(first.target)
        camera.fov = math.radians(first.fov)
        self._server.on_client_connect(guard.note_client)
        self._server.on_client_connect(self._connect)
        self._server.on_client_disconnect(self._disconnect)
        self.port: int = self._server.get_port()
        # With these addresses only, a browser on this computer can use localhost.
        name = "localhost" if address in (ADDRESS, "0.0.0.0", "localhost") else address
        self.url = f"http://{name}:{self.port}/{guard.token}/"
        self.proxy_url = f"https://{host_name}/{guard.token}/" if host_name else ""

    def close(self, message: str = "") -> None:
        """Disconnects all clients, and stops the server.

        Args:
            message: Message that open pages show.
        """
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        if message and sessions:
            for session in sessions:
                session.show_message(message)
            self._server.flush()
            time.sleep(LAST_MESSAGE_SECONDS)
        for session in sessions:
            session.close()
        with contextlib.redirect_stdout(io.StringIO()):
            self._server.stop()

    def _connect(self, client: Any) -> None:
        read = self._read_model
        # Clients that connect later see the model, too.
        open_model = None if read is None else lambda path, warn: self._add(read(path, warn))
        session = Session(client, self._models, self._training, open_model, self._folder, self._draw)
        with self._lock:
            self._sessions[client.client_id] = session
        # The client may have disconnected while its controls were added.
        if client.client_id not in self._server.get_clients():
            self._disconnect(client)

    def _add(self, model: ViewedModel) -> ViewedModel:
        """Adds a model; appends a number to its name if another model has the same name."""
        with self._lock:
            names = {other.name for other in self._models}
            name, i = model.name, 1
            while model.name in names:
                i += 1
                model.name = f"{name} ({i})"
            self._models.append(model)
        return model

    def _disconnect(self, client: Any) -> None:
        with self._lock:
            session = self._sessions.pop(client.client_id, None)
        if session is not None:
            session.close(0)

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        """Returns a file with which a page draws the model, or the answer to its report; None for other paths."""
        sessions = list(self._sessions.values())
        return next((answer for session in sessions if (answer := session.drawing.answer(path))), None)

    def _allows(self, client: Any, message: Any) -> bool:
        return allows(client, message, partial(self._show_message, client))

    def _show_message(self, client: Any, text: str) -> None:
        session = self._sessions.get(client.client_id)
        if session is not None:
            session.show_message(text)


def open_in_browser(url: str) -> None:
    """Opens the page in a web browser on this computer.

    The browser opens a file that redirects to the page, as other users can see the arguments of commands, but not the
    file.
    """
    folder = Path(tempfile.mkdtemp(prefix="tsplat-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    page = folder / "viewer.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">tsplat</a>')
    webbrowser.open(page.as_uri())


def print_address(viewer: Viewer, port: int, what: str, *, state: str = "", remark: str = "") -> None:
    """Prints the addresses of a viewer that shows `what`, followed by its state, and whether another port is used."""
    if viewer.port != port:
        print(f"port {port} is taken; using {viewer.port}")
    print(f"viewing {what} at {viewer.url}{state}")
    if viewer.proxy_url:
        print(f"through the proxy: {viewer.proxy_url}")
    command = f"ssh -L {viewer.port}:{urlsplit(viewer.url).netloc} {socket.gethostname()}"
    print(f"from another computer: {command}{remark}", flush=True)


def check_host_name(name: str) -> None:
    """Raises ArgumentError unless a name is empty or a valid host name, without a port."""
    if name and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
        raise ArgumentError(f"host_name: expected a name such as viewer.example.org, without a port, found {name!r}")


def check_address(address: str) -> None:
    """Raises ArgumentError unless this computer can listen on an address."""
    try:
        if not address:
            raise ValueError("it is empty")  # the system would listen on all addresses
        with socket.socket() as probe:
            probe.bind((address, 0))
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"address: cannot listen on {address!r} ({reason}); use {ADDRESS}, or 0.0.0.0 for all addresses of "
            "this computer"
        ) from error
