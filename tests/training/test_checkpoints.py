"""Checkpoints: a run goes on to the bit, whatever happens while one is saved, and nothing broken is taken for whole."""

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.support.paths import ROOT
from tsplat import ArgumentError, MemoryBudgetError
from tsplat.scene import AlreadyActivatedError, FileError, Gaussians, procedural_capture
from tsplat.scene.formats.checkpoints import find_checkpoints
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import (
    Checkpoint,
    CheckpointError,
    RunConfig,
    Trainer,
    read_checkpoint,
    read_newest,
    resume,
    runs,
    train,
    write_checkpoint,
)

pytest.importorskip("safetensors")

CUTS = int(os.environ.get("TSPLAT_CUTS", "3"))
KILLS = int(os.environ.get("TSPLAT_KILLS", "20"))
BROKEN = int(os.environ.get("TSPLAT_BROKEN", "150"))

STEPS = 24


@pytest.fixture(scope="module")
def capture():
    return procedural_capture(40, 30, 6, 2, 200, seed=3)


def configuration(kind):
    schedule = dict(refine_start_iter=2, refine_every=5, refine_stop_iter=STEPS)
    strategies = {
        "default": DefaultStrategy(grow_grad2d=1e-6, reset_every=9, **schedule),
        "mcmc": MCMCStrategy(cap_max=240, **schedule),
        "fixed": None,
    }
    return RunConfig(
        strategy=strategies[kind],
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
        opacity_weight=0.01,
        scale_weight=0.01,
        keep=10,
    )


@pytest.fixture
def _from_capture(capture, monkeypatch):
    """Runs read the procedural scene in place of photographs."""
    monkeypatch.setattr(runs, "_read", lambda config, device: capture.to(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def everything(run):
    """All of a run's newest checkpoint that should not depend on where it was cut, and its figures."""
    checkpoint = read_newest(run)[1]
    tensors = {**checkpoint.gaussians.tensors(), **checkpoint.tensors}
    metrics = json.loads((run / "metrics.json").read_text())
    for view in (metrics, *metrics["views"]):
        for name in ("seconds", "seconds_per_image", "images_per_second"):
            view.pop(name, None)
    figures = {name: value for name, value in checkpoint.figures.items() if name != "seconds"}
    return tensors, figures, metrics


def assert_equal(found, expected):
    assert found[0].keys() == expected[0].keys()
    for name, tensor in expected[0].items():
        assert torch.equal(found[0][name], tensor), name
    assert found[1:] == expected[1:]


@pytest.mark.usefixtures("_from_capture")
@pytest.mark.parametrize("kind", ["fixed", "default", "mcmc"])
def test_a_run_that_was_cut_goes_on_to_the_bit(kind, tmp_path):
    config = configuration(kind)
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    train(config, tmp_path / "whole")
    expected = everything(tmp_path / "whole")
    assert expected[1]["trainer"]["step"] == STEPS
    cuts = random.Random(7).sample(range(1, STEPS), CUTS)
    for cut in cuts:
        run = tmp_path / f"{cut}"
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])
        train(config, run, stop_after=cut)
        torch.rand(3), np.random.rand(3), random.random()  # whatever else happens in between
        resume(run)
        assert_equal(everything(run), expected)


@pytest.mark.usefixtures("_from_capture")
def test_a_run_keeps_so_many_checkpoints_and_is_not_written_over(tmp_path):
    config = dataclasses.replace(configuration("fixed"), keep=2, save_every=5)
    train(config, tmp_path / "run")
    names = [path.name for path in find_checkpoints(tmp_path / "run" / "checkpoints")]
    assert names == ["step_00000020", "step_00000024"]
    with pytest.raises(ArgumentError, match="another run; resume it"):
        train(config, tmp_path / "run")
    resume(tmp_path / "run")
    assert [path.name for path in find_checkpoints(tmp_path / "run" / "checkpoints")] == names


@pytest.mark.usefixtures("_from_capture")
def test_a_checkpoint_of_other_views_or_another_configuration_is_refused(tmp_path, capture, monkeypatch):
    train(configuration("fixed"), tmp_path / "run", stop_after=2)
    monkeypatch.setattr(runs, "_read", lambda *_: dataclasses.replace(capture, train=capture.train[1:]))
    with pytest.raises(ArgumentError, match="made with 6 views to fit, found 5"):
        resume(tmp_path / "run")
    checkpoint = read_newest(tmp_path / "run")[1]
    config = dataclasses.replace(checkpoint.config, exposure=False)
    trainer = Trainer(checkpoint.gaussians, capture.train, config)
    with pytest.raises(ArgumentError, match=r"'exposures'.*continue with the configuration"):
        trainer.restore({**checkpoint.tensors, "params/means": checkpoint.gaussians.means}, {})


