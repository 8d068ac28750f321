"""One client of a training: controls, plots, images while training runs, hidden pages."""

import threading

import numpy as np
import pytest

from tests.support.fake_viser import Client
from tests.support.training_scenes import make_gaussians, make_views
from tests.support.viewer_sessions import control, described
from tests.support.waiting import wait_for
from tsplat.viewing.trajectories import cameras_of_views
from tsplat.viewing.viewer import LiveTraining, frame_model, live_training, training_tab
from tsplat.viewing.viewer.session import Session

pytest.importorskip("viser", reason="needs the extra viewer")


class Trainer(threading.Thread):
    """Takes steps that shift all Gaussians, until `stop` is set; records the steps."""

    def __init__(self, training, gaussians):
        super().__init__(daemon=True)
        self.training, self.gaussians = training, gaussians
        self.stop, self.steps, self.saved = threading.Event(), 0, []
        training.save = self.save

    def save(self):
        self.saved.append((self.steps, threading.current_thread()))
        return f"Saved step {self.steps}"

    def run(self):
        while not self.stop.is_set():
            self.training.between_steps(self.steps, self.gaussians, lambda: None)
            if self.stop.wait(0.01):
                break
            self.gaussians = self.gaussians.map(lambda tensor: tensor.clone())
            self.gaussians.means.add_(0.01)
            self.steps += 1
            self.training.record(self.steps, 0.5, 10.0 + self.steps, 100 * self.steps)


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch):
    monkeypatch.setattr(training_tab, "INTERVAL", 0.02)


@pytest.fixture
def trainer():
    gaussians = make_gaussians()
    trainer = Trainer(LiveTraining(gaussians, 100_000, backend="torch", paused=True), gaussians)
    yield trainer
    trainer.training.close()
    trainer.stop.set()
    trainer.join(60)


@pytest.fixture
def connect(trainer):
    views = make_views(make_gaussians(), 4)
    model = frame_model(
        "run", trainer.training.renderer, cameras_of_views(views, []), {view.name: view for view in views}, (0, 0, 0)
    )
    sessions = []

    def connect(number=0):
        client = Client(number)
        sessions.append(Session(client, [model], trainer.training))
        return client

    trainer.start()
    yield connect
    for session in sessions:
        session._client.connected = False
        session.close()


def test_controls_of_a_training(connect, trainer):
    client, other = connect(), connect(1)
    assert control(client, "Pause").label == "Resume"
    control(client, "One step").use()
    wait_for(lambda: described(client).startswith("**Step 1 of 100,000**, paused"))
    assert "PSNR 11.00 dB, loss 0.5000" in described(client)
    assert "\n60 Gaussians" in described(client)
    control(client, "Save checkpoint").use()
    assert trainer.saved == [(1, trainer)]
    assert client.status == "Saved step 1"
    control(client, "Pause").use()
    wait_for(lambda: trainer.steps > 5)
    # All clients show the state.
    wait_for(lambda: control(other, "Pause").label == "Pause")
    wait_for(lambda: "steps/s" in described(other))
    control(other, "Time for images (%)").use(50)
    assert trainer.training.share == 0.5
    wait_for(lambda: control(client, "Time for images (%)").value == 50)
    control(other, "Pause").use()
    wait_for(lambda: control(client, "Pause").label == "Resume")
    wait_for(lambda: "paused" in described(client))
    wait_for(lambda: len(control(client, "PSNR").data[0]) == trainer.steps)
    steps, psnr = control(client, "PSNR").data
    assert np.array_equal(psnr, 10 + steps)
    assert np.allclose(control(client, "Gaussians in thousands").data[1], steps / 10)


def test_failed_save_is_told(connect, trainer):
    client = connect()

    def fail():
        raise OSError("no space left")

    trainer.training.save = fail
    control(client, "Save checkpoint").use()
    assert client.status == "**no space left**"


def test_image_follows_the_training(connect, trainer):
    client = connect()
    wait_for(lambda: client.images and client.images[-1][1] == "png")
    first = client.images[-1][0]
    control(client, "Pause").use()
    n = len(client.images)
    wait_for(lambda: len(client.images) > n + 2)
    assert {format for _, format in client.images[n + 1 :]} == {"jpeg"}
    control(client, "Pause").use()
    wait_for(lambda: trainer.training.paused)
    wait_for(lambda: client.images[-1][1] == "png")
    assert client.images[-1][0].shape == first.shape
    assert (client.images[-1][0] != first).any()


def test_photograph_and_render_have_the_same_size_while_training(connect, trainer, monkeypatch):
    monkeypatch.setattr(live_training, "IMAGE_SECONDS", 1e-9)
    client = connect()
    trainer.training.set_share(0.9)
    control(client, "Pause").use()
    wait_for(lambda: client.images and client.images[-1][0].shape[0] < 48)
    control(client, "Go to view").use()
    control(client, "Compare").use("difference")
    wait_for(lambda: "PSNR" in client.status and client.images[-1][0].shape[0] < 30)


def test_nothing_is_rendered_for_a_hidden_page(connect, trainer):
    client = connect()
    wait_for(lambda: client.images)
    client.visible.clear()
    control(client, "Pause").use()
    page = next(thread for thread in threading.enumerate() if thread.name == "tsplat-page")
    assert page.is_alive()
    # A refresh may be under way while the page is hidden.
    wait_for(lambda: trainer.steps > 10)
    wait_for(lambda: not trainer.training._images)
    n, before = len(client.images), described(client)
    seen = trainer.steps
    wait_for(lambda: trainer.steps > seen + 20)
    assert len(client.images) <= n + 1
    assert described(client) == before
    client.visible.set()
    wait_for(lambda: len(client.images) > n + 1 and described(client) != before)


def test_random_changes_while_training(connect, trainer, capfd):
    """A client moves, changes controls, pauses and leaves in the middle of an image: nothing hangs or is printed."""
    draws = np.random.default_rng(0)
    client = connect()
    for i in range(150):
        match draws.integers(6):
            case 0:
                control(client, "Pause").use()
            case 1:
                control(client, "One step").use()
            case 2:
                control(client, "Show").use(draws.choice(control(client, "Show").options))
            case 3:
                control(client, "Time for images (%)").use(int(draws.choice([0, 25, 90])))
            case _:
                client.camera.move(draws.uniform(-3, 3, 3))
        if i == 100:
            leaving = connect(1)
            leaving.camera.move((1, 1, -3))
            leaving.connected = False
    trainer.training.resume()
    trainer.training.set_share(0.25)
    n, step = len(client.images), trainer.steps
    wait_for(lambda: len(client.images) > n and trainer.steps > step)
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")
