"""One client of the viewer: controls, cameras, crop and videos."""

import contextlib
import dataclasses
import random
import threading
import time

import numpy as np
import pytest
import torch

from tests.support.fake_viser import Client
from tests.support.training_scenes import make_gaussians, make_views
from tests.support.waiting import wait_for
from tests.viewing.test_scene_pages import read_page
from tsplat.scene import read_ply
from tsplat.viewing import read_cameras
from tsplat.viewing.trajectories import cameras_of_views
from tsplat.viewing.viewer.renderer import Pose, Renderer, Settings
from tsplat.viewing.viewer.viewed_models import ViewedModel

pytest.importorskip("viser", reason="needs the extra viewer")


def viewed(name="model", with_views=True, sh_degree=1):
    gaussians = make_gaussians(sh_degree=sh_degree)
    shN = 0.3 * torch.randn(gaussians.shN.shape, generator=torch.Generator().manual_seed(0))
    gaussians = dataclasses.replace(gaussians, shN=shN)
    views = make_views(gaussians, 4) if with_views else []
    cameras = cameras_of_views(views[:3], views[3:])
    return ViewedModel(
        name, Renderer(gaussians), cameras, {view.name: view for view in views}, (0.2, 0.4, 0.6),
        [0.0, -1.0, -3.0], [0.0, 0.0, 0.0], [0.0, -1.0, 0.0], 45.0,
    )  # fmt: skip


@pytest.fixture
def models():
    return [viewed(), viewed("without views", with_views=False, sh_degree=0)]


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def session(client, models):
    from tsplat.viewing.viewer.session import Session

    session = Session(client, models)
    wait_for(lambda: client.images and client.images[-1][1] == "png")
    yield session
    session.close()


@contextlib.contextmanager
def settled(client):
    """Waits for the image at rest after changes."""
    n = len(client.images)
    yield
    wait_for(lambda: len(client.images) > n and client.images[-1][1] == "png")


def control(client, label):
    return client.gui.controls[label]


@pytest.mark.usefixtures("session")
def test_image_at_rest_is_that_of_the_renderer(client, models):
    with settled(client):
        client.camera.move((0.1, 0.0, -3.0))
    image = client.images[-1][0]
    viewmat = torch.eye(4)
    viewmat[:3, 3] = torch.tensor([-0.1, 0.0, 3.0])
    settings = Settings(sh_degree=1, background=(51 / 255, 102 / 255, 153 / 255))
    expected = models[0].renderer.render(Pose(viewmat, 0.8, 64, 48), settings).image
    assert np.array_equal(image, expected)
    assert "60 Gaussians, 60 drawn" in client.status


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("label", "value"),
    [("Show", "expected depth"), ("SH degree", 0), ("Background", (255, 0, 0)), ("Camera model", "ortho"),
     ("Antialiased", True), ("near_plane", 3.0), ("eps2d", 5.0), ("Resolution", "half")],
)  # fmt: skip
def test_controls_change_the_image(client, label, value):
    before = client.images[-1][0]
    with settled(client):
        control(client, label).use(value)
    after = client.images[-1][0]
    assert before.shape != after.shape or (before != after).any()


@pytest.mark.usefixtures("session")
def test_settings_that_do_not_fit_together_are_told(client):
    control(client, "far_plane").use(0.0)
    wait_for(lambda: "near, far: expected 0 <= near < far" in client.status)
    with settled(client):
        control(client, "far_plane").use(100.0)
    assert "drawn" in client.status


@pytest.mark.usefixtures("session")
def test_views(client, models):
    camera = models[0].cameras[2]
    control(client, "View").use(2)
    with settled(client):
        control(client, "Go to view").use()
        assert np.allclose(client.camera.position, camera.position)
    photograph = control(client, "image")
    view = models[0].views[camera.name]
    assert (photograph.visible, photograph.label) == (True, camera.name)
    assert np.array_equal(photograph.image, view.image.numpy())
    # The photographs of this model are its renders on black.
    control(client, "Background").use((0, 0, 0))
    control(client, "Image").use("difference")
    assert photograph.image.max() <= 1
    control(client, "Image").use("split")
    assert np.abs(photograph.image.astype(int) - view.image.numpy()).max() <= 1
    control(client, "Show cameras").use(True)
    assert len(client.frusta) == 4
    client.frusta[1].use()
    assert np.allclose(client.camera.position, models[0].cameras[1].position)
    control(client, "Show cameras").use(False)
    assert all(handle.removed for handle in client.frusta)


@pytest.mark.usefixtures("session")
def test_another_model(client, models):
    with settled(client):
        control(client, "Model").use("without views")
    assert np.allclose(client.camera.position, models[1].eye)
    assert not control(client, "View").visible
    assert not control(client, "SH degree").visible
    control(client, "Model").use("model")
    assert control(client, "View").visible


