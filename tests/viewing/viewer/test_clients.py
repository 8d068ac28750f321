"""Clients of the viewer over its web server, without a browser: several at once, and those that go away."""

import math
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.training_scenes import make_gaussians
from tests.support.viewer_client import ViewerClient
from tests.support.waiting import wait_for
from tsplat.scene import Camera, intrinsics, look_at, write_ply
from tsplat.scene.images import to_bytes
from tsplat.viewing import render
from tsplat.viewing.viewer import Viewer, open_viewed, server
from tsplat.viewing.viewer.keyframes import VideoOptions
from tsplat.viewing.viewer.session import Session

pytest.importorskip("viser", reason="needs the extra viewer")

GAUSSIANS = make_gaussians(sh_degree=1)
TARGET, UP, FOV, SIZE = (0.0, 0.0, 0.0), (0.0, -1.0, 0.0), 50.0, (64, 48)


@pytest.fixture
def viewer(tmp_path):
    write_ply(tmp_path / "model.ply", GAUSSIANS)
    viewer = Viewer([open_viewed(tmp_path / "model.ply", torch.device("cpu"), warn=pytest.fail)], port=18280)
    yield viewer
    viewer.close()


@pytest.fixture
def connect(viewer):
    clients = []

    def connect():
        clients.append(ViewerClient(viewer.url, *SIZE))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def look_from(client, eye):
    """Moves a camera, and returns the image at rest."""
    since = client.move(eye, TARGET, UP, math.radians(FOV))
    return client.wait_for_rest(since)[0]


def expected(eye):
    camera = Camera(look_at(eye, TARGET, UP), intrinsics(*SIZE, FOV), *SIZE)
    return to_bytes(render(GAUSSIANS, camera)).numpy()


@pytest.mark.slow
def test_each_client_has_its_own_camera(connect):
    one, other = connect(), connect()
    eyes = [(0.0, 0.0, -3.0), (3.0, -1.0, 0.0), (-2.0, -2.0, 2.0)]
    since = [client.move(eye, TARGET, UP, math.radians(FOV)) for client, eye in ((one, eyes[0]), (other, eyes[1]))]
    assert (one.wait_for_rest(since[0])[0] == expected(eyes[0])).all()
    assert (other.wait_for_rest(since[1])[0] == expected(eyes[1])).all()
    assert (look_from(other, eyes[2]) == expected(eyes[2])).all()
    assert "60 Gaussians" in one.status


@pytest.mark.slow
def test_client_that_vanishes_in_the_middle_of_an_image(viewer, connect, monkeypatch, capfd):
    stays, vanishes = connect(), connect()
    for client in (stays, vanishes):
        look_from(client, (0.0, 0.0, -3.0))
    renderer = viewer._models[0].renderer
    started, gate, rasterize = threading.Event(), threading.Event(), renderer._rasterize

    def wait_and_rasterize(*arguments):
        started.set()
        gate.wait()
        return rasterize(*arguments)

    monkeypatch.setattr(renderer, "_rasterize", wait_and_rasterize)
    vanishes.move((1.0, 0.0, -3.0), TARGET, UP, math.radians(FOV))
    assert started.wait(60)
    vanishes.vanish()
    wait_for(lambda: len(viewer._sessions) == 1)
    gate.set()
    eye = (2.0, 0.0, -2.0)
    assert (look_from(stays, eye) == expected(eye)).all()
    stays.close()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "tsplat-viewer"])
    assert not viewer._sessions
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_client_that_connects_while_the_viewer_closes(viewer, connect, monkeypatch):
    started, gate, sessions = threading.Event(), threading.Event(), []

    def wait_and_make(*arguments):
        started.set()
        assert gate.wait(60)
        sessions.append(Session(*arguments))
        return sessions[0]

    monkeypatch.setattr(server, "Session", wait_and_make)
    connect().move((0.0, 0.0, -3.0), TARGET, UP, math.radians(FOV))
    assert started.wait(60)
    viewer.close()
    gate.set()
    wait_for(lambda: sessions and sessions[0]._closed.is_set())
    assert not viewer._sessions


@pytest.mark.slow
def test_deleted_model_file_is_still_shown(viewer, connect, tmp_path, capfd):
    client = connect()
    look_from(client, (0.0, 0.0, -3.0))
    (tmp_path / "model.ply").unlink()
    eye = (2.0, 0.0, -2.0)
    assert (look_from(client, eye) == expected(eye)).all()
    assert (look_from(connect(), eye) == expected(eye)).all()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_last_of_many_movements_is_shown(connect):
    client = connect()
    look_from(client, (0.0, 0.0, -3.0))
    for i in range(40):
        since = client.move((0.1 * i, 0.0, -3.0), TARGET, UP, math.radians(FOV))
        client.receive(0.005)
    image, _ = client.wait_for_rest(since)
    assert np.array_equal(image, expected((3.9, 0.0, -3.0)))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["Preview", "Save video"])
def test_client_that_vanishes_during_a_preview_or_a_video(
    recwarn, viewer, connect, label, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    client = connect()
    for x in (0.0, 1.0):
        look_from(client, (x, 0.0, -3.0))
        session = next(iter(viewer._sessions.values()))
        session._video._add()
    n_files = len(list(tmp_path.iterdir()))
    tab = session._video
    tab._keyframes.scale(600.0, closed=False)
    action = tab._preview if label == "Preview" else partial(tab._video, VideoOptions(), Path("a.gif"))
    thread = threading.Thread(target=session._callbacks.run, args=(action,))
    thread.start()
    client.receive(0.5)
    client.vanish()
    wait_for(lambda: not viewer._sessions)
    thread.join(60)
    assert not thread.is_alive()
    assert len(list(tmp_path.iterdir())) == n_files
    assert capfd.readouterr() == ("", "")
    assert not [str(warning.message) for warning in recwarn]
