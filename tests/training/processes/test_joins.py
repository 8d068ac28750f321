"""Ranks that others start: by Slurm's ``srun``, by torchrun on several machines, or in a process group that exists."""

import dataclasses
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.captures import write_colmap
from tests.support.paths import ROOT
from tests.support.train_worker import capture
from tests.support.waiting import wait_for
from tsplat import ArgumentError, cli
from tsplat.errors import FileError
from tsplat.training import RunConfig, read_newest, resume, train
from tsplat.training.processes import group
from tsplat.training.processes.environment import rank_variables
from tsplat.training.processes.launcher import ranks_and_gpus

STEP = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8"}
"""Variables of a task of ``srun``, without an address."""

SRUN = """#!{python}
import os, sys
from tests.support.forked_ranks import Fork, import_all
import_all()
assert sys.argv[1] == "tsplat"
command = sys.executable, "-m", *sys.argv[1:], "--device", "cpu", "--steps", "8", "--views-per-step", "2"
size = int(os.environ["SLURM_NTASKS"])
step = {{"SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}}
tasks = [
    Fork(command, os.environ | step | {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}}) for i in range(size)
]
sys.exit(max(task.wait(300) for task in tasks))
"""
ADOPTED = """
import os, sys
import torch.distributed as dist
from tsplat.cli import main
folder, *arguments = sys.argv[1:]
rank = int(os.fork() == 0)
dist.init_process_group("gloo", "file://" + folder + "/store", rank=rank, world_size=2)
status = main(arguments)
assert dist.is_initialized()
dist.destroy_process_group()
if rank == 0:
    status = max(status, os.waitstatus_to_exitcode(os.wait()[1]))
sys.exit(status)
"""
RECIPES = ROOT / "docs" / "distributed.md"

needs_gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")


def recipe(word):
    """The recipe of the documentation with a word, in which the scene and the run are variables."""
    (block,) = (block for block in re.findall(r"```sh\n(.*?)```", RECIPES.read_text(), re.DOTALL) if word in block)
    return block.replace("SCENE", '"$SCENE"').replace("RUN", '"$RUN"')


