"""One client of the viewer: controls, cameras and photographs."""

import dataclasses
import random
import threading
import time

import numpy as np
import pytest
import torch

from tests.support.fake_viser import Client
from tests.support.viewer_sessions import control, settled, viewed
from tests.support.waiting import wait_for
from tsplat.viewing.start_views import CORE
from tsplat.viewing.viewer import renderer as renderer_module
from tsplat.viewing.viewer.poses import client_pose
from tsplat.viewing.viewer.renderer import Pose, Renderer, Settings

pytest.importorskip("viser", reason="needs the extra viewer")


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
def test_status_tells_that_a_moving_image_shows_fewer(client, models, monkeypatch):
    monkeypatch.setattr(renderer_module, "LARGE", 20)
    monkeypatch.setattr(models[0].renderer, "_number", lambda *_: 20)
    statuses = client.gui.controls["markdown 0"].contents
    with settled(client):
        client.camera.move((0.1, 0.0, -3.0))
    assert any(status.startswith("moving: 20 of 60 Gaussians  \n64×48, ") for status in statuses)
    assert statuses[-1].startswith("60 Gaussians, 60 drawn  \n64×48")


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
@pytest.mark.parametrize("label", ["Go to view", "Compare", "frustum"])
def test_errors_of_every_control_are_told(client, models, label):
    """viser prints a traceback of an exception that a control raises; the fake client passes it on."""
    control(client, "Go to view").use()
    control(client, "Show cameras").use("outlines")
    control(client, "near_plane").use(1e11)
    client.gui.controls["markdown 1"].content = ""
    if label == "frustum":
        client.frusta[0].use()
    else:
        control(client, label).use("split" if label == "Compare" else None)
    assert client.status.startswith("**near, far: expected 0 <= near < far")


@pytest.mark.usefixtures("session")
def test_depths_have_a_scale(client):
    def legends():
        shown = [c.content for name, c in client.gui.controls.items() if name.startswith("html") and c.visible]
        return [content for content in shown if "gradient" in content]

    assert legends() == []
    assert not control(client, "Inverted").visible
    with settled(client):
        control(client, "Show").use("expected depth")
    (bar,) = legends()
    assert "scene units" in bar
    assert control(client, "Inverted").visible
    assert not control(client, "Nearest").visible
    with settled(client):
        control(client, "Fixed range").use(True)
    nearest, farthest = control(client, "Nearest"), control(client, "Farthest")
    assert nearest.visible
    assert f">{nearest.value:.3g}<" in legends()[0]
    assert 0 < nearest.value < farthest.value
    assert nearest.step == control(client, "near_plane").step == control(client, "Lower corner").step
    nearest.use(100.0)
    assert client.status.startswith("**depths: expected 0 < nearest < farthest, found 100 and ")
    with settled(client):
        nearest.use(2.5)
    assert ">2.5<" in legends()[0]
    n = client.images[-1][0]
    with settled(client):
        control(client, "Inverted").use(True)
    assert (client.images[-1][0] != n).any()
    with settled(client):
        control(client, "Show").use("alpha")
    assert "alpha" in legends()[0]
    with settled(client):
        control(client, "Show").use("rgb")
    assert legends() == []


@pytest.mark.usefixtures("session")
def test_errors_stay_until_they_are_dismissed(client):
    dismiss = control(client, "Dismiss")
    control(client, "Model file").use("cropped.xyz")
    control(client, "Export").use()
    error = client.message
    assert error.startswith("**")
    with settled(client):
        client.camera.move((1, 0, -3))
    with settled(client):
        control(client, "SH degree").use(0)
    assert (client.message, dismiss.visible) == (error, True)
    dismiss.use()
    assert (client.message, dismiss.visible) == ("", False)
    # Those of settings also until the settings fit together, and notes until a control is used.
    control(client, "near_plane").use(1e11)
    assert client.message.startswith("**near, far")
    with settled(client):
        control(client, "near_plane").use(0.01)
    assert (client.message, dismiss.visible) == ("", False)
    control(client, "Screenshot").use()
    assert (client.message, dismiss.visible) == ("Downloaded model.png, 64×48", False)
    control(client, "SH degree").use(1)
    assert client.message == ""


def test_errors_of_images_stay_until_the_next_image(session, client, models, monkeypatch):
    def fail(*_):
        raise MemoryError("no memory is left")

    with monkeypatch.context() as patch:
        patch.setattr(models[0].renderer, "render", fail)
        client.camera.move((1, 0, -3))
        wait_for(lambda: client.message == "**no memory is left**")
    with settled(client):
        client.camera.move((1, 0, -3))
    assert client.message == ""


@pytest.mark.usefixtures("session")
def test_another_model(client, models):
    with settled(client):
        control(client, "Model").use("without views")
    assert np.allclose(client.camera.position, models[1].eye)
    assert not control(client, "View").visible
    assert not control(client, "SH degree").visible
    control(client, "Model").use("model")
    assert control(client, "View").visible


def test_2d_gaussians_have_no_other_cameras(client, models):
    from tsplat.viewing.viewer.session import Session

    names = ("Camera model", "Antialiased", "eps2d")
    discs = dataclasses.replace(models[0], name="discs", renderer=Renderer(models[0].gaussians.as_surfels()))
    with settled(client):
        session = Session(client, [models[0], discs])
    with settled(client):
        control(client, "Camera model").use("fisheye")
    with settled(client):
        control(client, "Model").use("discs")
    assert not any(control(client, name).visible for name in names) and "drawn" in client.status
    with settled(client):
        control(client, "Model").use(models[0].name)
    assert all(control(client, name).visible for name in names)
    session.close()


