"""Photographs compared with their renders, in the main image of one client."""

import dataclasses
import types

import numpy as np
import pytest
import torch

from tests.support.fake_viser import Client
from tests.support.slow import slow_after
from tests.support.training_scenes import HEIGHT, WIDTH
from tests.support.viewer_sessions import control, settled, viewed
from tests.support.waiting import wait_for
from tsplat.scene import Camera, intrinsics
from tsplat.viewing.colormaps import apply_colormap
from tsplat.viewing.viewer.comparison import BARS, Comparison, letterbox
from tsplat.viewing.viewer.poses import client_pose, fitting_fov, pose_of
from tsplat.viewing.viewer.renderer import Settings

pytest.importorskip("viser", reason="needs the extra viewer")


@pytest.fixture
def _black(client, session):
    """The photographs of this model are its renders on black."""
    with settled(client):
        control(client, "Background").use((0, 0, 0))


def go(client, mode, view=0):
    """Goes to a view and compares it; returns the image."""
    control(client, "View").use(view)
    with settled(client):
        control(client, "Compare").use(mode)
        wait_for(lambda: WORDS[mode] in client.status)
    wait_for(lambda: client.images[-1][1] == "png")
    return client.images[-1][0]


WORDS = {"photograph": "Photograph", "render": "Render of", "difference": "Difference", "split": "on the left"}


