"""Requests to the viewer: the token, the host and the origin."""

import contextlib
import gzip
import http.client
import re
import types
import urllib.parse

import pytest

from tests.support.viewer_sessions import viewed
from tsplat import UnsupportedError
from tsplat.viewing.viewer import Viewer, guard
from tsplat.viewing.viewer.guard import Guard

pytest.importorskip("viser", reason="needs the extra viewer")


class Request:
    def __init__(self, path="/", **headers):
        from websockets import Headers

        self.path, self.headers = path, Headers(headers)


@pytest.mark.parametrize(
    ("address", "hosts", "refused"),
    [
        ("127.0.0.1", ["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:80", "[::1]:8080"],
         ["evil.test:8080", "192.0.2.1:8080", "", "localhost:8080@evil.test", "localhost.evil.test", "a b"]),
        ("0.0.0.0", ["localhost:9", "192.0.2.1:8080", "[2001:db8::1]:8080"], ["evil.test", "1.evil.test"]),
        ("127.0.0.2", ["127.0.0.2:8080"], ["127.0.0.3:8080"]),
    ],
)  # fmt: skip
def test_hosts(address, hosts, refused):
    checks = Guard(address, lambda *_: True)
    for host in hosts:
        assert checks.refuse(Request(f"/{checks.token}/", Host=host)) is None
    for host in refused:
        assert "not a name of this computer" in checks.refuse(Request(f"/{checks.token}/", Host=host))
    assert "not a name of this computer" in checks.refuse(Request(f"/{checks.token}/"))


def test_name_of_this_computer(monkeypatch):
    monkeypatch.setattr(guard.socket, "gethostname", lambda: "Desk")
    for address, refused in (("0.0.0.0", False), ("127.0.0.1", True)):
        checks = Guard(address, lambda *_: True)
        for host in ("desk:8080", "desk.local:8080"):
            assert (checks.refuse(Request(f"/{checks.token}/", Host=host)) is not None) == refused


def test_name_of_a_proxy():
    checks = Guard("127.0.0.1", lambda *_: True, host_name="View.example.org")
    own, page = "view.example.org", f"/{checks.token}/"
    for host, origins in ((own, ["https://" + own]), (own + ":8443", [f"https://{own}:8443"]), ("localhost", [])):
        assert checks.refuse(Request(page, Host=host)) is None
        assert [checks.refuse(Request(page, Host=host, Origin=origin)) for origin in origins] == [None] * len(origins)
    assert "not a name of this computer" in checks.refuse(Request(page, Host="example.org"))
    assert "not a name of this computer" in checks.refuse(Request(page, Host="a." + own))
    for origin in ("https://example.org", "https://localhost", "null"):
        assert "Pages of other origins" in checks.refuse(Request(page, Host=own, Origin=origin))
    assert "no valid token" in checks.refuse(Request("/", Host=own))


def test_origins():
    checks = Guard("127.0.0.1", lambda *_: True)
    for origin in ("http://localhost:8080", "https://localhost:8080"):
        assert checks.refuse(Request(f"/{checks.token}", Host="localhost:8080", Origin=origin)) is None
    for origin in ("http://localhost:9090", "http://localhost", "http://127.0.0.1:8080", "null", "http://evil.test"):
        found = checks.refuse(Request(f"/{checks.token}", Host="localhost:8080", Origin=origin))
        assert found == "Pages of other origins may not use the viewer.\n"


def test_tokens():
    checks = Guard("127.0.0.1", lambda *_: True)
    assert len({Guard("127.0.0.1", lambda *_: True).token for _ in range(10)}) == 10
    for path in (f"/{checks.token}", f"/{checks.token}/", f"/{checks.token}/a/b?token=c"):
        assert checks.refuse(Request(path, Host="localhost")) is None
    for path in (
        "/",
        "",
        "//",
        f"/{checks.token[:-1]}/",
        f"/{checks.token}a/",
        f"/?token={checks.token}",
        "/\xe9/",
        "*",
    ):
        assert "no valid token" in checks.refuse(Request(path, Host="localhost"))


@pytest.fixture
def viewer():
    viewer = Viewer([viewed()], port=18580)
    yield viewer
    viewer.close()


