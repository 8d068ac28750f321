"""Several ranks train one scene as one process does, keep one checkpoint of it, and end together."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.captures import write_colmap
from tests.support.fault_worker import STEPS as FAULT_STEPS
from tests.support.paths import ROOT
from tests.support.team_worker import capture, start
from tsplat import ArgumentError, cli
from tsplat.errors import UnsupportedError
from tsplat.training import CheckpointError, Config, Trainer, read_checkpoint, read_newest, resume, runs
from tsplat.training.processes.group import Team
from tsplat.training.processes.heartbeat import heartbeat
from tsplat.training.processes.launcher import gpus_of

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

FAULTS = int(os.environ.get("TSPLAT_FAULTS", "6"))
SILENCE = float(os.environ.get("TSPLAT_SILENCE", "8"))
WORKER = "tests.support.fault_worker"
KINDS = ("killed", "disk", "stopped", "raises", "shape", "setting")


def run_ranks(folder, size, *jobs):
    command = [sys.executable, "-m", "tests.support.team_worker"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(folder), *jobs], env=environment, cwd=ROOT)
        for rank in range(size)
    ]
    ends = time.monotonic() + 300
    try:
        for process in processes:
            process.wait(max(ends - time.monotonic(), 0.1))
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What ranks of several sizes found: {(job, size): [report of rank 0, ...]}."""
    folder = tmp_path_factory.mktemp("team")
    run_ranks(folder, 4, "train", "save", "load")
    run_ranks(folder, 2, "train", "load")
    run_ranks(folder, 1, "train", "load")
    for size in (3, 5):
        run_ranks(folder, size, "load")
    found = {}
    for path in folder.glob("*_*_*.json"):
        job, size, rank = path.stem.split("_")
        found.setdefault((job, int(size)), {})[int(rank)] = json.loads(path.read_text())
    return folder, found


