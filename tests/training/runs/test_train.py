"""Training runs: resuming, checkpoints to keep, and the files that a run writes."""

import dataclasses
import errno
import json
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.captures import write_scene
from tests.support.paths import SCENES
from tests.support.training_scenes import image_sizes
from tsplat import ArgumentError
from tsplat.scene import FileError, procedural_capture
from tsplat.scene.formats.checkpoints import find_checkpoints
from tsplat.strategies import DefaultStrategy, LongAxisStrategy, MCMCStrategy
from tsplat.support import files
from tsplat.training import CheckpointError, RunConfig, evaluate_run, read_newest, resume, train
from tsplat.training.runs import train as runs

BANANA = SCENES / "banana"
N_INTERRUPTIONS = int(os.environ.get("TSPLAT_INTERRUPTIONS", "3"))
STEPS = 24


@pytest.fixture(scope="module")
def capture():
    return procedural_capture(40, 30, 6, 2, 200, seed=3)


@pytest.fixture(autouse=True)
def _procedural_scene(capture, request, monkeypatch):
    """Runs read a procedural scene instead of photographs, and use the CPU."""
    if not {"photographs", "held"} & set(request.node.name.split("_")):
        monkeypatch.setattr(runs, "read_run_capture", lambda config, device, *_: capture.to(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def configuration(kind):
    schedule = dict(refine_start_iter=2, refine_every=5, refine_stop_iter=STEPS)
    strategies = {
        "default": DefaultStrategy(grow_grad2d=1e-6, reset_every=9, **schedule),
        "mcmc": MCMCStrategy(cap_max=240, **schedule),
        "long-axis": LongAxisStrategy(growth=1.2, **schedule),
        "fixed": None,
        "surfels": DefaultStrategy(grow_grad2d=1e-6, key_for_gradient="gradient_2dgs", reset_every=9, **schedule),
    }
    return RunConfig(
        strategy=strategies[kind],
        primitive="2dgs" if kind == "surfels" else "3dgs",
        normal_weight=0.05 * (kind == "surfels"),
        distortion_weight=0.1 * (kind == "surfels"),
        steps=STEPS,
        seed=5,
        sh_degree=1,
        save_every=7,
        eval_every=6,
        deterministic=True,
        random_background=True,
        pose_refinement=True,
        exposure=True,
        views_per_step=2 if kind == "default" else 1,
        precision="bf16" if kind == "mcmc" else "fp32",
        rates_decay=0.1,
        gains=True,
        max_elongation=3.0,
        visible_adam={"fixed": "on", "long-axis": "auto"}.get(kind, "off"),
        sky=60 * (kind == "long-axis"),
        opacity_weight=0.01,
        scale_weight=0.01,
        keep=10,
    )


def results(run):
    """The newest checkpoint and the metrics of a run, without times."""
    checkpoint = read_newest(run)[1]
    tensors = {**checkpoint.gaussians.tensors(), **checkpoint.tensors}
    metrics = json.loads((run / "metrics.json").read_text())
    for entry in (metrics, *metrics["views"]):
        for name in ("seconds", "seconds_per_image", "images_per_second"):
            entry.pop(name, None)
    figures = {name: value for name, value in checkpoint.figures.items() if name != "seconds"}
    return tensors, figures, metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "default", "mcmc", "long-axis", "surfels"])
def test_resume_is_bit_exact(kind, tmp_path):
    config = configuration(kind)
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    train(config, tmp_path / "uninterrupted")
    tensors, figures, metrics = results(tmp_path / "uninterrupted")
    assert figures["trainer"]["step"] == STEPS
    assert read_newest(tmp_path / "uninterrupted")[1].config.visible_adam == ("on" if kind == "fixed" else "off")
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])
    run = tmp_path / "interrupted"
    first, *others = sorted(random.Random(7).sample(range(1, STEPS), N_INTERRUPTIONS))
    train(config, run, stop_after=first)
    for step in (*others, None):
        # Other code may draw random numbers in between.
        torch.rand(3), np.random.rand(3), random.random()
        resume(run, stop_after=step)
    found = results(run)
    assert found[0].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[0][name], tensor), name
    assert found[1:] == (figures, metrics)