def get(viewer, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, headers={"Host": f"localhost:{viewer.port}"} | headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def test_answers_of_the_server(viewer):
    path = urllib.parse.urlsplit(viewer.url).path
    status, headers, body = get(viewer, path)
    assert (status, headers["Referrer-Policy"], headers["X-Frame-Options"]) == (200, "no-referrer", "SAMEORIGIN")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert b"<html" in body
    assert "Access-Control-Allow-Origin" not in headers
    token = path.strip("/").encode()
    for refused, headers in (("/", {}), (path, {"Host": "evil.test"}), (path, {"Origin": "http://localhost:1"})):
        status, _, body = get(viewer, refused, **headers)
        assert status == 403
        assert token not in body
    for hidden in ("../../__init__.py", "..%2f..%2f__init__.py", "%2e%2e/src/App.tsx", "/etc/passwd"):
        assert get(viewer, path + hidden)[0] == 404
    with pytest.raises(http.client.RemoteDisconnected):
        get(viewer, path, "HEAD")


def test_files_of_drawn_models_need_the_token(viewer, monkeypatch):
    answers = {"/drawn/key/1/scene.sog": ("application/octet-stream", b"model")}
    monkeypatch.setattr(
        viewer, "_sessions", {0: types.SimpleNamespace(drawing=types.SimpleNamespace(answer=answers.get))}
    )
    path = urllib.parse.urlsplit(viewer.url).path
    status, headers, body = get(viewer, f"{path}drawn/key/1/scene.sog")
    assert (status, headers["Content-Type"], headers["Content-Length"]) == (200, "application/octet-stream", "5")
    assert (headers["Cache-Control"], headers["Cross-Origin-Resource-Policy"]) == ("no-store", "same-origin")
    assert body == b"model"
    assert get(viewer, f"{path}drawn/other/1/scene.sog")[0] == 404
    for refused in ("/drawn/key/1/scene.sog", "/wrong/drawn/key/1/scene.sog"):
        assert get(viewer, refused)[0] == 403
    for headers in ({"Host": "evil.test"}, {"Origin": "http://evil.test"}):
        assert get(viewer, f"{path}drawn/key/1/scene.sog", **headers)[0] == 403


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_title_of_the_page(encoding):
    viewer = Viewer([viewed("<b>a & b.ply")], port=18580)
    try:
        for _ in range(2):
            _, headers, body = get(viewer, urllib.parse.urlsplit(viewer.url).path, **{"Accept-Encoding": encoding})
            assert headers["Content-Length"] == str(len(body))
            page = gzip.decompress(body) if encoding == "gzip" else body
            titles = re.findall(b"<title>.*?</title>", page)
            assert titles == ["<title>&lt;b&gt;a &amp; b.ply · tsplat</title>".encode()]
            assert b"{{" not in page[: page.index(b"</script>")]
    finally:
        viewer.close()


def connect(viewer, path, **headers):
    import viser
    from websockets.sync.client import connect

    origin = headers.pop("Origin", None)
    return connect(
        f"ws://127.0.0.1:{viewer.port}{path}", origin=origin, subprotocols=[f"viser-v{viser.__version__}"],
        compression=None, additional_headers=headers, open_timeout=60,
    )  # fmt: skip


def test_connections(viewer, monkeypatch):
    from websockets.exceptions import InvalidStatus

    path = urllib.parse.urlsplit(viewer.url).path
    refused = [("/", None), ("/wrong/", None), (path, "http://evil.test"), (path, f"http://localhost:{viewer.port}")]
    for other, origin in refused:
        with pytest.raises(InvalidStatus) as error, connect(viewer, other, Origin=origin):
            pass
        assert error.value.response.status_code == 403
    monkeypatch.setattr(guard, "CLIENTS_MAX", 2)
    with connect(viewer, path, Origin=f"http://127.0.0.1:{viewer.port}"), connect(viewer, path):
        with pytest.raises(InvalidStatus) as error, connect(viewer, path):
            pass
        assert error.value.response.status_code == 503


def test_viser_that_cannot_be_protected(monkeypatch):
    import websockets.asyncio.server as websockets_server
    from viser.infra import _infra

    original = websockets_server.serve
    # A future viser that starts its server by another name.
    monkeypatch.setattr(_infra, "websockets", _Websockets(original))
    with pytest.raises(UnsupportedError, match=r"viser [\d.]+: its server cannot be protected; install viser 1.1.1"):
        Viewer([viewed()], port=18590)
    assert websockets_server.serve is original


class _Websockets:
    def __init__(self, serve):
        import types

        import websockets

        self.asyncio = types.SimpleNamespace(server=types.SimpleNamespace(serve=serve))
        self.exceptions, self.datastructures = websockets.exceptions, websockets.datastructures
