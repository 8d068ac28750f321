"""Training with a viewer: the same results, pauses, checkpoints, signals, options."""

import dataclasses
import hashlib
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from tests.support.fake_viser import Client
from tests.support.training_scenes import gray, make_gaussians, make_views
from tests.support.viewer_sessions import described
from tests.support.waiting import wait_for
from tsplat import UnsupportedError, cli
from tsplat.errors import MissingExtraError
from tsplat.runtime.process_group import RankGroup
from tsplat.scene import procedural_capture
from tsplat.scene.formats.checkpoints import find_checkpoints
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.support.interruption import Interrupted
from tsplat.training import Config, LiveView, RunConfig, Trainer, ViewOptions, fit, read_newest, resume, train
from tsplat.training.runs import live_view
from tsplat.training.runs import train as runs
from tsplat.viewing.viewer import training_tab
from tsplat.viewing.viewer.callbacks import escape_markdown
from tsplat.viewing.viewer.session import Session

pytest.importorskip("viser", reason="needs the extra viewer")

STEPS = 24


class Viewer:
    """A viewer without a server: a single client, for which `use` is called in another thread."""

    def __init__(self, use=None):
        self.use, self.client, self.error = use, None, None

    def __call__(self, models, *, address, port, training, folder, host_name):
        self.client, self.training, self.port = Client(), training, port
        self.url = f"http://localhost:{port}"
        self.proxy_url = ""
        self.session = Session(self.client, models, training)
        self.closed = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self):
        try:
            if self.use is not None:
                self.use(self)
        except Exception as error:
            self.error = error
            self.training.close()

    def click(self, label, value=None):
        self.client.gui.controls[label].use(value)

    def close(self, message=""):
        self.closed, self.message = True, message
        self.client.connected = False
        self.session.close()

    def join(self):
        """Waits for the thread, and raises its error."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.fixture
def show(monkeypatch):
    """Makes viewers of a single client."""

    def show(use=None):
        viewer = Viewer(use)
        monkeypatch.setattr(live_view, "Viewer", viewer)
        return viewer

    monkeypatch.setattr(training_tab, "INTERVAL", 0.02)
    return show


@pytest.fixture(scope="module")
def capture():
    return procedural_capture(40, 30, 6, 2, 200, seed=3)


@pytest.fixture(autouse=True)
def _procedural_scene(capture, monkeypatch):
    monkeypatch.setattr(runs, "read_run_capture", lambda config, device, *_: capture.to(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def configuration(kind="mcmc"):
    schedule = dict(refine_start_iter=2, refine_every=5, refine_stop_iter=STEPS)
    strategies = {
        "default": DefaultStrategy(grow_grad2d=1e-6, reset_every=9, **schedule),
        "mcmc": MCMCStrategy(cap_max=240, **schedule),
    }
    return RunConfig(
        strategy=strategies[kind], steps=STEPS, seed=5, sh_degree=1, save_every=10, eval_every=6, deterministic=True,
        random_background=True, pose_refinement=True, exposure=True, keep=20, backend="torch",
    )  # fmt: skip


def digests(run):
    """Hashes of all tensors of the newest checkpoint, and its other values without times."""
    checkpoint = read_newest(run)[1]
    tensors = {**checkpoint.gaussians.tensors(), **checkpoint.tensors}
    hashes = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
    figures = {name: value for name, value in checkpoint.figures.items() if name not in ("seconds", "random")}
    # The random numbers of NumPy and Python are not seeded.
    return hashes, figures, checkpoint.figures["random"]["torch"]


def look(viewer):
    """Takes single steps, saves, changes what is rendered, pauses, and moves the camera until training ends."""
    client, training = viewer.client, viewer.training
    draws = np.random.default_rng(0)
    for step in (1, 2, 3):
        viewer.click("One step")
        wait_for(lambda step=step: training.step == step)
    viewer.click("Save checkpoint")
    n = len(client.images)
    viewer.click("Show", "expected depth")
    wait_for(lambda: len(client.images) > n)
    viewer.click("Show", "rgb")
    viewer.click("Time for images (%)", 90)
    viewer.click("Pause")
    paused = False
    while not viewer.closed:
        client.camera.move(draws.uniform(-3, 3, 3))
        if not paused and training.step > 12:
            viewer.click("Pause")
            wait_for(lambda: training.paused)
            viewer.click("Save checkpoint")
            viewer.click("Go to view")
            viewer.click("Compare", "split")
            viewer.click("Pause")
            paused = True
        time.sleep(0.002)
    assert paused


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mcmc", "default"])
def test_results_are_identical_with_a_viewer(kind, tmp_path, show, capsys):
    torch.manual_seed(1)
    train(configuration(kind), tmp_path / "without")
    viewer = show(look)
    torch.manual_seed(1)
    train(configuration(kind), tmp_path / "with", view=ViewOptions(paused=True))
    viewer.join()
    assert digests(tmp_path / "with") == digests(tmp_path / "without")
    assert len(viewer.client.images) > 10
    names = [path.name for path in find_checkpoints(tmp_path / "with" / "checkpoints")]
    assert "step_00000003" in names
    assert len(names) == 5  # 10, 20 and 24 by themselves
    printed = capsys.readouterr().out
    assert "viewing training at http://localhost:8080, paused\n" in printed
    assert printed.endswith(f"finished: tsplat view {tmp_path / 'with'}\n")
    assert viewer.message == f"finished: tsplat view {tmp_path / 'with'}"
    (session,) = json.loads((tmp_path / "with" / "run.json").read_text())["sessions"]
    assert session["seconds"]["viewing"] > 0


@pytest.mark.long
def test_run_resumes_bit_exactly_from_a_checkpoint_saved_by_hand(tmp_path, show):
    torch.manual_seed(1)
    train(configuration(), tmp_path / "without")

    def save(viewer):
        for step in range(1, 13):
            viewer.click("One step")
            wait_for(lambda step=step: viewer.training.step == step)
            if step == 10:
                viewer.click("Save checkpoint")
                assert viewer.client.status == "Step 10 is saved already"
        viewer.click("Save checkpoint")
        viewer.click("Pause")

    viewer = show(save)
    torch.manual_seed(1)
    train(configuration(), tmp_path / "run", view=ViewOptions(paused=True), stop_after=14)
    viewer.join()
    viewer = show()
    resume(tmp_path / "run", checkpoint="12", view=ViewOptions())
    assert digests(tmp_path / "run") == digests(tmp_path / "without")
    steps, psnr = viewer.training.curves()[0]
    history = read_newest(tmp_path / "run")[1].figures["history"]
    assert (steps.tolist(), psnr.tolist()) == (history["train_steps"], history["train_psnr"])


def test_signal_during_a_pause_saves_the_step(tmp_path, show):
    def interrupt(viewer):
        viewer.click("One step")
        wait_for(lambda: viewer.training.step == 1)
        os.kill(os.getpid(), signal.SIGTERM)

    viewer = show(interrupt)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM; step 1 is saved; to continue: tsplat train --resume"):
        train(configuration(), tmp_path / "run", view=ViewOptions(paused=True))
    viewer.join()
    assert read_newest(tmp_path / "run")[1].step == 1
    assert viewer.closed


@pytest.mark.slow
def test_viewer_stays_after_training_until_a_signal(tmp_path, show, capsys):
    seen = []

    def look(viewer):
        wait_for(lambda: viewer.training.state().finished)
        n = len(viewer.client.images)
        viewer.client.camera.move((0.5, 0, -3))
        wait_for(lambda: len(viewer.client.images) > n)
        wait_for(lambda: "**Step 2 of 24**, ended" in described(viewer.client))
        assert described(viewer.client).endswith("  \nstopped: tsplat view " + escape_markdown(str(tmp_path / "run")))
        seen.extend(viewer.client.gui.controls[name].visible for name in ("Pause", "One step", "Save checkpoint"))
        os.kill(os.getpid(), signal.SIGINT)

    viewer = show(look)
    metrics = train(configuration(), tmp_path / "run", view=ViewOptions(stay=True), stop_after=2)
    viewer.join()
    assert (metrics["steps"], seen) == (2, [False] * 3)
    message = "training has ended; the viewer stays open at http://localhost:8080 until Ctrl-C\nstopped: tsplat view"
    assert message in capsys.readouterr().out
    assert viewer.message == f"stopped: tsplat view {tmp_path / 'run'}"


def test_trainer_with_a_view(show):
    gaussians = make_gaussians()
    views = make_views(gaussians)
    config = Config(steps=12, backend="torch")
    expected = fit(gray(gaussians), views, config)

    def look(viewer):
        wait_for(lambda: viewer.client.images)
        viewer.click("Pause")

    viewer = show(look)
    view = LiveView(gray(gaussians), views, config, ViewOptions(paused=True, port=9000))
    trainer = Trainer(gray(gaussians), views, config, observers=[view])
    assert view.url == "http://localhost:9000"
    for _ in range(12):
        trainer.advance()
    view.close()
    viewer.join()
    for one, other in zip(trainer.gaussians.tensors().values(), expected.tensors().values(), strict=True):
        assert torch.equal(one, other)
    state = viewer.training.state()
    assert (state.step, state.n_gaussians, state.can_save) == (12, 60, False)
    assert viewer.training.curves()[0][0].tolist() == [1, 10, 12]


def test_fit_closes_its_viewer(show):
    gaussians = make_gaussians()
    viewer = show()
    fit(gaussians, make_views(gaussians), Config(steps=2, backend="torch"), view=ViewOptions())
    assert viewer.closed


def test_fit_closes_its_viewer_if_training_cannot_start(show):
    gaussians = make_gaussians()
    viewer = show()
    with pytest.raises(UnsupportedError, match="graph: not implemented on cpu"):
        fit(gaussians, make_views(gaussians), Config(backend="torch", graph="on"), view=ViewOptions())
    assert viewer.closed


def test_several_ranks_are_refused_before_work(show, tmp_path, capsys):
    gaussians = make_gaussians()
    views = make_views(gaussians)
    config = Config(views_per_step=2)
    show()
    view = LiveView(gaussians, views, config, ViewOptions())
    ranks = RankGroup()
    ranks.world_size = 2
    with pytest.raises(UnsupportedError, match=r"view: not implemented for several ranks, found 2; .* tsplat view RUN"):
        Trainer(gaussians, views, config, ranks, [view])
    view.close()
    command = ["train", str(tmp_path), "--out", str(tmp_path / "run"), "--view", "--ranks", "2"]
    assert cli.main(command) == 2
    assert "view: not implemented for several ranks" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["SCENE", "--out", "RUN"], ["--resume", "RUN"]])
def test_missing_viser_is_told_before_work(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "viser", None)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *command, "--view"]) == 2
    assert "the package viser is not installed; run: pip install 'tsplat[viewer]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    gaussians = make_gaussians()
    with pytest.raises(MissingExtraError):
        LiveView(gaussians, make_views(gaussians), Config(), ViewOptions())


def test_address_is_checked_before_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runs, "read_run_capture", lambda *_: pytest.fail("the scene was read"))
    command = ["train", str(tmp_path), "--out", str(tmp_path / "run"), "--view", "--view-address", "192.0.2.1"]
    assert cli.main(command) == 2
    assert "address: cannot listen on '192.0.2.1' (" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_command_shows_the_training(tmp_path, show, capsys):
    viewer = show()
    config = tmp_path / "config.json"
    config.write_text(json.dumps(runs.to_json(dataclasses.replace(configuration(), scene="."))))
    command = ["train", "--config", str(config), "--out", str(tmp_path / "run"), "--view", "--view-port", "9001"]
    assert cli.main([*command, "--stop-after", "1"]) == 0
    assert (viewer.port, viewer.closed) == (9001, True)
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--view", "--stop-after", "2"]) == 0
    assert capsys.readouterr().out.count("viewing training at http://localhost:") == 2
