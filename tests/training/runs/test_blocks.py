"""Training blocks one after another, after a kill as well, and merging them."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.support.captures import write_colmap
from tests.support.forks import Forks
from tsplat import ArgumentError, cli
from tsplat.scene import Camera, FileError, View, intrinsics, look_at, read_capture, read_ply
from tsplat.scene.capture.block_plans import plan_blocks, read_plan, write_plan
from tsplat.scene.formats.checkpoints import MANIFEST, manifest_digest
from tsplat.support.files import write_json
from tsplat.training import BlockError, RunConfig, evaluate_run, merge_blocks, read_newest, resume, train, train_blocks
from tsplat.training.configuration import to_json
from tsplat.training.runs import scenes

pytestmark = [pytest.mark.xdist_group("blocks"), pytest.mark.usefixtures("no_gpu")]


CONFIG = RunConfig(steps=6, save_every=2, sh_degree=0, test_every=3, device="cpu", backend="torch")
KILLED = """
import json, os, signal, sys
from tsplat.training import Trainer, train_blocks
from tsplat.training.configuration import from_json
advance = Trainer.advance
def killing(trainer):
    if trainer.step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(trainer)
Trainer.advance = killing
train_blocks(sys.argv[1], from_json(json.loads(sys.argv[2]), "test"), [1])
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Eight views of a strip of 60 points; half of them look at its left end."""
    generator = torch.Generator().manual_seed(1)
    points = (torch.rand(60, 3, generator=generator) - 0.5) * torch.tensor([8, 0.4, 3])
    views = []
    for i, x in enumerate((-3.0, 3.0, -2.0, 2.0, -2.5, 2.5, -1.8, 1.8)):
        camera = Camera(look_at((x, -3.0, -1.0), (x, 0.0, 0.0)), intrinsics(24, 18, 50), 24, 18, name=f"{i}.png")
        image = torch.randint(0, 255, (18, 24, 3), generator=generator, dtype=torch.uint8)
        views.append(View(image, camera))
    return write_colmap(tmp_path_factory.mktemp("town") / "scene", views, points)


@pytest.fixture(scope="module")
def trained(scene):
    """A plan of two blocks, both trained."""
    plan = scene.parent / "plan"
    plan.mkdir()
    write_plan(plan, plan_blocks(read_capture(scene), 2, scene=scene))
    train_blocks(plan, CONFIG)
    return plan


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "plan")


def test_merged_model_has_what_each_block_keeps(trained, scene):
    plan, merged = read_plan(trained), merge_blocks(trained)
    total = 0
    for k in range(2):
        run = trained / f"block_{k}"
        gaussians = read_newest(run)[1].gaussians
        inside = plan.contains(k, gaussians.means)
        own = plan.contains(k, merged.means)
        assert 0 < int(inside.sum()) < len(gaussians)
        assert torch.equal(merged.means[own], gaussians.means[inside])
        assert torch.equal(merged.sh0[own], gaussians.sh0[inside])
        total += int(inside.sum())
        cameras = json.loads((run / "cameras.json").read_text())
        names = {camera["img_name"] for camera in cameras}
        assert names == set(plan.blocks[k].views)
    assert len(merged) == total


def test_a_block_is_a_run_like_others(trained, scene, tmp_path):
    config = dataclasses.replace(CONFIG, scene=str(scene), block=f"{trained}:1")
    train(config, tmp_path / "alone")
    expected, found = (read_newest(run)[1].gaussians for run in (trained / "block_1", tmp_path / "alone"))
    assert torch.equal(expected.means, found.means)
    assert evaluate_run(trained / "block_1")["steps"] == 6


@pytest.mark.long
def test_finished_blocks_are_skipped_and_stopped_ones_resumed(copy, scene, capsys):
    before = {k: (copy / f"block_{k}" / "metrics.json").stat().st_mtime_ns for k in range(2)}
    expected = read_newest(copy / "block_1")[1].gaussians
    shutil.rmtree(copy / "block_1")
    train_blocks(copy, CONFIG, [1], stop_after=3)
    with pytest.raises(BlockError, match=r"1 of 2 blocks are not trained: 1 \(not finished\)"):
        merge_blocks(copy)
    capsys.readouterr()
    train_blocks(copy, CONFIG)
    output = capsys.readouterr().out
    assert "block 0 of 2: finished before, skipped" in output and "resumed from step_00000003" in output
    assert (copy / "block_0" / "metrics.json").stat().st_mtime_ns == before[0]
    assert torch.equal(read_newest(copy / "block_1")[1].gaussians.means, expected.means)


@pytest.mark.long
def test_killed_block_is_resumed_from_its_checkpoint(copy, capsys):
    shutil.rmtree(copy / "block_1")
    forks = Forks()
    try:
        killed = forks.run(KILLED, copy, json.dumps(to_json(CONFIG)))
    finally:
        forks.close()
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (copy / "block_1" / "metrics.json").exists()
    train_blocks(copy, CONFIG, [1])
    assert "resumed from step_00000004" in capsys.readouterr().out
    assert len(merge_blocks(copy)) > 0


@pytest.mark.long
def test_killed_merge_leaves_the_old_file(copy, tmp_path):
    out = tmp_path / "merged.ply"
    out.write_bytes(b"old")
    code = "import os, sys, tsplat.cli\nos.replace = lambda *_: os.kill(os.getpid(), 9)\ntsplat.cli.main(sys.argv[1:])"
    forks = Forks()
    try:
        killed = forks.run(code, "blocks", "merge", copy, "--out", out)
    finally:
        forks.close()
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert out.read_bytes() == b"old"
    assert cli.main(["blocks", "merge", str(copy), "--out", str(out)]) == 0
    assert torch.equal(read_ply(out).means, merge_blocks(copy).means)


def test_missing_blocks_are_named(copy):
    for k, names in ((1, "1"), (0, r"0 \(not started\), 1")):
        shutil.rmtree(copy / f"block_{k}")
        with pytest.raises(BlockError, match=rf"not trained: {names} .*tsplat blocks train .*plan {k}") as error:
            merge_blocks(copy)
        assert error.value.blocks == tuple(range(k, 2))
    assert isinstance(error.value, FileError)


def swap(copy, other):
    (copy / "block_0").rename(copy / "x")
    (copy / "block_1").rename(copy / "block_0")
    (copy / "x").rename(copy / "block_1")


def take_another_plan(copy, other):
    write_plan(copy, other)


def edit_manifest(copy, edit):
    path = copy / "block_0" / "checkpoints" / "step_00000006" / MANIFEST
    content = json.loads(path.read_text())
    edit(content)
    del content["sha256"]
    path.write_text(json.dumps(content | {"sha256": manifest_digest(content)}))


def forget_the_digest(copy, other):
    """As of a run of an earlier version, whose plan is still there."""
    edit_manifest(copy, lambda content: content["figures"]["scene"].pop("block"))
    write_plan(copy, other)


def replace_by_a_run_of_the_whole(copy, other):
    edit_manifest(copy, lambda content: content["config"].update(block=""))


def start_with_a_typo(copy, other):
    """A run of another block, before its first checkpoint."""
    shutil.rmtree(copy / "block_0" / "checkpoints")
    write_json(copy / "block_0" / "config.json", to_json(dataclasses.replace(CONFIG, block=f"{copy}:1")))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (swap, "belongs to block 1, not to block 0"),
        (take_another_plan, "belongs to another plan"),
        (forget_the_digest, "belongs to another plan"),
        (replace_by_a_run_of_the_whole, "does not belong to a block"),
        (start_with_a_typo, "belongs to block 1, not to block 0"),
    ],
)
def test_runs_of_other_blocks_are_refused(change, problem, copy, scene):
    other = plan_blocks(read_capture(scene), (1, 2), scene=scene)
    change(copy, other)
    for command in (merge_blocks, lambda plan: train_blocks(plan, CONFIG)):
        with pytest.raises(FileError, match=rf"block_0: the run in this folder {problem}; move it away, and train"):
            command(copy)


def test_plan_and_block_are_checked_before_photographs(copy, scene, tmp_path, monkeypatch):
    monkeypatch.setattr(scenes, "read_capture", None)
    for block, out, message in (
        (f"{copy}:1", copy / "block_0", f"block: expected 0, as the folder is {copy / 'block_0'}, found 1"),
        (f"{copy}:2", tmp_path / "run", "block: expected 0 to 1, the blocks of the plan, found 2"),
        (f"{copy}o:1", tmp_path / "run", "plan.json: cannot be read"),
    ):
        with pytest.raises(ArgumentError, match=message):
            train(dataclasses.replace(CONFIG, scene=str(scene), block=block), out)
    assert not (tmp_path / "run").exists()


def test_run_is_not_resumed_with_another_plan(copy, scene):
    config = json.loads((copy / "block_1" / "config.json").read_text())
    trained = Path(config["block"].rpartition(":")[0])
    renamed = trained.rename(trained.with_name("gone"))
    try:
        blocks = plan_blocks(read_capture(scene), (1, 2), scene=scene)
        write_plan(copy, blocks)
        with pytest.raises(FileError, match="the block, or its plan, has changed since the run started"):
            resume(copy / "block_1", steps=8, accept_changes=False)
    finally:
        renamed.rename(trained)


@pytest.mark.long
def test_other_settings_are_errors(copy):
    with pytest.raises(ArgumentError, match=r"block_0: was started with other settings \(seed, sh0_rate\); use"):
        train_blocks(copy, dataclasses.replace(CONFIG, seed=7, sh0_rate=1e-3))
    with pytest.raises(ArgumentError, match="block: expected 0 to 1, the blocks of the plan, found 2"):
        train_blocks(copy, CONFIG, [0, 2])
    with pytest.raises(ArgumentError, match="config: expected settings or, with minutes"):
        train_blocks(copy, CONFIG, minutes=1)
    for changes, message in (
        (dict(block="plan"), "block: expected the folder of a plan, a colon and an index, found 'plan'"),
        (dict(block="plan:1", normalize=True), "normalize: not with block"),
    ):
        with pytest.raises(ArgumentError, match=message):
            RunConfig(**changes)


def test_a_plan_that_has_moved_is_found_beside_the_run(copy, trained):
    run = copy / "block_1"
    config = json.loads((run / "config.json").read_text())
    assert config["block"] == f"{trained}:1"
    renamed = trained.rename(trained.with_name("gone"))
    try:
        assert resume(run, steps=8)["steps"] == 8
    finally:
        renamed.rename(trained)
    assert json.loads((run / "config.json").read_text())["block"] == f"{copy}:1"
