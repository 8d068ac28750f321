"""The demo, on a tiny scene."""

import dataclasses
import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.training_scenes import image_sizes
from tsplat import ArgumentError, BackendError
from tsplat.runtime.backend import choose
from tsplat.scene import FileError, read_ply
from tsplat.support.locks import lock_folder
from tsplat.training import Trainer, demo
from tsplat.training.runs.demo import ON_CPU
from tsplat.viewing.run_cameras import find_background

pytestmark = pytest.mark.slow

TINY = dataclasses.replace(
    ON_CPU, width=40, height=30, n_train=6, n_test=2, n_points=500, steps=60, frames=3, frame_scale=1.0
)
FILES = {
    "contact_sheet.png", "curve.png", "held_out", "metrics.json", "point_cloud.ply", "report.html", "run.json",
    "turntable.gif",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _tiny_on_cpu():
    """Runs a small demo on the CPU, because the tests compare results bit by bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tsplat.training.runs.demo.ON_CPU", TINY)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    return out, demo(out)


def test_demo_improves_held_out_views(result):
    _, metrics = result
    assert metrics["psnr"] > metrics["psnr_initial"] + 2
    assert metrics["ssim"] > metrics["ssim_initial"] + 0.1
    assert (metrics["num_gaussians"], metrics["steps"], metrics["backend"]) == (500, 60, choose(torch.device("cpu"))[0])
    assert len(metrics["views"]) == 2
    assert metrics["psnr"] == pytest.approx(sum(view["psnr"] for view in metrics["views"]) / 2)


def test_demo_writes_readable_files(result):
    out, metrics = result
    assert find_background(out) == find_background(out / "point_cloud.ply") == tuple(metrics["background"])
    assert max(metrics["background"]) > 0
    assert {path.name for path in out.iterdir()} == FILES
    assert json.loads((out / "metrics.json").read_text()) == metrics
    gaussians = read_ply(out / "point_cloud.ply")
    assert len(gaussians) == 500
    assert gaussians.valid.all()
    with Image.open(out / "turntable.gif") as turntable:
        assert turntable.n_frames == 3
    for name in ("contact_sheet.png", "curve.png"):
        assert np.asarray(Image.open(out / name)).std() > 10
    assert image_sizes(out / "held_out") == {"000_test_000.png": (80, 30), "001_test_001.png": (80, 30)}


def test_held_out_images_have_the_reported_psnr(result):
    out, metrics = result
    for view, path in zip(metrics["views"], sorted((out / "held_out").iterdir())):
        image = np.asarray(Image.open(path), dtype=float) / 255
        mse = np.square(image[:, :40] - image[:, 40:]).mean()
        assert -10 * math.log10(mse) == pytest.approx(view["psnr"], abs=0.05)


def test_ctrl_c_ends_training_and_writes_the_results(tmp_path, monkeypatch, capsys):
    advance = Trainer.advance

    def interrupted(trainer):
        progress = advance(trainer)
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return progress

    monkeypatch.setattr(Trainer, "advance", interrupted)
    metrics = demo(tmp_path, steps=10**6)
    assert metrics["steps"] == 3
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "stopped after 3 of 1,000,000 steps" in capsys.readouterr().out


def test_failed_demo_leaves_no_folders(tmp_path, monkeypatch):
    def fail(*_):
        raise ArithmeticError

    monkeypatch.setattr(Trainer, "advance", fail)
    with pytest.raises(ArithmeticError):
        demo(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_demo_does_not_overwrite_a_run(tmp_path):
    (tmp_path / "checkpoints" / "step_00000003").mkdir(parents=True)
    with pytest.raises(FileError, match="contains the checkpoints of another run; resume it by tsplat train --res"):
        demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_two_demos_in_one_folder(tmp_path):
    with (
        lock_folder(tmp_path),
        pytest.raises(FileError, match=rf"{tmp_path}: in use by process {os.getpid()} .* or choose another folder"),
    ):
        demo(tmp_path)
    assert not list(tmp_path.iterdir())


def test_invalid_arguments_are_rejected_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file")
    for arguments, error, message in (
        (dict(out=tmp_path / "file"), FileError, "cannot write"),
        (dict(out=tmp_path / "a", steps=0), ArgumentError, "steps"),
        (dict(out=tmp_path / "a", backend="cuda"), ArgumentError, "backend"),
    ):
        with pytest.raises(error, match=message):
            demo(**arguments)
    monkeypatch.setattr("tsplat.runtime.backend.cpu_compiler_problem", lambda: "llvmlite is not installed")
    with pytest.raises(BackendError, match="llvmlite is not installed"):
        demo(tmp_path / "a", backend="triton")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.long
def test_seed_determines_the_model(tmp_path):
    contents = []
    for i, seed in enumerate((7, 7, 8)):
        demo(tmp_path / f"{i}", steps=5, seed=seed)
        contents.append((tmp_path / f"{i}" / "point_cloud.ply").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]