@pytest.mark.usefixtures("_black")
def test_photograph_render_difference_and_split(client, models):
    camera = models[0].cameras[2]
    photograph = models[0].views[camera.name].image.numpy()
    assert np.array_equal(go(client, "photograph", 2), photograph)  # the canvas has its aspect ratio
    assert np.allclose(client.camera.position, camera.position)
    assert client.status.startswith(f"Photograph {camera.name}")
    assert np.abs(go(client, "render", 2).astype(int) - photograph).max() <= 1
    assert "PSNR" in client.status
    zero = apply_colormap(torch.zeros(1, 1), "magma")[0, 0].numpy()
    assert np.abs(go(client, "difference", 2).astype(int) - zero).max() < 15
    assert control(client, "Difference ×").visible
    split = go(client, "split", 2)
    line = slice(WIDTH // 2 - 1, WIDTH // 2 + 1)
    assert (split[:, line] == 255).all()
    split[:, line] = photograph[:, line]
    assert np.abs(split.astype(int) - photograph).max() <= 1


def test_difference_is_scaled_and_colored(models):
    view = next(iter(models[0].views.values()))
    brighter = dataclasses.replace(view, image=(view.image // 2))
    settings, size = Settings(), (WIDTH, HEIGHT)
    frames = [
        Comparison(brighter, "difference", gain=gain).render(models[0].renderer, size, settings, None, 1, lambda: True)
        for gain in (1, 4)
    ]
    render = models[0].renderer.render(pose_of(view.camera), settings).image
    difference = torch.from_numpy(np.abs(render.astype(float) - brighter.image.numpy()).mean(-1) / 255)
    for frame, gain in zip(frames, (1, 4), strict=True):
        expected = apply_colormap(gain * difference, "magma").numpy()
        assert np.abs(frame.image.astype(int) - expected).mean() < 1
    assert frames[0].image.mean() < frames[1].image.mean()
    mask = torch.zeros(view.image.shape[:2], dtype=torch.bool)
    masked = Comparison(dataclasses.replace(brighter, mask=mask), "difference")
    image = masked.render(models[0].renderer, size, settings, None, 1, lambda: True).image
    assert (image == image[0, 0]).all()


def test_letterbox():
    image = np.full((30, 40, 3), 200, np.uint8)
    for width, height, shape in ((64, 48, (30, 40)), (80, 30, (30, 80)), (40, 120, (120, 40)), (1, 1, (40, 40))):
        boxed = letterbox(image, width, height)
        assert boxed.shape[:2] == shape
        assert (boxed == 200).all(-1).sum() == 30 * 40
        assert set(np.unique(boxed)) <= {BARS, 200}
        rows, columns = np.nonzero((boxed == 200).all(-1))
        assert abs(rows.mean() - (shape[0] - 1) / 2) <= 0.5
        assert abs(columns.mean() - (shape[1] - 1) / 2) <= 0.5


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_whole_photograph_fits_into_the_window(width, height):
    camera = Camera(torch.eye(4), intrinsics(60, 40, 50), 60, 40)
    tangent = np.tan(fitting_fov(camera, width, height) / 2)
    slopes = np.array([width / height * tangent, tangent])
    needed = np.array([1.5, 1.0]) * np.tan(np.radians(25))
    assert (slopes >= needed * (1 - 1e-6)).all()
    assert np.isclose(slopes, needed).any()


@pytest.mark.usefixtures("_black")
def test_comparison_ends_where_the_camera_leaves_the_view(client, models):
    go(client, "split", 1)
    with settled(client):
        client.camera.move(client.camera.position + 0.1)
    assert "drawn" in client.status
    assert client.images[-1][0].shape[:2] == (48, 64)
    assert all(knob.removed for knob in client.knobs)
    with settled(client):
        control(client, "Go to view").use()
    assert "on the left" in client.status
    assert not client.knobs[-1].removed


@pytest.mark.usefixtures("_black")
def test_split_follows_its_handle(client, models):
    go(client, "split")
    with settled(client):
        event = types.SimpleNamespace(end_screen_pos=(0.25, 0.5))
        for callback in client.knobs[-1].callbacks:
            callback(event)
    image = client.images[-1][0]
    column = WIDTH // 4
    assert (image[:, column - 1 : column + 1] == 255).all()
    assert not (image[:, WIDTH // 2] == 255).all()
    # The handle is on the line.
    pose = client_pose(client.camera)
    x, _, z = (pose.viewmat[:3, :3].double().numpy() @ client.knobs[-1].position) + pose.viewmat[:3, 3].numpy()
    assert x / z / np.tan(pose.fov / 2) * 48 / 64 == pytest.approx(-0.5, abs=1e-4)


@pytest.mark.usefixtures("_black")
@pytest.mark.parametrize("way", slow_after(1, ["buttons", "keys", "frustum"]))
def test_previous_and_next_view(client, models, way):
    names = [camera.name for camera in models[0].cameras]
    go(client, "photograph")
    control(client, "Show cameras").use("photographs")
    assert client.frusta[0].image.shape == (HEIGHT, WIDTH, 3)

    def step(forward):
        with settled(client):
            if way == "frustum":
                client.frusta[(control(client, "View").value + (1 if forward else -1)) % 4].use()
            elif way == "keys":
                control(client, f"command {'Next' if forward else 'Previous'} view").use()
            else:
                control(client, "Step").use("Next (N)" if forward else "Previous (P)")

    for forward, index in ((True, 1), (True, 2), (False, 1), (False, 0), (False, 3)):
        step(forward)
        assert control(client, "View").value == index
        assert client.status.startswith(f"Photograph {names[index]}")
        assert any(f"**{names[index]}** · " in getattr(c, "content", "") for c in client.gui.controls.values())
    kind = "test" if models[0].cameras[3].is_test else "training"
    assert any(f"{kind} view · 40×30" in getattr(c, "content", "") for c in client.gui.controls.values())
    # Cameras do not cover what is compared.
    assert not any(frustum.visible for frustum in client.frusta)
    with settled(client):
        control(client, "Compare").use("off")
    assert [frustum.visible for frustum in client.frusta] == [True, True, True, False]


@pytest.mark.usefixtures("session")
def test_photographs_are_read_when_they_are_needed(client, models):
    views, reads = dict(models[0].views), []
    models[0].views.clear()

    def read():
        reads.append(None)
        if len(reads) == 1:
            raise FileNotFoundError("scene: no such file")
        return views

    models[0].read_views = read
    control(client, "Go to view").use()
    assert not reads
    control(client, "Compare").use("photograph")
    assert {"Reading the photographs", "**scene: no such file**"} <= set(client.statuses)
    for _ in range(2):
        with settled(client):
            control(client, "Go to view").use()
    assert len(reads) == 2
    assert client.status.startswith(f"Photograph {models[0].cameras[0].name}")


@pytest.mark.usefixtures("session")
def test_missing_photograph_is_told(client, models):
    models[0].views.pop(models[0].cameras[1].name)
    control(client, "View").use(1)
    control(client, "Compare").use("photograph")
    assert client.status.startswith("**Compare: the photograph '1' was not found; to give its scene")


def test_model_with_a_single_camera(client):
    """The slider has a second value."""
    from tsplat.viewing.viewer.session import Session

    model = viewed()
    del model.cameras[1:]
    session = Session(client, [model])
    assert go(client, "photograph", 1).shape == (HEIGHT, WIDTH, 3)
    assert client.status.startswith(f"Photograph {model.cameras[0].name}")
    session.close()


def test_comparison_after_the_end_of_a_training_is_told(session, client, models, monkeypatch):
    def fail(*_):
        raise RuntimeError("training has ended")

    monkeypatch.setattr(models[0].renderer, "render", fail)
    n = len(client.statuses)
    control(client, "Compare").use("render")
    wait_for(lambda: "**training has ended**" in client.statuses[n:])
    session._worker.close()


def test_upright_window():
    """The photograph is shown whole, between bars."""
    from tsplat.viewing.viewer.session import Session

    client, model = Client(0, 40, 90), viewed()
    session = Session(client, [model])
    image = go(client, "photograph")
    assert image.shape == (90, 40, 3)
    assert np.array_equal(image[30:60], model.views[model.cameras[0].name].image.numpy())
    assert (image[:30] == BARS).all()
    session.close()