def of(reports, job, size):
    ranks = reports[1].get((job, size), {})
    assert sorted(ranks) == list(range(size))
    for report in ranks.values():
        assert "error" not in report, report["error"]
    return [ranks[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("parallel", ["shard", "replicate"])
@pytest.mark.parametrize("kind", ["default", "absgrad", "mcmc"])
def test_ranks_train_as_one_process_does(reports, kind, parallel, size):
    (alone,) = of(reports, "train", 1)
    expected = alone[f"{kind} shard"]
    assert expected["counts"][-1] > expected["counts"][0]
    ranks = [report[f"{kind} {parallel}"] for report in of(reports, "train", size)]
    for rank in ranks:
        assert rank["counts"] == expected["counts"]
        # A single bit may turn a draw of MCMC.
        assert rank["psnr"] == pytest.approx(expected["psnr"], abs=0.05 if kind == "mcmc" else 1e-4)
    owned = [rank["own"] for rank in ranks]
    n = expected["counts"][-1]
    assert sum(owned) == n if parallel == "shard" else owned == [n] * size
    if parallel == "shard":
        assert max(owned) - min(owned) <= size


@pytest.mark.parametrize("size", [2, 4])
def test_gradients_are_scaled_on_ranks_without_a_view_too(reports, size):
    (alone,) = of(reports, "train", 1)
    for report in of(reports, "train", size):
        assert report["fp16"] == pytest.approx(alone["fp16"], rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_what_four_ranks_saved_is_the_same_on_any_number(reports, size):
    saved = of(reports, "save", 4)[0]
    one = of(reports, "load", 1)[0]
    for kind in ("default", "mcmc"):
        assert len(set(saved[kind])) > 1  # rows do not divide evenly
        ranks = [report[kind] for report in of(reports, "load", size)]
        assert sum(rank["own"] for rank in ranks) == sum(saved[kind])
        for rank in ranks:
            assert rank["differ"] == []
            assert rank["figures"]
            # Views are shared out, and their figures are the same as one process's.
            assert [rank[name] for name in ("psnr", "ssim", "count")] == [
                one[kind][name] for name in ("psnr", "ssim", "count")
            ]


def test_shards_that_are_missing_or_foreign_are_named(reports, tmp_path):
    of(reports, "save", 4)
    whole = read_newest(reports[0] / "mcmc")[0]
    names = sorted(path.name for path in (whole / "rows").iterdir())
    assert len(names) == 4
    for what, words in (
        ("missing", f"{names[1]}: is missing"),
        ("other", f"{names[2]}: was changed"),
        ("extra", "shard-00009.safetensors: does not belong"),
        ("cut", f"{names[0]}: was changed or cut short"),
    ):
        copy = tmp_path / what / whole.name
        shutil.copytree(whole, copy)
        rows = copy / "rows"
        match what:
            case "missing":
                (rows / names[1]).unlink()
            case "other":
                shutil.copy(read_newest(reports[0] / "default")[0] / "rows" / names[2], rows / names[2])
            case "extra":
                shutil.copy(rows / names[0], rows / "shard-00009.safetensors")
            case "cut":
                (rows / names[0]).write_bytes((rows / names[0]).read_bytes()[:-8])
        with pytest.raises(CheckpointError, match=words):
            read_checkpoint(copy)


def test_shards_whose_rows_do_not_add_up_are_refused(reports, tmp_path, monkeypatch):
    of(reports, "save", 4)
    whole = read_newest(reports[0] / "mcmc")[0]
    # Even where hashes are as they were.
    monkeypatch.setattr("tsplat.training.checkpoints._check_files", lambda *_: None)
    copy = tmp_path / whole.name
    shutil.copytree(whole, copy)
    next((copy / "rows").glob("shard-00004*")).unlink()
    with pytest.raises(CheckpointError, match=r"hold \d+ rows of .*, not \d+"):
        read_checkpoint(copy)


def faults():
    """Kinds of faults with the rank and the step they strike, as many as are asked for."""
    draw = random.Random(3)
    return [(KINDS[i % len(KINDS)], draw.randrange(3), draw.randrange(7, 40)) for i in range(FAULTS)]


def launched(run, kind, victim, step):
    """Three ranks of which one goes wrong; the launcher's exit status, what was said, and how long it took to end."""
    arguments = [str(run), kind, str(victim), str(step), str(SILENCE)]
    code = f"import sys; from tsplat.training.launch import launch; sys.exit(launch({arguments}, 3, module={WORKER!r}))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0]
            pytest.fail(f"the ranks did not end: {said[-3000:]}")
    return process.returncode, said, time.time() - float(Path(f"{run}.struck").read_text())


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("kind", "victim", "step"), faults())
def test_when_one_rank_goes_wrong_all_end_and_the_rest_goes_on_later(kind, victim, step, tmp_path, monkeypatch):
    run = tmp_path / "run"
    status, said, seconds = launched(run, kind, victim, step)
    assert status != 0, said
    assert seconds < 60
    expected = {
        "killed": rf"rank {victim} .*ended first, by signal 9|rank {victim} has given no sign",
        "disk": rf"cannot be written .*rank {victim}\b.*intact",
        "stopped": rf"rank {victim} has given no sign",
        "raises": rf"rank{victim}\b.*: a mistake in a callback",
        # At degree 0 only the optimizer comes upon it.
        "shape": rf"rank {victim}: sh_degree: degree 1 needs 4 bases|rank{victim}\b.*: The size of tensor",
        "setting": rf"rasterize_mode: classic on ranks .*, antialiased on rank {victim};",
    }[kind]
    assert re.search(expected, said), said[-3000:]
    path, _, troubles = read_newest(run)
    assert troubles == []
    saved = read_checkpoint(path).step
    assert saved == step // 3 * 3 or (saved == 3 and step < 6)
    # One process goes on with what three had.
    monkeypatch.setattr(runs, "_read", lambda config, device: capture())
    metrics = resume(run)
    assert (metrics["steps"], metrics["ranks"]) == (FAULT_STEPS, 1)
    # The step follows as many views as it did: one for each of three ranks.
    assert json.loads((run / "config.json").read_text())["views_per_step"] == 3


def test_the_command_trains_on_as_many_ranks_as_there_are_now(tmp_path):
    scene, run = capture(), tmp_path / "run"
    folder = write_colmap(tmp_path / "scene", [*scene.train, *scene.test], scene.points)

    def tsplat(*arguments):
        command = [sys.executable, "-m", "tsplat", "train", *arguments]
        found = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False
        )
        assert found.returncode == 0, found.stdout
        assert (run / "point_cloud.ply").exists()
        return found.stdout, json.loads((run / "metrics.json").read_text()), read_newest(run)[1].config

    said, metrics, config = tsplat(
        str(folder), "--out", str(run), "--device", "cpu", "--ranks", "2", "--steps", "8", "--stop-after", "4"
    )
    assert "2 ranks, a part of the scene each, 1 of a step's views each" in said
    assert (metrics["ranks"], metrics["steps"], config.views_per_step) == (2, 4, 2)
    said, metrics, config = tsplat("--resume", str(run), "--ranks", "3")
    assert "3 ranks, a part of the scene each, 0 or 1 of a step's views each" in said
    assert (metrics["ranks"], metrics["steps"], config.views_per_step) == (3, 8, 2)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_after_ctrl_c_all_ranks_save_and_end(tmp_path):
    status, said, _ = launched(tmp_path / "run", "interrupted", 1, 10)
    assert status == 128 + signal.SIGINT, said[-3000:]
    assert "SIGINT was passed on to all ranks" in said
    found = re.search(rf"ended after (\d+) of {FAULT_STEPS} steps", said)
    assert found, said[-3000:]
    assert read_newest(tmp_path / "run")[1].step == int(found[1]) < FAULT_STEPS
    # Pictures by all ranks, and one sheet of them.
    assert len(list((tmp_path / "run" / "held_out").iterdir())) == 5
    assert {"contact_sheet.png", "metrics.json"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_rows_are_shared_out_as_chunk_does():
    for n in (0, 1, 3, 4, 9, 10):
        team = Team()
        team.size = 4
        parts = [torch.arange(n)[team.rows(n, rank)].tolist() for rank in range(4)]
        chunks = [chunk.tolist() for chunk in torch.arange(n).chunk(4)]
        assert [part for part in parts if part] == [chunk for chunk in chunks if chunk]


def test_what_ranks_cannot_do_is_said(tmp_path, capsys):
    scene = capture()
    team = Team()
    team.size = 3
    gaussians = start(scene)
    with pytest.raises(UnsupportedError, match="fp16"):
        Trainer(gaussians, scene.train, Config(precision="fp16"), team)
    if not torch.cuda.is_available():
        assert cli.main(["train", "scene", "--out", str(tmp_path / "run"), "--gpus", "0,1"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "this machine has no GPU that PyTorch can use" in error
        assert "--device cpu --ranks 2" in error
    with pytest.raises(ArgumentError, match="expected numbers with commas"):
        gpus_of("0;1")


def test_one_process_needs_no_heartbeat():
    with heartbeat(Team(), lambda words: pytest.fail(words)):
        pass
