"""Keyframes of one client: edited, drawn, and made into videos."""

import contextlib
import json

import numpy as np
import pytest
from PIL import Image

from tests.support.viewer_sessions import control
from tsplat.viewing import read_cameras

pytest.importorskip("viser", reason="needs the extra viewer")
pytestmark = pytest.mark.usefixtures("session")

POSITIONS = [(0.0, 0.0, -3.0), (1.0, 0.0, -3.0), (1.0, 1.0, -3.0)]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def keyframes(client):
    for position in POSITIONS:
        client.camera.move(position)
        control(client, "Add keyframe").use()
    return client


def positions(client, tmp_path):
    """Those of the keyframes, as they are saved."""
    control(client, "Keyframe file").use("keys.json")
    control(client, "Save keyframes").use()
    if control(client, "Replace").visible:
        control(client, "Replace").use()
    return [tuple(np.round(camera.position.numpy(), 4)) for camera in read_cameras(tmp_path / "keys.json")]


def test_keyframes_are_chosen_set_moved_and_deleted(keyframes, client, tmp_path):
    a, b, c = POSITIONS
    assert control(client, "Keyframe").options == ("1", "2", "3")
    control(client, "Keyframe").use("2")
    assert np.allclose(client.camera.position, b, atol=1e-5)
    client.camera.move((2.0, 2.0, -3.0))
    control(client, "").use("Go to")
    assert np.allclose(client.camera.position, b, atol=1e-5)
    d = (2.0, 0.0, -4.0)
    client.camera.move(d)
    control(client, "").use("Set")
    assert positions(client, tmp_path) == [a, d, c]
    control(client, "Move").use("Earlier")
    assert (positions(client, tmp_path), control(client, "Keyframe").value) == ([d, a, c], "1")
    control(client, "Move").use("Earlier")
    control(client, "Move").use("Later")
    control(client, "Move").use("Later")
    assert (positions(client, tmp_path), control(client, "Keyframe").value) == ([a, c, d], "3")
    control(client, "").use("Delete")
    assert (positions(client, tmp_path), control(client, "Keyframe").value) == ([a, c], "2")
    control(client, "Keyframe").use("1")
    client.camera.move(b)
    control(client, "Add keyframe").use()  # behind the chosen one
    assert (positions(client, tmp_path), control(client, "Keyframe").value) == ([a, b, c], "2")
    for _ in range(3):
        control(client, "").use("Delete")
    assert not control(client, "Keyframe").visible
    control(client, "").use("Delete")
    assert client.status.startswith("**keyframes: expected at least one, found none")


def test_keyframes_and_their_path_are_drawn(keyframes, client):
    (path,) = [line for line in client.lines if not line.removed]
    assert np.allclose(path.value[0, 0], POSITIONS[0], atol=1e-5)
    assert np.allclose(path.value[-1, 1], POSITIONS[-1], atol=1e-5)
    control(client, "Loop").use(True)
    (path,) = [line for line in client.lines if not line.removed]
    assert np.allclose(path.value[-1, 1], POSITIONS[0], atol=1e-5)
    frusta = [frustum for frustum in client.frusta if not hasattr(frustum, "removed")]
    assert [frustum.label for frustum in frusta] == ["/keyframes/0", "/keyframes/1", "/keyframes/2"]
    frusta[1].use()
    assert control(client, "Keyframe").value == "2"
    assert np.allclose(client.camera.position, POSITIONS[1], atol=1e-5)
    control(client, "Show path").use(False)
    assert all(handle.removed for handle in (*client.lines, *client.frusta))


def test_removing_all_asks(keyframes, client, tmp_path):
    control(client, "Remove all").use()
    confirm = control(client, "Replace")
    assert (confirm.visible, confirm.label) == (True, "Remove 3 keyframes")
    assert len(positions(client, tmp_path)) == 3  # which takes the question back
    assert not confirm.visible
    control(client, "Remove all").use()
    confirm.use()
    assert not confirm.visible
    assert not control(client, "Keyframe").visible
    assert all(handle.removed for handle in (*client.lines, *client.frusta))


def test_each_model_keeps_its_keyframes(keyframes, client, tmp_path):
    control(client, "Model").use("without views")
    assert not control(client, "Keyframe").visible
    control(client, "Add keyframe").use()
    control(client, "Model").use("model")
    assert len(positions(client, tmp_path)) == 3
    control(client, "Model").use("without views")
    assert len(positions(client, tmp_path)) == 1


