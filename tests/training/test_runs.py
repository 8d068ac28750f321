"""Whole runs, small enough to be quick, through the Python API."""

import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.paths import SCENES
from tsplat import ArgumentError, BackendError
from tsplat.scene import FileError, read_ply
from tsplat.training import DemoSize, RunConfig, Trainer, demo, train

BANANA = SCENES / "banana"

TINY = DemoSize(40, 30, n_train=6, n_test=2, n_points=500, sh_degree=1, steps=60, frames=3)
DEMO_FILES = {"contact_sheet.png", "curve.png", "held_out", "metrics.json", "point_cloud.ply", "turntable.gif"}


def sizes(folder):
    found = {}
    for path in sorted(folder.iterdir()):
        with Image.open(path) as picture:
            found[path.name] = picture.size
    return found


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu():
    """Results are compared to the bit, which sums in no fixed order are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "not" / "yet"
    return out, demo(out, size=TINY)


def test_a_demo_gets_better_on_views_it_has_not_seen(result):
    _, metrics = result
    assert metrics["psnr"] > metrics["psnr_initial"] + 2
    assert metrics["ssim"] > metrics["ssim_initial"] + 0.1
    assert (metrics["num_gaussians"], metrics["steps"], metrics["backend"]) == (500, 60, "torch")
    assert len(metrics["views"]) == 2
    assert metrics["psnr"] == pytest.approx(sum(view["psnr"] for view in metrics["views"]) / 2)


def test_a_demo_leaves_files_that_can_be_read(result):
    out, metrics = result
    assert {path.name for path in out.iterdir()} == DEMO_FILES
    assert json.loads((out / "metrics.json").read_text()) == metrics
    gaussians = read_ply(out / "point_cloud.ply")
    assert len(gaussians) == 500
    assert gaussians.valid.all()
    with Image.open(out / "turntable.gif") as turntable:
        assert turntable.n_frames == 3
    for name in ("contact_sheet.png", "curve.png"):
        assert np.asarray(Image.open(out / name)).std() > 10
    assert sizes(out / "held_out") == {"000_test_000.png": (80, 30), "001_test_001.png": (80, 30)}


def test_the_picture_beside_the_truth_has_the_psnr_that_is_said(result):
    out, metrics = result
    for view, path in zip(metrics["views"], sorted((out / "held_out").iterdir())):
        picture = np.asarray(Image.open(path), dtype=float) / 255
        mse = np.square(picture[:, :40] - picture[:, 40:]).mean()
        assert -10 * math.log10(mse) == pytest.approx(view["psnr"], abs=0.05)


def test_ctrl_c_ends_training_and_writes_what_there_is(tmp_path, monkeypatch, capsys):
    advance = Trainer.advance

    def interrupted(trainer):
        progress = advance(trainer)
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return progress

    monkeypatch.setattr(Trainer, "advance", interrupted)
    metrics = demo(tmp_path, size=TINY, steps=10**6)
    assert metrics["steps"] == 3
    assert {path.name for path in tmp_path.iterdir()} == DEMO_FILES
    assert "ended after 3 of 1000000 steps" in capsys.readouterr().out


def test_a_run_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise ArithmeticError

    monkeypatch.setattr(Trainer, "advance", fail)
    with pytest.raises(ArithmeticError):
        demo(tmp_path / "a" / "b", size=TINY)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_found_before_anything_is_done(tmp_path):
    (tmp_path / "file").write_text("a file")
    for arguments, error, words in (
        (dict(out=tmp_path / "file"), FileError, "cannot write"),
        (dict(out=tmp_path / "a", steps=0), ArgumentError, "steps"),
        (dict(out=tmp_path / "a", backend="cuda"), ArgumentError, "backend"),
    ):
        with pytest.raises(error, match=words):
            demo(**arguments, size=TINY)
    if os.environ.get("TRITON_INTERPRET") != "1":
        with pytest.raises(BackendError, match="triton"):
            demo(tmp_path / "a", backend="triton", size=TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_equal_seeds_give_equal_models(tmp_path):
    contents = []
    for i, seed in enumerate((7, 7, 8)):
        demo(tmp_path / f"{i}", size=TINY, steps=5, seed=seed)
        contents.append((tmp_path / f"{i}" / "point_cloud.ply").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


@pytest.mark.skipif(not BANANA.is_dir(), reason="the shared scenes are not beside this checkout")
def test_photographs_are_fitted(tmp_path):
    metrics = train(RunConfig(scene=str(BANANA), steps=60, downscale=16), tmp_path / "run")
    assert metrics["psnr"] > metrics["psnr_initial"] + 3
    assert (metrics["num_gaussians"], metrics["steps"]) == (8150, 60)
    assert [view["name"] for view in metrics["views"]] == ["DSC_0423.JPG", "DSC_0431.JPG"]
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert found == DEMO_FILES - {"turntable.gif"} | {"checkpoints", "config.json"}
    assert sizes(tmp_path / "run" / "held_out") == {"000_DSC_0423.png": (100, 33), "001_DSC_0431.png": (100, 33)}
