"""Pages of other origins in a web browser: they cannot connect to the viewer, read from it, or embed it."""

import functools
import http.server
import json
import socket
import threading
import urllib.parse

import pytest

from tests.support import browser
from tests.support.browser import CHROMIUM, open_page
from tests.support.training_scenes import gray, make_gaussians, make_views
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat.training import Config, LiveView, ViewOptions
from tsplat.viewing.viewer import Viewer
from tsplat.viewing.viewer.server import open_in_browser

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

SCRIPT = """
<!doctype html><title>foreign</title><script>
window.found = null;
const socket = url => new Promise(done => {
  const s = new WebSocket(url, ["viser-v%s"]);
  s.onopen = () => done("open"); s.onerror = () => done("failed");
});
const read = url => fetch(url).then(r => r.text()).then(t => t.includes("<html") ? "read" : t, () => "failed");
window.attack = async (ws, http) => { window.found = JSON.stringify([await socket(ws), await read(http)]); };
</script>
"""


@pytest.fixture
def foreign(tmp_path):
    """A page of another origin."""
    import viser

    (tmp_path / "index.html").write_text(SCRIPT % viser.__version__)
    handler = functools.partial(_Quiet, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def found_by(page, script):
    """Runs a script of the page, and returns what it finds."""
    page.evaluate(f"window.found = null; {script}")
    wait_for(lambda: page.evaluate("window.found") is not None, every=0.1)
    return json.loads(page.evaluate("window.found"))


def refused_frame(page):
    """What the browser reports about a frame that it does not show."""
    page.call("Log.enable")

    def reported():
        page.evaluate("0")  # receives events
        texts = [error.get("entry", {}).get("text", "") for error in page.errors]
        return [text for text in texts if "frame" in text]

    wait_for(reported, every=0.1)
    return reported()[0]


def wait_for_clients(viewer, known=()):
    wait_for(lambda: set(viewer._sessions) - set(known), every=0.1)


@pytest.fixture(params=["view", "train --view"])
def viewer(request):
    if request.param == "view":
        viewer = Viewer([viewed()], port=18780)
        yield viewer
        viewer.close()
        return
    gaussians = make_gaussians()
    options = ViewOptions(port=18780, paused=True)
    view = LiveView(gray(gaussians), make_views(gaussians), Config(steps=10), options)
    yield view._viewer
    view.close()


def test_page_of_another_origin(viewer, foreign, monkeypatch):
    monkeypatch.setattr(browser, "FLAGS", (*browser.FLAGS, "--host-resolver-rules=MAP evil.test 127.0.0.1"))
    token = urllib.parse.urlsplit(viewer.url).path
    port = viewer.port
    # Another port of the same computer, and a foreign name; even if they know the token.
    for host in ("localhost", "evil.test"):
        with open_page(f"http://{host}:{foreign}/") as page:
            wait_for(lambda: page.evaluate("typeof attack") == "function", every=0.1)
            for path in ("/", "/wrong/", token):
                for target in ("localhost", "127.0.0.1", "evil.test"):
                    place = f"{target}:{port}{path}"
                    assert found_by(page, f"attack('ws://{place}', 'http://{place}')") == ["failed", "failed"]
            # Nor does it show the viewer in a frame.
            page.evaluate(f"document.body.innerHTML = '<iframe src=\"{viewer.url}\"></iframe>'")
            assert "frame-ancestors" in refused_frame(page)
    assert not viewer._sessions


@pytest.mark.parametrize("viewer", ["view"], indirect=True)
def test_name_that_is_bound_again(viewer, monkeypatch):
    """DNS rebinding: the name of a foreign page leads to this computer, so that the page has its origin."""
    monkeypatch.setattr(browser, "FLAGS", (*browser.FLAGS, "--host-resolver-rules=MAP evil.test 127.0.0.1"))
    url = viewer.url.replace("localhost", "evil.test")
    with open_page(url) as page:
        wait_for(lambda: "not a name of this computer" in (page.evaluate("document.body.innerText") or ""), every=0.1)
        assert found_by(page, f"fetch({url!r}).then(r => window.found = JSON.stringify(r.status))") == 403
    assert not viewer._sessions


@pytest.fixture
def tunnel(viewer):
    """Forwards another port, as `ssh -L` does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def accept():
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            other = socket.create_connection(("127.0.0.1", viewer.port))
            for ends in ((one, other), (other, one)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


@pytest.mark.parametrize("viewer", ["view"], indirect=True)
def test_tunnel_and_reload(viewer, tunnel):
    with open_page(viewer.url.replace(str(viewer.port), str(tunnel))) as page:
        wait_for_clients(viewer)
        first = set(viewer._sessions)
        page.call("Page.reload")
        wait_for_clients(viewer, first)


@pytest.mark.parametrize("viewer", ["view"], indirect=True)
def test_file_that_leads_to_the_page(viewer, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    open_in_browser(viewer.url)
    assert opened[0].startswith("file:///")
    assert urllib.parse.urlsplit(viewer.url).path.strip("/") not in opened[0]
    with open_page(opened[0]):
        wait_for_clients(viewer)


def test_all_addresses():
    viewer = Viewer([viewed()], port=18790, address="0.0.0.0")
    try:
        address = next(info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET))
        with open_page(viewer.url.replace("localhost", address)):
            wait_for_clients(viewer)
    finally:
        viewer.close()
