"""One client of the viewer: what it reads and writes."""

import io
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.slow import slow_after
from tests.support.viewer_sessions import control, settled, viewed
from tests.support.waiting import wait_for
from tests.viewing.test_scene_pages import read_page
from tsplat.errors import FileError
from tsplat.scene import read_ply
from tsplat.viewing import read_cameras
from tsplat.viewing.viewer.callbacks import escape_markdown

pytest.importorskip("viser", reason="needs the extra viewer")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Sessions read and write in the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("session")
def test_crop_is_exported(client, models, tmp_path):
    control(client, "Lower corner").use((0.0, -9.0, -9.0))
    with settled(client):
        control(client, "Crop").use(True)
    path = tmp_path / "cropped.ply"
    control(client, "Model file").use(path.name)
    control(client, "Export").use()
    expected = models[0].renderer.cropped(((0.0, -9.0, -9.0), (9.0, 9.0, 9.0)))
    assert torch.equal(read_ply(path).means, expected.means)
    assert client.status == f"Wrote {len(expected)} Gaussians to {path}"
    control(client, "Model file").use("cropped.xyz")
    control(client, "Export").use()
    assert "cannot tell the format from the file name" in client.status


@pytest.mark.usefixtures("session")
def test_box_of_the_viewer_is_that_of_the_command_line(client, models, tmp_path):
    control(client, "Crop").use(True)
    for label, corner in (("Lower corner", (0.0, -9.0, -9.0)), ("Upper corner", (9.0, 9.0, 9.0))):
        control(client, label).use(corner)
    path = tmp_path / "cropped.ply"
    control(client, "Model file").use(path.name)
    control(client, "Export").use()
    expected = models[0].renderer.cropped(((0.0, -9.0, -9.0), (9.0, 9.0, 9.0)))
    assert 0 < len(read_ply(path)) == len(expected) < 60
    (option,) = [c for name, c in client.gui.controls.items() if "--crop" in getattr(c, "content", "")]
    assert option.visible
    assert "`--crop 0 -9 -9 9 9 9`" in option.content


@pytest.mark.usefixtures("session")
def test_inverted_box_is_refused(client, tmp_path):
    with settled(client):
        control(client, "Crop").use(True)
    n = len(client.images)
    control(client, "Lower corner").use((0.0, 60.5, 0.0))
    expected = "**Crop: the lower corner is above the upper one in y, 60.5 > "
    assert client.status.startswith(expected)
    control(client, "Export").use()
    assert client.status.startswith(expected)
    assert not list(tmp_path.iterdir())
    assert len(client.images) == n
    with settled(client):
        control(client, "Whole model").use()
    assert client.status.startswith(expected)  # nothing was exported
    control(client, "Dismiss").use()
    assert "60 Gaussians, 60 drawn" in client.status


def test_box_has_steps_of_the_model(client):
    from tsplat.viewing.viewer.session import Session

    model = viewed()
    means = model.gaussians.means
    means.mul_(0.01 / (means.max() - means.min()))
    means[0, 0] = 50.0  # far outside
    session = Session(client, [model])
    low, high = control(client, "Lower corner"), control(client, "Upper corner")
    assert (low.step, low.precision) == (pytest.approx(1e-4), 6)
    assert high.value[0] == 50
    for axis, (least, most) in enumerate(zip(low.value, high.value, strict=True)):
        assert least <= means[:, axis].min() < least + 1e-4
        assert most - 1e-4 < means[:, axis].max() <= most
    session.close()


@pytest.mark.usefixtures("session")
def test_box_is_drawn_while_it_crops(client):
    control(client, "Crop").use(True)
    control(client, "Lower corner").use((-1.0, -2.0, -3.0))
    control(client, "Upper corner").use((1.0, 2.0, 3.0))
    edges = client.lines[-1].value
    assert edges.shape == (12, 2, 3)
    assert len({tuple(map(tuple, edge)) for edge in edges}) == 12
    assert (np.abs(edges) == (1, 2, 3)).all()
    assert ((edges[:, 0] != edges[:, 1]).sum(-1) == 1).all()
    control(client, "Crop").use(False)
    assert all(handle.removed for handle in client.lines)


@pytest.mark.usefixtures("session")
def test_corners_of_the_box_are_dragged(client):
    control(client, "Crop").use(True)
    low, high = control(client, "Lower corner"), control(client, "Upper corner")
    lower, upper = client.arrows
    assert (tuple(lower.position), tuple(upper.position)) == (low.value, high.value)

    def drag(arrows, position):
        arrows.position = np.array(position)
        arrows.use()

    drag(lower, (-0.512345678, 0.1, -9.0))
    assert low.value == pytest.approx((-0.5123, 0.1, -9.0), abs=low.step)
    assert np.array_equal(np.round(np.array(low.value) / low.step), np.round(low.value / np.array(low.step), 6))
    drag(upper, (0.6, -9.0, 9.0))  # not below the lower corner
    assert high.value == (0.6, 0.1, 9.0)
    assert client.message == ""
    # Numbers move the arrows.
    low.use((-3.0, -3.0, -3.0))
    assert tuple(lower.position) == (-3.0, -3.0, -3.0)
    assert len(client.arrows) == 2
    control(client, "Crop").use(False)
    assert all(arrows.removed for arrows in client.arrows)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", ["empty.ply", "empty.html"])
