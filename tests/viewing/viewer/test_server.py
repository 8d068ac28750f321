"""The web server of the viewer: its address, the names of models, and models that clients open."""

import contextlib
import re
import socket
import urllib.request

import pytest

from tests.support.viewer_client import ViewerClient
from tests.support.viewer_sessions import viewed
from tests.support.waiting import wait_for
from tsplat import ArgumentError
from tsplat.viewing.viewer import Viewer
from tsplat.viewing.viewer.server import print_address

pytest.importorskip("viser", reason="needs the extra viewer")


@pytest.fixture
def serve():
    viewers = []

    def serve(*models, **options):
        viewers.append(Viewer(models, port=18380, **options))
        return viewers[-1]

    yield serve
    for viewer in viewers:
        viewer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "name"), [("127.0.0.1", "localhost"), ("0.0.0.0", "localhost"), ("127.0.0.2", "127.0.0.2")]
)
def test_printed_address_works(serve, address, name, capsys):
    try:
        viewer = serve(viewed(), address=address)
    except ArgumentError:
        pytest.skip(f"this computer has no address {address}")
    assert re.fullmatch(rf"http://{name}:{viewer.port}/[\w-]{{22}}/", viewer.url)
    with urllib.request.urlopen(viewer.url, timeout=60) as page:
        assert page.status == 200
    print_address(viewer, viewer.port, "model")
    assert capsys.readouterr().out.splitlines() == [
        f"viewing model at {viewer.url}",
        f"from another computer: ssh -L {viewer.port}:{name}:{viewer.port} {socket.gethostname()}",
    ]


@pytest.mark.slow
def test_models_that_are_opened_have_names_of_their_own(serve):
    viewer = serve(viewed("a"), viewed("a"))
    assert viewer._add(viewed("a")).name == "a (3)"
    assert [model.name for model in viewer._models] == ["a", "a (2)", "a (3)"]


@pytest.mark.slow
def test_last_message_reaches_the_page():
    viewer = Viewer([viewed()], port=18880)
    client = ViewerClient(viewer.url, 32, 24)
    client.wait_for_rest(client.move((0, 0, -3), (0, 0, 0), (0, -1, 0), 0.8))
    wait_for(lambda: viewer._sessions)
    viewer.close("finished: tsplat view run")
    with contextlib.suppress(Exception):  # the connection ends
        client.receive(5.0)
    assert client.status == "finished: tsplat view run"