def test_video_has_a_size_a_rate_and_returns(keyframes, client, tmp_path):
    control(client, "Loop").use(True)
    control(client, "Total seconds").use(2.0)
    control(client, "Frames per second").use("10")
    control(client, "Size").use("1280×720")
    control(client, "Video file").use("path.json")
    control(client, "Save video").use()
    cameras = read_cameras(tmp_path / "path.json")
    assert len(cameras) == 20
    assert {(camera.width, camera.height) for camera in cameras} == {(1280, 720)}
    # The vertical field of view stays, with square pixels.
    assert float(cameras[0].K[1, 1]) == pytest.approx(360 / np.tan(0.4))
    assert float(cameras[0].K[0, 0]) == pytest.approx(float(cameras[0].K[1, 1]))
    steps = np.diff([camera.position.numpy() for camera in (*cameras, cameras[0])], axis=0)
    assert np.linalg.norm(steps, axis=1).max() < 0.5
    control(client, "Size").use("as on the page")
    control(client, "Video file").use("video.gif")
    control(client, "Save video").use()
    with Image.open(tmp_path / "video.gif") as video:
        assert (video.size, video.info["duration"]) == ((64, 48), 100)


def test_replaced_video_is_asked_for(keyframes, client, tmp_path):
    (tmp_path / "video.gif").write_text("mine")
    control(client, "Video file").use("video.gif")
    control(client, "Total seconds").use(0.1)
    control(client, "Save video").use()
    assert (tmp_path / "video.gif").read_text() == "mine"
    assert client.status == "**video.gif exists; to replace it, click Replace video.gif**"
    assert control(client, "Replace").visible
    control(client, "Replace").use()
    assert (tmp_path / "video.gif").read_bytes()[:4] == b"GIF8"


def test_path_is_hidden_in_the_preview(keyframes, client):
    shown = []
    client.atomic = lambda: shown.append(sum(not line.removed for line in client.lines)) or contextlib.nullcontext()
    control(client, "Total seconds").use(0.3)
    control(client, "Preview").use()
    assert len(shown) > 2
    assert not any(shown)
    assert sum(not line.removed for line in client.lines) == 1


def test_each_keyframe_has_a_time(keyframes, client, tmp_path):
    step, total = control(client, "Seconds to it"), control(client, "Total seconds")
    assert (step.value, total.value) == (2, 4)
    control(client, "Keyframe").use("2")
    step.use(0.5)
    assert total.value == 2.5
    control(client, "Keyframe").use("1")
    assert not step.visible
    control(client, "Loop").use(True)
    assert (step.visible, step.value, total.value) == (True, 2, 4.5)
    control(client, "Loop").use(False)
    total.use(5.0)  # all is half as fast
    control(client, "Keyframe").use("2")
    assert step.value == 1
    control(client, "Frames per second").use("10")
    control(client, "Video file").use("path.json")
    control(client, "Save video").use()
    path = np.array([camera.position.numpy() for camera in read_cameras(tmp_path / "path.json")])
    assert len(path) == 50
    # The second keyframe is passed after 1 of 5 seconds.
    assert np.linalg.norm(path - POSITIONS[1], axis=1).argmin() == 10
    # Times move with their keyframes, and are saved and loaded.
    control(client, "Move").use("Later")
    assert (control(client, "Keyframe").value, step.value) == ("3", 1)
    control(client, "Save keyframes").use()
    control(client, "Total seconds").use(0.1)
    control(client, "Load keyframes").use()
    assert total.value == 5
    control(client, "Keyframe").use("3")
    assert step.value == 1


@pytest.mark.parametrize("seconds", [0, -1, 601, "1", None, True])
def test_times_of_a_file_are_checked(keyframes, client, tmp_path, seconds):
    control(client, "Save keyframes").use()
    path = tmp_path / "keyframes.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps([*entries[:2], {**entries[2], "seconds": seconds}]))
    control(client, "Load keyframes").use()
    assert client.status == f"**{path}: seconds: expected a number up to 600, found {seconds!r}**"


def test_each_keyframe_has_a_field_of_view(keyframes, client):
    fov = control(client, "Its field of view")
    control(client, "Keyframe").use("2")
    assert fov.value == round(np.degrees(0.8))
    fov.use(20)
    assert client.camera.fov == pytest.approx(np.radians(20))
    control(client, "Keyframe").use("1")
    assert (client.camera.fov, fov.value) == (pytest.approx(0.8), 46)
    control(client, "Keyframe").use("2")
    assert (client.camera.fov, fov.value) == (pytest.approx(np.radians(20)), 20)


def test_keyframe_at_the_camera_is_not_drawn(keyframes, client):
    for index, frustum in enumerate(client.frusta[-3:]):
        client.camera.move(POSITIONS[index])
        assert [other.visible for other in client.frusta[-3:]] == [other is not frustum for other in client.frusta[-3:]]


def test_length_of_videos_is_bounded(keyframes, client):
    step = control(client, "Seconds to it")
    step.use(600.0)
    control(client, "Save video").use()
    assert client.status == "**Total seconds: expected at most 600, found 602**"
