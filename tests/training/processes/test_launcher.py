"""Launched runs: ranks that fail or are interrupted, and resuming with another number of ranks."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.captures import write_colmap
from tests.support.fault_worker import STEPS
from tests.support.train_worker import capture
from tsplat import ArgumentError, cli
from tsplat.training import read_checkpoint, read_newest, resume
from tsplat.training.processes.launcher import parse_gpus
from tsplat.training.runs import train as runs

pytestmark = pytest.mark.long

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

N_FAULTS = int(os.environ.get("TSPLAT_FAULTS", "6"))
HEARTBEAT_TIMEOUT = float(os.environ.get("TSPLAT_HEARTBEAT_TIMEOUT", "8"))
WORKER = "tests.support.fault_worker"
KINDS = {"killed": 3, "disk": 2, "stopped": 3, "raises": 2, "shape": 2, "setting": 3}
"""Kinds of faults, and the number of ranks: more than one survives those that only the heartbeat notices."""

LAUNCH = """
import sys
from tests.support.forked_ranks import fork_ranks
from tests.support.train_worker import capture
from tsplat.training.processes.launcher import launch
capture()  # for all ranks
fork_ranks()
sys.exit(launch(sys.argv[3:], int(sys.argv[1]), module=sys.argv[2]))
"""
COMMAND = """
import sys
from tests.support.forked_ranks import fork_ranks
from tsplat.cli import main
fork_ranks()
sys.exit(main())
"""


def faults():
    """Kinds of faults, with the number of ranks, and the rank and the step at which they occur."""
    rng = random.Random(3)
    kinds = itertools.islice(itertools.cycle(KINDS.items()), N_FAULTS)
    return [(kind, world_size, rng.randrange(world_size), rng.randrange(7, STEPS - 2)) for kind, world_size in kinds]


def launch_with_fault(forks, run, kind, world_size, victim, step):
    """Launches ranks, one of which fails. Returns the exit status, the output and the seconds until the end."""
    arguments = [run, kind, victim, step, HEARTBEAT_TIMEOUT]
    process = forks.run(LAUNCH, world_size, WORKER, *arguments, timeout=150)
    output = process.stdout + process.stderr
    failed = Path(f"{run}.failed")
    assert process.returncode != -signal.SIGALRM, f"the ranks did not end: {output[-3000:]}"
    assert failed.exists(), output[-3000:]
    return process.returncode, output, time.time() - float(failed.read_text())


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize(("kind", "world_size", "victim", "step"), faults())
def test_failing_rank_ends_the_run_which_can_be_resumed(
    kind, world_size, victim, step, tmp_path, monkeypatch, training_forks
):
    run = tmp_path / "run"
    status, output, seconds = launch_with_fault(training_forks, run, kind, world_size, victim, step)
    assert status != 0, output
    assert seconds < 60
    expected = {
        "killed": rf"rank {victim} of {world_size} failed first \(killed by signal 9\)|no heartbeat from rank {victim}",
        "disk": rf"cannot be written .*rank {victim}\b.*intact",
        "stopped": rf"no heartbeat from rank {victim}",
        "raises": rf"rank{victim}\b.*: an error in a callback",
        # At degree 0, only the optimizer notices it.
        "shape": rf"rank {victim}: sh_degree: degree 1 needs 4 bases|rank {victim}: params: expected",
        "setting": rf"rasterize_mode: classic on ranks .*, antialiased on rank {victim};",
    }[kind]
    assert re.search(expected, output), output[-3000:]
    assert "/gloo/" not in output
    assert output.count("Traceback") == (kind == "raises")
    path, _, errors = read_newest(run)
    assert errors == []
    saved = read_checkpoint(path).step
    assert saved == step // 3 * 3 or (saved == 3 and step < 6)
    # A single process resumes the run of several ranks.
    monkeypatch.setattr(runs, "read_run_capture", lambda config, device, *_: capture())
    metrics = resume(run)
    assert (metrics["steps"], metrics["ranks"]) == (STEPS, 1)
    # With the same number of views per step: one for each rank.
    assert json.loads((run / "config.json").read_text())["views_per_step"] == world_size


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_after_ctrl_c_all_ranks_save_and_exit(tmp_path, training_forks):
    status, output, _ = launch_with_fault(training_forks, tmp_path / "run", "interrupted", 3, 1, 10)
    assert status == 128 + signal.SIGINT, output[-3000:]
    assert "SIGINT was forwarded to all ranks" in output
    match = re.search(rf"stopped after (\d+) of {STEPS} steps", output)
    assert match, output[-3000:]
    assert read_newest(tmp_path / "run")[1].step == int(match[1]) < STEPS
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_command_resumes_with_another_number_of_ranks(tmp_path, training_forks):
    scene, run = capture(), tmp_path / "run"
    folder = write_colmap(tmp_path / "scene", [*scene.train, *scene.test], scene.points)

    def results(process):
        output = process.stdout + process.stderr
        assert process.returncode == 0, output
        assert (run / "point_cloud.ply").exists()
        return output, json.loads((run / "metrics.json").read_text()), read_newest(run)[1].config

    # The launcher starts these ranks as new processes, and forks those of the other tests.
    command = [sys.executable, "-m", "tsplat", "train", str(folder), "--out", str(run), "--device", "cpu"]
    command += ["--ranks", "2", "--steps", "8", "--stop-after", "4"]
    output, metrics, config = results(subprocess.run(command, capture_output=True, text=True, timeout=150, check=False))
    assert "2 ranks with sharded Gaussians; 1 views per rank and step" in output
    assert (metrics["ranks"], metrics["steps"], config.views_per_step) == (2, 4, 2)
    output, metrics, config = results(training_forks.run(COMMAND, "train", "--resume", run, "--ranks", 3, timeout=150))
    assert "3 ranks with sharded Gaussians; 0 or 1 views per rank and step" in output
    assert (metrics["ranks"], metrics["steps"], config.views_per_step) == (3, 8, 2)
    # Every rank writes the held-out views that it rendered, and rank 0 one contact sheet of all.
    assert len(list((run / "held_out").iterdir())) == len(metrics["views"])
    assert (run / "contact_sheet.png").exists()


def test_gpus_that_do_not_exist_are_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert cli.main(["train", "scene", "--out", str(tmp_path / "run"), "--gpus", "0,1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "PyTorch finds no GPU on this machine" in error
    assert "--device cpu --ranks 2" in error


def test_parse_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert parse_gpus("2,0") == [2, 0]
    with pytest.raises(ArgumentError, match="expected indices separated by commas"):
        parse_gpus("0;1")
    for text in ("1,1", "0,4"):
        with pytest.raises(ArgumentError, match="expected distinct indices below 4"):
            parse_gpus(text)
