"""Checks requests and messages to the viewer's web server before viser handles them.

viser runs a server of the package websockets. :class:`Guard` changes the arguments with which viser starts it.
"""

import asyncio
import contextlib
import contextvars
import dataclasses
import gzip
import ipaddress
import re
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import UnsupportedError
from ..markup import fill
from .folder import TRANSFER_MAX
from .messages import PART_MESSAGE_BYTES

CLIENTS_MAX = 15
"""Maximum number of clients. Each occupies at most two of the 32 threads in which viser runs callbacks."""

RATE, BURST = 200.0, 400.0
"""Maximum messages per second of one client, and maximum burst. More messages wait; pages send about 50 per second."""

HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Content-Security-Policy": "frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

VISER_TITLE = re.compile(rb"<title>[^<]*</title>")
HEAD = Path(__file__).with_name("head.html")
"""File whose content replaces viser's title: another title, and the style and scripts of tsplat's pages."""

Answer = tuple[str, bytes]
"""Content type and body of a response."""

_CONNECTION: contextvars.ContextVar[Any] = contextvars.ContextVar("connection")
_PATCHING = threading.Lock()


class Guard:
    """Checks the requests and the messages of one server, which listens on an address.

    A request must have the token as the first part of its path, a name of this computer or `host_name`, the name of a
    proxy, as host, and no foreign origin. `allows` returns whether a message may pass, given the client of viser that
    sent it (None before its first camera). `answer` returns the answer for a path after the token; None if viser
    should answer.
    """

    def __init__(
        self, address: str, allows: Callable[[Any, Any], bool], title: str = "tsplat", host_name: str = ""
    ) -> None:
        self._head = fill(HEAD.read_text("utf-8"), {"title": title, "limit": TRANSFER_MAX}).encode()
        self._bodies: dict[bool, bytes] = {}
        self.token = secrets.token_urlsafe(16)
        self._allows = allows
        self._any_address = address in ("0.0.0.0", "::")
        self._hosts = {"localhost", "127.0.0.1", "[::1]", address.lower(), f"[{address.lower()}]"}
        if self._any_address:
            name = socket.gethostname().lower()
            self._hosts |= {name, f"{name}.local", socket.getfqdn().lower()}
        if host_name:
            self._hosts.add(host_name.lower())
        self._connections: set[Any] = set()
        self.answer: Callable[[str], Answer | None] = lambda _path: None

    @contextlib.contextmanager
    def guard_server(self) -> Iterator[None]:
        """Context manager that guards the viser server that is started in the block."""
        import viser
        from websockets.asyncio import server

        original, is_guarded = server.serve, False

        def serve(handler: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal is_guarded
            if getattr(handler, "__module__", "") == "viser.infra._infra" and options.get("process_request"):
                is_guarded = True
                options["process_request"] = self._process(options["process_request"])
                options |= {"max_size": PART_MESSAGE_BYTES, "create_connection": self._connection_class()}
                handler = self._handle(handler)
            return original(handler, *arguments, **options)

        with _PATCHING:
            server.serve = serve  # type: ignore[assignment,misc]
            try:
                yield
            finally:
                server.serve = original  # type: ignore[misc]
        if not is_guarded:
            raise UnsupportedError(f"viser {viser.__version__}: its server cannot be protected; install viser 1.1.1")

    @staticmethod
    async def note_client(client: Any) -> None:
        """Sets the client of the connection whose first camera has arrived."""
        _CONNECTION.get().client = client

    def refuse(self, request: Any) -> str | None:
        """Returns the reason for refusing a request; None if it is accepted."""
        hosts, origins = (request.headers.get_all(name) for name in ("Host", "Origin"))
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = _HOST.fullmatch(host)
        if name is None or not (name[1] in self._hosts or (self._any_address and _is_address(name[1]))):
            return "This is not a name of this computer. Open the address that tsplat has printed.\n"
        if origins not in ([], [f"http://{host}"], [f"https://{host}"]):
            return "Pages of other origins may not use the viewer.\n"
        if not secrets.compare_digest(_split_path(request.path)[0].encode("utf-8", "replace"), self.token.encode()):
            return "The address has no valid token. Open the address that tsplat has printed.\n"
        return None

    def _process(self, serve_page: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Returns a function that checks requests, and passes them on to viser without the token in their path."""

        def process(connection: Any, request: Any) -> Any:
            problem = self.refuse(request)
            if problem is not None:
                response = connection.respond(403, problem)
            elif "Upgrade" in request.headers and len(self._connections) >= CLIENTS_MAX:
                response = connection.respond(503, f"The viewer has its maximum number of {CLIENTS_MAX} clients.\n")
            elif (answer := self.answer(_split_path(request.path)[1])) is not None:
                response = connection.respond(200, "")
                del response.headers["Content-Type"]
                response.headers["Content-Type"], body = answer
                _set_body(response, body)
            else:
                response = serve_page(connection, dataclasses.replace(request, path=_split_path(request.path)[1]))
                self._set_head(response)
            for name, value in HEADERS.items() if response is not None else ():
                response.headers[name] = value
            return response

        return process

    def _set_head(self, response: Any) -> None:
        """Adds :data:`HEAD` to viser's page. None and other files are not changed."""
        if response is None or not response.headers.get("Content-Type", "").startswith("text/html"):
            return
        zipped = response.headers["Content-Encoding"] == "gzip"
        if zipped not in self._bodies:
            body = gzip.decompress(response.body) if zipped else response.body
            body = VISER_TITLE.sub(lambda _: self._head, body, count=1)
            self._bodies[zipped] = gzip.compress(body) if zipped else body
        _set_body(response, self._bodies[zipped])

    def _handle(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Returns a handler that counts the connections, and lets :meth:`note_client` find the current one."""

        async def handle(connection: Any) -> None:
            if len(self._connections) >= CLIENTS_MAX:
                await connection.close(1013)
                return
            self._connections.add(connection)
            _CONNECTION.set(connection)
            try:
                await handler(connection)
            finally:
                self._connections.discard(connection)

        return handle

    def _connection_class(self) -> Any:
        from websockets.asyncio.server import ServerConnection

        allows = self._allows

        class Connection(ServerConnection):
            """Connection that receives only allowed messages, at a limited rate: the sender has to wait."""

            client: Any = None
            _credit, _last = BURST, 0.0

            async def recv(self, decode: bool | None = None) -> Any:
                while True:
                    message = await super().recv(decode)
                    now = time.monotonic()
                    self._credit = min(self._credit + RATE * (now - self._last), BURST) - 1
                    self._last = now
                    # Yields to other tasks even if many messages have arrived.
                    await asyncio.sleep(max(-self._credit / RATE, 0.0))
                    if allows(self.client, message):
                        return message

        return Connection


_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
"""A host name or an address, and a port."""


def _set_body(response: Any, body: bytes) -> None:
    response.body = body
    del response.headers["Content-Length"]
    response.headers["Content-Length"] = str(len(body))


def _split_path(path: str) -> tuple[str, str]:
    """Returns the first part of a request's path, and the rest, without the query."""
    first, _, rest = path.partition("?")[0].removeprefix("/").partition("/")
    return first, f"/{rest}"


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name.strip("[]")))
    return False