def test_crop_that_leaves_nothing_is_not_exported(client, tmp_path, name):
    control(client, "Crop").use(True)
    for label in ("Lower corner", "Upper corner"):
        control(client, label).use((50.0, 50.0, 50.0))
    control(client, "Model file").use(name)
    control(client, "Export").use()
    assert any("crop: no Gaussian has its center between" in status for status in client.statuses)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", ["", "a\0b.ply"])
@pytest.mark.parametrize(
    ("label", "button"),
    [("Model file", "Export"), ("Video file", "Save video"), ("Keyframe file", "Load keyframes"),
     ("Keyframe file", "Save keyframes")],
)  # fmt: skip
def test_names_that_no_file_can_have(client, label, button, name):
    control(client, label).use(name)
    control(client, button).use()
    assert f"**{label}: expected the name of a file, found {escape_markdown(repr(name))}**" in client.statuses


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", ["a.ply", "a.html", "a.gif", "frames", "a.json", "keys.json"])
def test_each_kind_of_file_is_written(client, tmp_path, name):
    path = tmp_path / name
    for _ in range(2):
        control(client, "Add keyframe").use()
    control(client, "Total seconds").use(0.1)
    label, button = ("Model file", "Export") if name in ("a.ply", "a.html") else ("Video file", "Save video")
    if name == "keys.json":
        label, button = "Keyframe file", "Save keyframes"
    control(client, label).use(path.name)
    control(client, button).use()
    assert any(status.startswith("Wrote") for status in client.statuses)
    assert path.exists()


@pytest.mark.usefixtures("session")
def test_page_is_exported_with_the_current_camera(client, tmp_path):
    client.camera.move((1, 0, -3))
    path = tmp_path / "scene.html"
    control(client, "Model file").use(path.name)
    control(client, "Export").use()
    assert client.status == f"Wrote 60 Gaussians, {path.stat().st_size / 1e6:.1f} MB, to {path}"
    page, scene = read_page(path)
    assert page.of("title")[0][2] == "scene"
    # Half a turn around x, as up is -y.
    assert scene["settings"]["cameras"][0]["initial"]["position"] == pytest.approx([1, 0, 3])
    assert scene["settings"]["cameras"][0]["initial"]["target"] == pytest.approx([0, 0, 0])
    assert scene["slopes"] == pytest.approx([np.tan(0.4) * 64 / 48, np.tan(0.4)])
    assert scene["settings"]["background"]["color"] == pytest.approx([0.2, 0.4, 0.6], abs=1 / 255)


@pytest.mark.usefixtures("session")
def test_screenshot_is_downloaded(client):
    control(client, "Screenshot").use()
    assert client.status == "Downloaded model.png, 64×48"
    ((name, content),) = client.downloads
    assert name == "model.png"
    assert np.array_equal(np.array(Image.open(io.BytesIO(content))), client.images[-1][0])


@pytest.mark.usefixtures("session")
def test_written_file_is_offered_for_download(client, tmp_path):
    button = control(client, "Download")
    assert not button.visible
    control(client, "Export").use()
    assert (button.visible, button.label) == (True, "Download cropped.ply")
    button.use()
    assert client.downloads == [("cropped.ply", (tmp_path / "cropped.ply").read_bytes())]
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "cropped.ply").unlink()
    (tmp_path / "cropped.ply").symlink_to(secret)
    button.use()
    assert "cropped.ply: the file no longer exists; write it again" in client.status
    assert len(client.downloads) == 1
    # What is not written is not offered.
    control(client, "Model file").use("../other.ply")
    control(client, "Export").use()
    assert not button.visible


@pytest.mark.usefixtures("session")
def test_video(client, tmp_path):
    for position in ((0, 0, -3), (1, 0, -3), (1, 1, -3)):
        client.camera.move(position)
        control(client, "Add keyframe").use()
    control(client, "Total seconds").use(0.5)
    control(client, "Video file").use("cameras.json")
    control(client, "Save video").use()
    cameras = read_cameras(tmp_path / "cameras.json")
    assert len(cameras) == 15
    for camera, position in ((cameras[0], (0, 0, -3)), (cameras[7], (1, 0, -3)), (cameras[14], (1, 1, -3))):
        assert torch.allclose(camera.position, torch.tensor(position, dtype=torch.float64), atol=1e-5)
    control(client, "Video file").use("video.gif")
    control(client, "Save video").use()
    assert (tmp_path / "video.gif").read_bytes()[:4] == b"GIF8"
    assert "Wrote 15 frames" in client.status
    control(client, "Preview").use()
    assert np.allclose(client.camera.position, (1, 1, -3), atol=1e-5)
    control(client, "Remove all").use()
    control(client, "Replace").use()
    control(client, "Video file").use("other.gif")
    control(client, "Save video").use()
    assert "expected at least two keyframes, found 0" in client.status