def rank_environment(**variables):
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def write_program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A scene on disk."""
    scene = capture()
    return write_colmap(tmp_path_factory.mktemp("scene"), [*scene.train, *scene.test], scene.points)


def test_torchrun_and_processes_on_their_own():
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert rank_variables({}) == {}
    assert rank_variables(torchrun) == torchrun
    # An agent of torchrun that is a task of srun.
    assert rank_variables(torchrun | STEP | {"TORCHELASTIC_RUN_ID": "1"}) == torchrun
    # A batch script, and the shell of `srun --pty bash`.
    script = {name: STEP[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")}
    assert rank_variables(script) == {}
    assert rank_variables(script | {"SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert rank_variables(script | {"MASTER_ADDR": "node1"})["RANK"] == "5"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({"SLURM_STEP_NODELIST": "gpu[03-05,9],login1"}, "gpu03"),
        ({"SLURM_STEP_NODELIST": "a-1,a-2"}, "a-1"),
        ({"SLURM_JOB_NODELIST": "rack2n[7,11]-ib", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, "rack2n7-ib"),
        ({"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, "10.0.0.1"),
        ({"SLURM_STEP_NODELIST": "b[1-2]", "MASTER_ADDR": "10.0.0.7"}, "10.0.0.7"),
    ],
)
def test_address_of_a_step_of_slurm(given, address):
    found = rank_variables(STEP | given | {"SLURM_JOB_ID": "4711"})
    port = found.pop("MASTER_PORT")
    assert found == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": address}
    assert 15000 <= int(port) < 30000
    others = [{"SLURM_JOB_ID": "4712"}, {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "1"}]
    assert all(rank_variables(STEP | given | other)["MASTER_PORT"] != port for other in others)
    assert rank_variables(STEP | given | {"MASTER_PORT": "29500"})["MASTER_PORT"] == "29500"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE: expected with RANK"),
        ({"WORLD_SIZE": "2"}, "RANK: expected with WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK: expected less than WORLD_SIZE, which is 2, found 2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK: expected an integer of 0 or more, found '-1'"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE: expected an integer of 0 or more, found 'two'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "LOCAL_RANK: expected at most RANK, which is 0, found 1"),
        (STEP | {"SLURM_PROCID": "8"}, "SLURM_PROCID: expected less than SLURM_NTASKS, which is 8, found 8"),
        (STEP | {"SLURM_LOCALID": "6"}, "SLURM_LOCALID: expected at most SLURM_PROCID"),
        ({**STEP, "RANK": "0", "WORLD_SIZE": "8"}, "RANK: is 0 in task 5 of srun"),
        (STEP, "MASTER_ADDR: neither it nor SLURM_STEP_NODELIST is set"),
        ({name: STEP[name] for name in STEP if name != "SLURM_LOCALID"}, "SLURM_LOCALID: expected with SLURM_PROCID"),
    ],
)
def test_variables_that_contradict_each_other(variables, message, monkeypatch, capsys, tmp_path):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        rank_variables(variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "scene", "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "options", "message"),
    [
        (
            TORCHRUN,
            ["--ranks", "4"],
            "--ranks: asks for 4 ranks, but this process was started as one of 2 (LOCAL_WORLD",
        ),
        (
            STEP | {"MASTER_ADDR": "node1"},
            ["--ranks", "2"],
            "--ranks: asks for 2 ranks, but this process was started as",
        ),
        (TORCHRUN, ["--gpus", "0,1,2"], "--gpus: asks for 3 ranks, but this process was started as one of 2"),
    ],
)
def test_ranks_other_than_those_that_were_started(variables, options, message, monkeypatch, capsys, tmp_path):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):  # that is_launched() sets
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "scene", "--out", str(tmp_path / "run"), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("ranks", "gpus"), [(1, ""), (2, ""), (1, "2,3"), (2, "2,3")])
def test_ranks_that_were_started(ranks, gpus, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert ranks_and_gpus(ranks, gpus) == (4, [])


def test_group_that_cannot_use_the_device(monkeypatch):
    monkeypatch.setattr(group.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(group.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(group.dist, "get_backend", lambda: "nccl")
    with pytest.raises(ArgumentError, match="device: is cpu, but the process group has the backend nccl"):
        group.join_ranks(RunConfig(device="cpu"))


@pytest.mark.long
def test_restarted_ranks_resume_their_own_run_only(folder, tmp_path, monkeypatch, capsys):
    config = RunConfig(scene=str(folder), steps=4, device="cpu", strategy=None)
    train(config, tmp_path / "run", stop_after=2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(FileError, match="contains the checkpoints of another run"):
        train(config, tmp_path / "run")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(FileError, match="contains the checkpoints of another run"):
        train(dataclasses.replace(config, seed=1), tmp_path / "run")
    capsys.readouterr()
    assert train(config, tmp_path / "run")["steps"] == 4
    assert "resumed from step_00000002: step 2 of 4" in capsys.readouterr().out
    # Before the first checkpoint, a run starts again.
    assert train(config, tmp_path / "other")["steps"] == 4
    # A run that is extended.
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    resume(tmp_path / "run", steps=6, stop_after=5)
    with pytest.raises(ArgumentError, match="expected more than the 6 steps"):
        resume(tmp_path / "run", steps=6)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(ArgumentError, match="expected more than the 6 steps"):
        resume(tmp_path / "run", steps=5)
    assert resume(tmp_path / "run", steps=6)["steps"] == 6


@needs_gloo
@pytest.mark.long
def test_slurm_job_and_adopted_group_train_the_same(folder, tmp_path, training_forks):
    write_program(tmp_path / "bin" / "srun", SRUN)
    # What sbatch sets, in which the script itself is not a task.
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    variables = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SCENE": str(folder),
        "RUN": str(tmp_path / "slurm"),
    }
    environment = rank_environment(**job, **variables)
    command = ["bash", "-c", recipe("#SBATCH")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 ranks with sharded Gaussians" in done.stdout

    arguments = ["train", str(folder), "--out", str(tmp_path / "adopted"), "--device", "cpu", "--steps", "8"]
    process = training_forks.run(ADOPTED, tmp_path, *arguments, "--views-per-step", 2, timeout=300)
    assert process.returncode == 0, process.stderr
    slurm, adopted = (read_newest(tmp_path / name)[1] for name in ("slurm", "adopted"))
    assert json.loads((tmp_path / "adopted" / "metrics.json").read_text())["ranks"] == 2
    assert slurm.step == adopted.step == 8
    for name, tensor in slurm.gaussians.tensors().items():
        assert torch.equal(tensor, adopted.gaussians.tensors()[name]), name


@needs_gloo
@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray (pip install 'ray[train]')")
def test_workers_of_ray_train_as_ranks_of_torchrun(folder, tmp_path):
    blocks = re.findall(r"```\w*\n(.*?)```", RECIPES.read_text(), re.DOTALL)
    (script,) = (block for block in blocks if "ray.train" in block)
    script = script.replace("preset(),", "preset('standard', 8), device='cpu', views_per_step=2,")
    script = script.replace("num_workers=8, use_gpu=True", "num_workers=2")
    script = script.replace("SCENE", repr(str(folder))).replace("RUN", repr(str(tmp_path / "ray")))
    environment = rank_environment(RAY_USAGE_STATS_ENABLED="0")
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, timeout=300, check=True)
    arguments = f"train {folder} --out {tmp_path / 'local'} --device cpu --steps 8 --views-per-step 2 --ranks 2"
    command = [sys.executable, "-m", "tsplat", *arguments.split()]
    subprocess.run(command, env=rank_environment(), timeout=300, check=True)
    ray, local = (read_newest(tmp_path / name)[1] for name in ("ray", "local"))
    assert json.loads((tmp_path / "ray" / "metrics.json").read_text())["ranks"] == 2
    for name, tensor in local.gaussians.tensors().items():
        assert torch.equal(tensor, ray.gaussians.tensors()[name]), name


@needs_gloo
@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks of an agent in /proc")
def test_lost_machine_is_left_out_by_torchrun(folder, tmp_path):
    """Two agents with two ranks each; one is killed with its ranks, and the other resumes from a checkpoint."""
    port = free_port()
    run = tmp_path / "run"
    variables = {"SCENE": str(folder), "RUN": str(run), "MACHINE": f"localhost:{port}"}
    script = recipe("--rdzv-endpoint").replace("torchrun", f"exec {sys.executable} -m tests.support.forked_ranks")
    script = script.replace("--nproc-per-node 4", "--nproc-per-node 2").replace("MACHINE:29500", '"$MACHINE"')
    script = script.rstrip() + " --device cpu --steps 24 --save-every 3 --keep 20"
    agents = []
    for i in range(2):
        with open(tmp_path / f"agent_{i}.txt", "w") as output:
            pipes = dict(stdout=output, stderr=output)
            agents.append(subprocess.Popen(["bash", "-c", script], env=rank_environment(**variables), **pipes))
        wait_for(lambda: is_open(port), every=0.2)  # by the first one, which keeps the rendezvous
    try:
        wait_for(lambda: list(run.glob("checkpoints/step_*")), 240, 0.2)
        saved = read_newest(run)[1].step
        children = Path(f"/proc/{agents[1].pid}/task/{agents[1].pid}/children").read_text().split()
        assert len(children) == 2
        for pid in (agents[1].pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        assert agents[0].wait(300) == 0
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    output = (tmp_path / "agent_0.txt").read_text()
    assert "4 ranks with sharded Gaussians; 1 views per rank and step" in output
    (resumed,) = re.findall(r"resumed from step_\d+: step (\d+) of 24", output)
    assert saved <= int(resumed) < 24
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["ranks"], metrics["steps"]) == (2, 24)
    # The number of views per step is that of the four ranks.
    assert read_newest(run)[1].config.views_per_step == 4