@pytest.mark.slow
def test_newest_checkpoints_are_kept_and_runs_are_not_overwritten(tmp_path):
    config = dataclasses.replace(configuration("fixed"), keep=2, save_every=5)
    train(config, tmp_path / "run")
    names = [path.name for path in find_checkpoints(tmp_path / "run" / "checkpoints")]
    assert names == ["step_00000020", "step_00000024"]
    with pytest.raises(ArgumentError, match="another run; resume it by tsplat train --resume"):
        train(config, tmp_path / "run")
    resume(tmp_path / "run")
    assert [path.name for path in find_checkpoints(tmp_path / "run" / "checkpoints")] == names


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["reading", "evaluation", "saving"])
def test_run_killed_before_its_first_checkpoint_starts_again(moment, tmp_path, monkeypatch, capsys):
    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    config = configuration("fixed")
    train(config, tmp_path / "uninterrupted")
    name = {
        "reading": "train.read_run_capture",
        "evaluation": "train.score_views",
        "saving": "run_checkpoints._publish",
    }[moment]
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(f"tsplat.training.runs.{name}", kill)
        # A killed process removes nothing.
        patch.setattr("tsplat.training.runs.run_checkpoints.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            train(config, run)
    assert (run / "checkpoints").exists() == (moment == "saving")
    capsys.readouterr()
    resume(run)
    message = f"{run}: stopped before its first checkpoint; starting again with its config.json\n"
    assert capsys.readouterr().out.startswith(message)
    for name, tensor in results(tmp_path / "uninterrupted")[0].items():
        assert torch.equal(results(run)[0][name], tensor), name
    assert not list((run / "checkpoints").glob(".*"))


def test_failed_start_keeps_the_configuration_of_the_run_before(tmp_path, monkeypatch):
    def fail(*_):
        raise FileError("no photographs")

    monkeypatch.setattr(runs, "read_run_capture", fail)
    with pytest.raises(FileError, match="no photographs"):
        train(configuration("fixed"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError, match="no photographs"):
        train(configuration("fixed"), tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"


def test_resume_rejects_other_views(tmp_path, capture, monkeypatch):
    train(configuration("fixed"), tmp_path / "run", stop_after=2)
    monkeypatch.setattr(runs, "read_run_capture", lambda *_: dataclasses.replace(capture, train=capture.train[1:]))
    with pytest.raises(ArgumentError, match="made with 6 training views, found 5"):
        resume(tmp_path / "run")


def test_resume_skips_an_invalid_checkpoint(tmp_path, capsys):
    train(configuration("fixed"), tmp_path / "run", stop_after=9)
    newest = read_newest(tmp_path / "run")[0]
    assert newest.name == "step_00000009"
    (newest / "training.safetensors").write_bytes(b"")
    resume(tmp_path / "run", stop_after=10)
    output = capsys.readouterr().out
    assert re.search(r"skipped a damaged checkpoint \(.*step_00000009/training.*\); using step_00000007\n", output)
    assert "resumed from step_00000007: step 7 of 24" in output


@pytest.mark.slow
def test_checkpoint_to_resume_or_evaluate_can_be_chosen(tmp_path, capsys):
    train(configuration("fixed"), tmp_path / "run", stop_after=9)
    assert evaluate_run(tmp_path / "run", checkpoint="7")["steps"] == 7
    resume(tmp_path / "run", checkpoint="step_00000007", stop_after=8)
    assert "resumed from step_00000007: step 7 of 24" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="no checkpoint 3; found step_00000007, step_00000008, step_00000009"):
        resume(tmp_path / "run", checkpoint="3")


@pytest.mark.slow
def test_points_beyond_the_maximum_number_of_gaussians_are_left_out(tmp_path, capsys):
    config = dataclasses.replace(configuration("fixed"), max_gaussians=150)
    metrics = train(config, tmp_path / "a", stop_after=2)
    assert metrics["num_gaussians"] == 150
    message = "starting with 150 of 200 points, as more than 150 Gaussians are not allowed\n"
    assert message in capsys.readouterr().out
    config = configuration("mcmc")
    strategy = dataclasses.replace(config.strategy, cap_max=120)
    metrics = train(dataclasses.replace(config, strategy=strategy), tmp_path / "b", stop_after=9)
    assert metrics["num_gaussians"] == 120
    assert resume(tmp_path / "b", stop_after=11)["num_gaussians"] == 120


@pytest.mark.slow
def test_runs_without_held_out_views(tmp_path, capsys):
    scene = write_scene(tmp_path / "scene")
    config = RunConfig(scene=str(scene), steps=4, backend="torch", sh_degree=0, test_every=0, eval_every=1)
    metrics = train(config, tmp_path / "photographs", stop_after=3)
    assert (metrics["psnr"], metrics["psnr_initial"], metrics["views"]) == (None, None, [])
    assert metrics["psnr_train"] > 0
    assert re.search(r"10 training views of \d+×\d+, 0 held-out", capsys.readouterr().out)
    assert {"contact_sheet.png", "curve.png", "point_cloud.ply"} <= set(os.listdir(tmp_path / "photographs"))
    assert not (tmp_path / "photographs" / "held_out").exists()
    assert resume(tmp_path / "photographs")["steps"] == 4
    with pytest.raises(ArgumentError, match="there are no held-out views to evaluate"):
        evaluate_run(tmp_path / "photographs")


WRITES = (
    "config.json", "cameras.json", "run.json", "checkpoint.json", "latest", "000_test_000.png", "point_cloud.ply",
    "contact_sheet.png", "curve.png", "metrics.json", "report.html",
)  # fmt: skip


@pytest.fixture(scope="module")
def stopped_run(capture, tmp_path_factory):
    """A run that was stopped after four steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "read_run_capture", lambda *_: capture)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        train(configuration("fixed"), run := tmp_path_factory.mktemp("stopped") / "run", stop_after=4)
    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != WRITES[0] else name for name in WRITES]
)
def test_full_disk_names_the_file_and_leaves_the_last_checkpoint_intact(name, stopped_run, tmp_path, monkeypatch):
    run = shutil.copytree(stopped_run, tmp_path / "run")
    newest = read_newest(run)[0]

    def fail(self, data, /):
        # Files have their final name within a temporary one.
        if Path(self.raw.name).name.startswith(f".{name}."):
            write(self, data)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    write = files._Writer.write
    with monkeypatch.context() as patch:
        patch.setattr(files._Writer, "write", fail)
        with pytest.raises(
            (OSError, FileError), match=r"No space left on device.* [\d,]+ bytes.*, and [\d,]+ are free"
        ) as e:
            resume(run, stop_after=6)
    assert str(run) in str(e.value)
    assert name in str(e.value) or "the checkpoint of step 6" in str(e.value)
    hint = f"step 6 is saved; to continue: tsplat train --resume {run}"
    assert (hint in str(e.value)) == (name in WRITES[WRITES.index("000_test_000.png") :])
    assert not [path for path in run.rglob(".*") if path.name.startswith((f".{name}.", ".step_"))]
    path, _, errors = read_newest(run)
    assert errors == []
    assert path == newest or path.name == "step_00000006"
    assert resume(run, stop_after=6)["steps"] == 6


def test_evaluate_run_writes_the_metrics_of_the_checkpoint(tmp_path):
    metrics = train(configuration("fixed"), tmp_path / "run", stop_after=2)
    evaluated = evaluate_run(tmp_path / "run")
    assert [view["psnr"] for view in evaluated["views"]] == [view["psnr"] for view in metrics["views"]]
    folder = tmp_path / "run" / "eval" / "step_00000002"
    assert json.loads((folder / "metrics.json").read_text()) == evaluated
    assert len(list((folder / "held_out").iterdir())) == 2


def test_evaluate_run_uses_learned_lenses_and_known_gains(tmp_path, monkeypatch, capsys):
    def logs(views):
        return torch.linspace(-0.3, 0.3, len(views), dtype=torch.float64)[:, None].expand(-1, 3)

    for module in ("exposure_gains", "view_gradients"):
        monkeypatch.setattr(f"tsplat.training.{module}.gains_of_points", logs)
    scene = str(write_scene(tmp_path / "scene", n=5))
    config = RunConfig(
        scene=scene, steps=2, backend="torch", device="cpu", sh_degree=0, test_every=4, gains=True,
        lens_refinement=True, lens_rate=0.1,
    )  # fmt: skip
    metrics = train(config, tmp_path / "run")
    capsys.readouterr()
    evaluated = evaluate_run(tmp_path / "run")
    for name in ("psnr", "ssim", "psnr_known_gains", "ssim_known_gains"):
        assert evaluated[name] == metrics[name], name
    assert evaluated["psnr_known_gains"] != evaluated["psnr"]
    assert f"\nmean with known gains    {evaluated['psnr_known_gains']:6.2f} dB" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not BANANA.is_dir(), reason="needs the shared scenes")
def test_training_on_photographs(tmp_path):
    metrics = train(RunConfig(scene=str(BANANA), steps=60, downscale=16), tmp_path / "run")
    assert metrics["psnr"] > metrics["psnr_initial"] + 3
    assert (metrics["num_gaussians"], metrics["steps"]) == (8150, 60)
    assert [view["name"] for view in metrics["views"]] == ["DSC_0423.JPG", "DSC_0431.JPG"]
    files = {"cameras.json", "checkpoints", "config.json", "contact_sheet.png", "curve.png", "held_out", "metrics.json"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == files | {
        "point_cloud.ply",
        "report.html",
        "run.json",
    }
    sizes = image_sizes(tmp_path / "run" / "held_out")
    assert sizes == {"000_DSC_0423.png": (100, 33), "001_DSC_0431.png": (100, 33)}