@pytest.mark.usefixtures("session")
def test_keyframes_are_saved_and_loaded(client, tmp_path):
    path = tmp_path / "keyframes.json"
    control(client, "Keyframe file").use(path.name)
    control(client, "Save keyframes").use()
    assert "**keyframes: expected at least one, found none; add one first**" in client.statuses
    positions = ((0, 0, -3), (1, 0, -3), (1, 1, -3))
    for position in positions:
        client.camera.move(position)
        control(client, "Add keyframe").use()
    control(client, "Save keyframes").use()
    assert f"Wrote 3 keyframes to {path}" in client.statuses
    (count,) = [c for c in client.gui.controls.values() if getattr(c, "content", "") == "3 keyframes"]
    control(client, "Remove all").use()
    control(client, "Replace").use()
    assert count.content == "No keyframes"
    control(client, "Load keyframes").use()
    assert f"Read 3 keyframes from {path}" in client.statuses
    assert count.content == "3 keyframes"
    control(client, "Total seconds").use(0.2)
    control(client, "Video file").use("path.json")
    control(client, "Save video").use()
    path_cameras = read_cameras(tmp_path / "path.json")
    assert len(path_cameras) == 6
    for camera, position in ((path_cameras[0], positions[0]), (path_cameras[-1], positions[-1])):
        assert np.allclose(camera.position, position, atol=1e-5)
        assert (camera.width, camera.height) == (64, 48)
    path.write_text("[]")
    control(client, "Load keyframes").use()
    assert f"**{path}: contains no cameras**" in client.statuses
    assert count.content == "3 keyframes"


@pytest.mark.parametrize("button", slow_after(1, ["Preview", "Save video"]))
def test_client_that_leaves_ends_its_preview_and_its_video(session, client, tmp_path, button):
    for x in (0, 1):
        client.camera.move((x, 0, -3))
        control(client, "Add keyframe").use()
    control(client, "Total seconds").use(600.0)
    control(client, "Video file").use("video.gif")
    running = threading.Thread(target=control(client, button).use)
    running.start()
    n = len(client.images)
    wait_for(lambda: len(client.images) > n if button == "Preview" else "Rendering frame 3 of 18000" in client.statuses)
    session.close()
    statuses, n = len(client.statuses), len(client.images)
    running.join(60)
    assert not running.is_alive()
    time.sleep(0.1)
    assert (len(client.statuses), len(client.images)) == (statuses, n)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def opening(client, models):
    """A session that opens files: models, but `absent.ply` and `damaged.ply`."""
    from tsplat.viewing.viewer.session import Session

    def open_model(path, warn):
        if Path(path).name == "absent.ply":
            raise FileNotFoundError("absent.ply: no such file")
        if Path(path).name == "damaged.ply":
            raise FileError(f"{path}: damaged, {Path(path).read_bytes()}")
        warn(f"{path}: a note")
        return viewed(Path(path).name, with_views=False, sh_degree=0)

    session = Session(client, models[:1], open_model=open_model)
    yield session
    session.close()


def test_model_is_opened(opening, client, models, tmp_path):
    assert not control(client, "Model").visible
    control(client, "Model to open").use("absent.ply")
    control(client, "Open").use()
    assert "**absent.ply: no such file**" in client.statuses
    control(client, "Model to open").use("other.ply")
    with settled(client):
        control(client, "Open").use()
    assert f"Opened other.ply; {tmp_path}/other.ply: a note" in client.statuses
    assert control(client, "Model").visible
    assert control(client, "Model").options == ["model", "other.ply"]
    assert opening._panel.model.name == "other.ply"
    assert np.allclose(client.camera.position, models[0].eye)


def upload(client, name, content=b"content"):
    """Uploads a file as viser does; returns what viser keeps of it."""
    button = control(client, "Upload a file")
    button._value = types.SimpleNamespace(name=name, content=content)
    button.use()
    return button.value


@pytest.mark.usefixtures("opening")
def test_file_is_uploaded(client, tmp_path):
    with settled(client):
        assert upload(client, "other.ply").content == b""
    assert client.message == "Opened other.ply; other.ply: a note"
    assert control(client, "Model").value == "other.ply"
    upload(client, "damaged.ply")
    assert client.message == "**damaged.ply: damaged, b'content'**"
    assert not list(tmp_path.iterdir())
    for name in ("../other.ply", ".ply", ""):
        upload(client, name)
        assert client.message.startswith("**expected the name of a file, without a folder or a leading dot, found ")
    # What cannot be opened does not take the place of what is shown.
    assert control(client, "Model").options == ["model", "other.ply"]
    assert control(client, "Dismiss").visible


@pytest.mark.usefixtures("session")
def test_page_that_opens_no_models(client):
    assert "Upload a file" not in client.gui.controls