def some_checkpoint(step=1, n=500):
    generator = torch.Generator().manual_seed(step)
    points = torch.randn(n, 3, generator=generator)
    gaussians = Gaussians.from_points(points, torch.rand(n, 3, generator=generator), 1)
    tensors = {"adam/means/exp_avg": torch.rand(n, 3, generator=generator)}
    return Checkpoint(step, gaussians, tensors, {"trainer": {"step": step}}, RunConfig(strategy=MCMCStrategy()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that are forked")
def test_killed_while_saving_no_checkpoint_is_lost(tmp_path):
    command = [sys.executable, "-m", "tests.support.kill_saving", str(tmp_path), str(KILLS)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert found.returncode == 0, found.stderr[-2000:]
    words = found.stdout.split()
    assert int(words[1].rstrip(",")) == KILLS
    assert int(words[4]) > 0  # some were hit in the middle


@pytest.mark.parametrize("where", ["write", "fsync", "rename"])
def test_a_full_disk_is_said_and_what_was_there_is_intact(where, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, some_checkpoint(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "write":
        import resource

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(FileError, match=r"step 2 cannot be written .*those before it are intact"):
                write_checkpoint(tmp_path, some_checkpoint(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
    else:
        monkeypatch.setattr(os, where, full)
        with pytest.raises(FileError, match=r"step 2 cannot be written \(No space left"):
            write_checkpoint(tmp_path, some_checkpoint(2))
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert read_newest(tmp_path)[0].name == "step_00000001"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_said(tmp_path):
    write_checkpoint(tmp_path, some_checkpoint(1))
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileError, match="cannot be written"):
            write_checkpoint(tmp_path, some_checkpoint(2))
    finally:
        tmp_path.chmod(0o700)
    assert read_newest(tmp_path)[0].name == "step_00000001"


def test_a_file_system_that_is_read_only_is_said(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, some_checkpoint(1))

    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(FileError, match="Read-only file system"):
        write_checkpoint(tmp_path, some_checkpoint(2))
    monkeypatch.undo()
    assert read_newest(tmp_path)[0].name == "step_00000001"


def breakages(draw, folder):
    """Breaks a checkpoint in some way. Returns what was done."""
    files = sorted(folder.iterdir())
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    match draw.randrange(6):
        case 0:
            del content[draw.randrange(len(content)) :]
        case 1:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        case 2:
            path.unlink()
            return f"{path.name} missing"
        case 3:
            content += bytes(draw.randrange(1, 100))
        case 4:
            start = draw.randrange(len(content))
            content[start : start + 8] = (2**62).to_bytes(8, "little")
        case 5:
            other = draw.choice(files)
            content = bytearray(other.read_bytes()) if other != path else content[::-1]
    path.write_bytes(content)
    return path.name


def test_broken_checkpoints_are_found_or_change_nothing(tmp_path):
    whole = write_checkpoint(tmp_path / "whole", some_checkpoint(3, 60))
    expected = read_checkpoint(whole)
    draw, folder, refused = random.Random(11), tmp_path / "step_00000003", 0
    kept = 0
    for _ in range(BROKEN):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        what = breakages(draw, folder)
        try:
            found = read_checkpoint(folder)
        except CheckpointError as error:
            refused += str(folder) in str(error)
            continue
        kept += 1
        # Space around JSON means nothing.
        assert what == "checkpoint.json"
        assert found.figures == expected.figures
        for name, tensor in expected.gaussians.tensors().items():
            assert torch.equal(found.gaussians.tensors()[name], tensor)
    assert refused + kept == BROKEN
    assert refused > 0.9 * BROKEN


def test_a_broken_newest_one_is_passed_over_with_the_reason(tmp_path):
    old, new = (write_checkpoint(tmp_path, some_checkpoint(step)) for step in (1, 2))
    (new / "training.safetensors").write_bytes(b"")
    path, _, troubles = read_newest(tmp_path)
    assert path == old
    assert len(troubles) == 1
    assert "step_00000002/training.safetensors: modified or truncated" in troubles[0]
    (tmp_path / "latest").unlink()
    assert read_newest(tmp_path)[0] == old
    (old / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match="no valid checkpoint found"):
        read_newest(tmp_path)


def test_a_checkpoint_is_never_written_over(tmp_path):
    first, second = (write_checkpoint(tmp_path, some_checkpoint(4, n)) for n in (5, 6))
    assert (first.name, second.name) == ("step_00000004", "step_00000004_2")
    assert read_newest(tmp_path)[0] == second
    assert len(read_checkpoint(first).gaussians) == 5


@pytest.mark.parametrize("opacities", [False, True])
def test_values_that_are_activated_already_are_refused_and_forced_end_in_the_guard(
    opacities, tmp_path, capture, monkeypatch
):
    checkpoint = some_checkpoint(1, 300)
    raw = checkpoint.gaussians
    twice = dataclasses.replace(raw, log_scales=(raw.log_scales - 3).exp())
    if opacities:
        twice = dataclasses.replace(twice, opacity_logits=raw.opacity_logits.sigmoid())
    path = write_checkpoint(tmp_path, dataclasses.replace(checkpoint, gaussians=twice))
    words = "all above 0 and opacities" if opacities else "all above 0, as if after exp;.*force"
    with pytest.raises(AlreadyActivatedError, match=words):
        read_checkpoint(path)
    forced = read_checkpoint(path, force=True).gaussians
    assert torch.equal(forced.log_scales, twice.log_scales)
    # Each Gaussian covers every tile of a large picture, for which there is no memory here.
    monkeypatch.setattr("tsplat.stages.memory.free_memory", lambda device: 2**16)
    monkeypatch.setattr("tsplat.stages.memory.UNCHECKED_BYTES", 0)
    view = capture.train[0]
    image = torch.zeros(600, 800, 3, dtype=torch.uint8)
    K = view.K * torch.tensor([[20.0], [20.0], [1.0]])
    large = dataclasses.replace(view, image=image, K=K)
    with pytest.raises(MemoryBudgetError, match="scale"):
        Trainer(forced, [large], RunConfig(steps=2)).advance()


def test_what_is_written_is_raw_and_readable_without_us(tmp_path):
    from safetensors.torch import load_file

    checkpoint = some_checkpoint(9)
    path = write_checkpoint(tmp_path, checkpoint)
    scene = load_file(path / "scene.safetensors")
    assert set(scene) == {"means", "log_scales", "quats", "opacity_logits", "sh0", "shN"}
    assert torch.equal(scene["log_scales"], checkpoint.gaussians.log_scales)
    assert (tmp_path / "latest").read_text() == "step_00000009\n"
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert manifest["config"]["strategy"]["kind"] == "mcmc"
    assert manifest["software"]["torch"] == torch.__version__