@pytest.mark.usefixtures("session")
def test_crop_is_exported(client, models, tmp_path):
    control(client, "Lower corner").use((0.0, -9.0, -9.0))
    with settled(client):
        control(client, "Crop").use(True)
    path = tmp_path / "cropped.ply"
    control(client, "Model file").use(str(path))
    control(client, "Export").use()
    expected = models[0].renderer.cropped(((0.0, -9.0, -9.0), (9.0, 9.0, 9.0)))
    assert torch.equal(read_ply(path).means, expected.means)
    assert client.status == f"Wrote {len(expected)} Gaussians to {path}"
    control(client, "Model file").use(str(tmp_path / "cropped.xyz"))
    control(client, "Export").use()
    assert "cannot tell the format from the file name" in client.status


@pytest.mark.usefixtures("session")
def test_page_is_exported_with_the_current_camera(client, tmp_path):
    client.camera.move((1, 0, -3))
    path = tmp_path / "scene.html"
    control(client, "Model file").use(str(path))
    control(client, "Export").use()
    assert client.status == f"Wrote 60 Gaussians to {path}, {path.stat().st_size / 1e6:.1f} MB"
    page, scene = read_page(path)
    assert page.of("title")[0][2] == "scene"
    # Half a turn around x, as up is -y.
    assert scene["settings"]["cameras"][0]["initial"]["position"] == pytest.approx([1, 0, 3])
    assert scene["settings"]["cameras"][0]["initial"]["target"] == pytest.approx([0, 0, 0])
    assert scene["slopes"] == pytest.approx([np.tan(0.4) * 64 / 48, np.tan(0.4)])
    assert scene["settings"]["background"]["color"] == pytest.approx([0.2, 0.4, 0.6], abs=1 / 255)


@pytest.mark.usefixtures("session")
def test_video(client, tmp_path):
    for position in ((0, 0, -3), (1, 0, -3), (1, 1, -3)):
        client.camera.move(position)
        control(client, "Add keyframe").use()
    control(client, "Seconds").use(0.5)
    control(client, "Video file").use(str(tmp_path / "cameras.json"))
    control(client, "Save video").use()
    cameras = read_cameras(tmp_path / "cameras.json")
    assert len(cameras) == 15
    for camera, position in ((cameras[0], (0, 0, -3)), (cameras[7], (1, 0, -3)), (cameras[14], (1, 1, -3))):
        assert torch.allclose(camera.position, torch.tensor(position, dtype=torch.float64), atol=1e-5)
    control(client, "Video file").use(str(tmp_path / "video.gif"))
    control(client, "Save video").use()
    assert (tmp_path / "video.gif").read_bytes()[:4] == b"GIF8"
    assert "Wrote 15 frames" in client.status
    control(client, "Preview").use()
    assert np.allclose(client.camera.position, (1, 1, -3), atol=1e-5)
    control(client, "Remove all").use()
    control(client, "Save video").use()
    assert "expected at least two keyframes, found 0" in client.status


def test_random_changes(models, capfd, tmp_path):
    """Two clients change 200 controls, and one of them leaves in the middle: nothing hangs, nothing is printed."""
    from tsplat.viewing.viewer.session import Session

    draws = random.Random(0)
    clients = [Client(i, 32, 24) for i in range(2)]
    sessions = [Session(client, models) for client in clients]

    def change(client):
        label = draws.choice(["Show", "Colormap", "SH degree", "Background", "Resolution", "Camera model",
                              "Antialiased", "near_plane", "far_plane", "radius_clip", "eps2d", "Crop", "Lower corner",
                              "Model", "Show cameras", "Go to view", "move", "canvas"])  # fmt: skip
        if label == "move":
            client.camera.move([draws.uniform(-3, 3) for _ in range(3)])
            return
        if label == "canvas":
            client.camera.image_width, client.camera.image_height = draws.randint(0, 80), draws.randint(0, 80)
            client.camera.move(client.camera.position)
            return
        handle = control(client, label)
        options = getattr(handle, "options", None)
        if options:
            handle.use(draws.choice(options))
        elif isinstance(handle.value, bool):
            handle.use(draws.random() < 0.5)
        elif isinstance(handle.value, tuple):
            handle.use(tuple(draws.choice([0, 51, 255]) for _ in range(3)))
        elif hasattr(handle, "step") and label == "SH degree":
            handle.use(draws.randint(handle.min, handle.max))
        elif label == "Go to view":
            if client.gui.controls["View"].visible:
                handle.use()
        else:
            handle.use(draws.choice([0.0, 0.01, 0.5, 3.0, 1e10]))

    for i in range(200):
        change(clients[i % 2] if i < 150 else clients[0])
        if i == 150:
            sessions[1].close()
            n = len(clients[1].images)
        if i % 10 == 0:
            time.sleep(0.01)
    control(clients[0], "near_plane").use(0.01)
    with settled(clients[0]):
        control(clients[0], "far_plane").use(1e10)
    sessions[0].close()
    assert len(clients[1].images) == n
    assert not any(thread.name == "tsplat-viewer" and thread.is_alive() for thread in threading.enumerate())
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")


def test_settings_are_fields_of_controls(session):
    """Every setting has a control."""
    names = {field.name for field in dataclasses.fields(Settings)}
    assert set(vars(session._panel.settings())) == names
