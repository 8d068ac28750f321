"""The web server of the viewer."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import socket
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ...errors import ArgumentError
from ...support.extras import require
from .live_training import LiveTraining
from .session import OpenModel, Session
from .viewed_models import ViewedModel

MODULES = ("viser", "PIL", "matplotlib", "scipy")
"""Optional modules that the viewer needs."""

PORT = 8080
ADDRESS = "127.0.0.1"


class Viewer:
    """Shows models to web browsers.

    Each client has its own camera and controls. Clients that are not at work cost no time.

    Args:
        models: What to show, at least one; the first is shown to a new client.
        address: Address to listen at; "0.0.0.0" for all.
        port: Port to listen at; the next free one where it is taken.
        training: The training of the model, which is the only one; None for models that do not change.
        open_model: Reads another model from a path that a client names, and calls its second argument with notes; None
            if clients cannot open models.

    Attributes:
        port: Port that the server listens at.
        url: Address of the page for a browser on this computer.

    Raises:
        ArgumentError: No models, or an address that is not one of this computer.
        MissingExtraError: viser is not installed.
    """

    def __init__(
        self,
        models: Sequence[ViewedModel],
        *,
        address: str = ADDRESS,
        port: int = PORT,
        training: LiveTraining | None = None,
        open_model: OpenModel | None = None,
    ) -> None:
        if not models:
            raise ArgumentError("models: expected at least one, found none")
        require(*MODULES)
        import viser

        check_address(address)
        # Clients that go away in the middle of a message are not worth a line.
        logging.getLogger("websockets").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "Queued a .* on a closed connection", UserWarning)
        self._training, self._read_model = training, open_model
        self._sessions: dict[int, Session] = {}
        self._models: list[ViewedModel] = []
        self._lock = threading.Lock()
        for model in models:
            self._add(model)
        with contextlib.redirect_stdout(io.StringIO()):  # its addresses
            self._server = viser.ViserServer(address, port, "tsplat", verbose=False)
        self._server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        first = self._models[0]
        self._server.scene.set_up_direction(np.array(first.up))
        camera = self._server.initial_camera
        camera.position, camera.look_at, camera.fov = (
            np.array(first.eye),
            np.array(first.target),
            math.radians(first.fov),
        )
        self._server.on_client_connect(self._connect)
        self._server.on_client_disconnect(self._disconnect)
        self.port: int = self._server.get_port()
        # A browser on this computer reaches these addresses, and only these, as localhost.
        name = "localhost" if address in (ADDRESS, "0.0.0.0", "localhost") else address
        self.url = f"http://{name}:{self.port}"

    def close(self) -> None:
        """Ends the connections to all clients, and stops listening."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()
        with contextlib.redirect_stdout(io.StringIO()):
            self._server.stop()

    def _connect(self, client: Any) -> None:
        open_model = None if self._read_model is None else partial(self._open, self._read_model)
        session = Session(client, self._models, self._training, open_model)
        with self._lock:
            self._sessions[client.client_id] = session
        # The client may have gone while its controls were made.
        if client.client_id not in self._server.get_clients():
            self._disconnect(client)

    def _open(self, read: OpenModel, path: str, warn: Callable[[str], object]) -> ViewedModel:
        """Reads a model that a client names. Other clients see it when they connect."""
        return self._add(read(path, warn))

    def _add(self, model: ViewedModel) -> ViewedModel:
        """Adds a model, with a number where another one has its name."""
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
            session.close()


def print_address(viewer: Viewer, port: int, what: str, *, state: str = "", remark: str = "") -> None:
    """Prints where a viewer can be seen.

    Args:
        port: The port that was asked for.
        what: What it shows.
        state: Follows the address.
        remark: Ends the last line.
    """
    if viewer.port != port:
        print(f"port {port} is taken; using {viewer.port}")
    print(f"viewing {what} at {viewer.url}{state}")
    command = f"ssh -L {viewer.port}:{urlsplit(viewer.url).netloc} {socket.gethostname()}"
    print(f"from another computer: {command}{remark}", flush=True)


def check_address(address: str) -> None:
    """Raises ArgumentError if it is not possible to listen at an address."""
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise ArgumentError(
            f"address: cannot listen at {address} ({error.strerror}); use {ADDRESS}, or 0.0.0.0 for all addresses of "
            "this computer"
        ) from error