def test_reset_view(session, client, models):
    client.camera.move((5.0, 5.0, 5.0))
    client.camera.up_direction = np.array([1.0, 0, 0])
    control(client, "Up from this view").use()
    up = client.camera.up_direction.copy()
    assert np.allclose(up, -client_pose(client.camera).viewmat[1, :3]) and models[0].up == up.tolist()
    assert f"tsplat view --up {up[0]:.4g} {up[1]:.4g} {up[2]:.4g}" in client.status
    client.camera.up_direction = np.array([1.0, 0, 0])
    control(client, "Turn upright").use()
    assert np.allclose(client.camera.up_direction, models[0].up) and np.allclose(client.camera.position, 5)
    client.camera.up_direction = np.array([1.0, 0, 0])
    control(client, "Reset view").use()
    for name, expected in (("position", models[0].eye), ("look_at", models[0].target), ("up_direction", models[0].up)):
        assert np.allclose(getattr(client.camera, name), expected), name


@pytest.mark.parametrize("with_views", [False, True])
def test_whole_model_fits_into_an_upright_window(with_views):
    from tsplat.viewing.viewer.session import Session

    client, model = Client(0, 40, 60), viewed(with_views=with_views)
    client.camera.position = start = np.array(model.eye)
    client.camera.fov = np.radians(model.fov)
    session = Session(client, [model])
    wait_for(lambda: client.images)

    def has_distance(factor):
        if with_views:  # cameras of a run stay where they are, and see more
            slope = CORE * factor * np.tan(np.radians(model.fov) / 2)
            wide = np.allclose(np.tan(client.camera.fov / 2), slope)
            return wide and np.allclose(client.camera.position, start)
        return np.allclose(client.camera.position, model.target + factor * (start - model.target))

    assert has_distance(2)
    # As the canvas becomes smaller, when controls are docked beside it.
    client.camera.image_width = 20
    client.camera.move(client.camera.position)
    assert has_distance(4)
    # Not once the camera has moved.
    client.camera.move((1.0, 2.0, 3.0))
    client.camera.image_width = 10
    client.camera.move((1.0, 2.0, 3.0))
    assert np.array_equal(client.camera.position, (1, 2, 3))
    control(client, "Reset view").use()
    assert has_distance(8)
    session.close()


def test_controls_that_cannot_be_made_leave_no_thread(client, models, monkeypatch):
    from tsplat.viewing.viewer import session

    def fail(*_):
        raise ConnectionError("the client has gone")

    monkeypatch.setattr(session, "Panel", fail)
    with pytest.raises(ConnectionError):
        session.Session(client, models)
    assert not any(thread.name == "tsplat-viewer" for thread in threading.enumerate())


@pytest.mark.long
def test_random_changes(models, capfd, tmp_path, monkeypatch):
    """Two clients make 600 changes, and one of them leaves in the middle: nothing hangs, nothing is printed."""
    from tsplat.viewing.viewer.session import Session

    monkeypatch.chdir(tmp_path)
    draws = random.Random(0)
    clients = [Client(i, 32, 24) for i in range(2)]
    sessions = [Session(client, models) for client in clients]
    for client in clients:  # for short videos
        for _ in range(2):
            control(client, "Add keyframe").use()
        control(client, "Total seconds").use(0.1)

    def change(client):
        label = draws.choice([
            "Show", "Colormap", "Inverted", "Fixed range", "Nearest", "Farthest", "SH degree", "Background",
            "Resolution", "Camera model", "Antialiased", "near_plane", "far_plane", "radius_clip", "eps2d",
            "Crop", "Lower corner", "Model", "Show cameras", "Go to view", "Compare", "Difference ×", "Step",
            "View", "command Next view", "Field of view", "Model file", "Export", "Add keyframe", "Preview",
            "Keyframe", "", "Move", "Seconds to it", "Total seconds", "Its field of view",
            "Remove all", "Replace", "Loop", "Show path", "Frames per second",
            "Video file", "Save video", "Keyframe file", "Save keyframes", "Load keyframes", "Reset view",
            "Whole model", "move", "canvas",
        ])  # fmt: skip
        if label == "move":
            client.camera.move([draws.uniform(-3, 3) for _ in range(3)])
            return
        if label == "canvas":
            client.camera.image_width, client.camera.image_height = draws.randint(0, 80), draws.randint(0, 80)
            client.camera.move(client.camera.position)
            return
        handle = control(client, label)
        if label.endswith(" file"):
            names = {
                "Model file": ["a.ply", "a.html", "a.spz", "a.xyz"],
                "Video file": ["a.gif", "b.json", "c", "a.avi"],
            }
            handle.use(draws.choice(names.get(label, ["b.json", "k.json"])))
            return
        options = getattr(handle, "options", None)
        if options:
            handle.use(draws.choice(options))
        elif isinstance(handle.value, bool):
            handle.use(draws.random() < 0.5)
        elif isinstance(handle.value, tuple):
            handle.use(tuple(draws.choice([0, 51, 255]) for _ in range(3)))
        elif label in ("SH degree", "Difference ×", "View"):
            handle.use(draws.randint(handle.min, handle.max))
        elif label.endswith("ield of view"):
            handle.use(draws.choice([5, 50, 150]))
        elif label.startswith("Seconds"):
            handle.use(draws.choice([0.1, 0.2]))
        elif handle.value is None:  # a button
            handle.use()
        else:
            handle.use(draws.choice([0.0, 0.01, 0.5, 3.0, 1e10]))

    for i in range(600):
        change(clients[i % 2] if i < 500 else clients[0])
        if i == 500:
            sessions[1].close()
            n = len(clients[1].images)
        if i % 10 == 0:
            time.sleep(0.01)
    control(clients[0], "near_plane").use(0.01)
    for label in ("Crop", "Fixed range"):  # they may be inverted
        control(clients[0], label).use(False)
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
