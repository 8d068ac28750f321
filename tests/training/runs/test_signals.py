"""Signals during training: the run is saved, ends within seconds, and resumes bit-exactly."""

import contextlib
import json
import os
import pty
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
from tests.support.signal_worker import EVAL_EVERY, SAVE_EVERY, STEPS
from tests.support.train_worker import capture
from tests.support.waiting import wait_for
from tsplat import cli
from tsplat.errors import FileError
from tsplat.support.locks import lock_folder
from tsplat.training import read_newest

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")]

WORKER = "tests.support.signal_worker"
SINGLE = "import sys; from tests.support.signal_worker import main; sys.exit(main())"
LAUNCH = """
import sys
from tests.support.forked_ranks import fork_ranks
from tests.support.train_worker import capture
from tsplat.training.processes.launcher import launch
capture()  # for all ranks
fork_ranks()
sys.exit(launch(sys.argv[2:], 2, module=sys.argv[1]))
"""
RENDERS = 5
"""Held-out views of the scene, and thus calls of `render` in an evaluation."""

MORE = pytest.mark.skipif("TSPLAT_SLOW" not in os.environ, reason="slow; set TSPLAT_SLOW=1")

MOMENTS = [
    ("SIGTERM", "step", 7, 7),
    pytest.param("SIGHUP", "step", 13, 13, marks=MORE),
    pytest.param("SIGUSR1", "step", SAVE_EVERY, SAVE_EVERY, marks=MORE),
    ("SIGINT", "step", STEPS - 1, STEPS - 1),
    ("SIGUSR1", "render", 2, 0),
    pytest.param("SIGTERM", "render", 2 * RENDERS + 2, 2 * EVAL_EVERY, marks=MORE),
    pytest.param("SIGTERM", "render", 4 * RENDERS + 2, STEPS, marks=MORE),
    ("SIGHUP", "render", 5 * RENDERS + 2, STEPS),
    ("SIGTERM", "save", 2, 2 * SAVE_EVERY),
    pytest.param("SIGKILL", "step", 11, SAVE_EVERY, marks=MORE),
    ("SIGKILL", "save", 2, SAVE_EVERY),
    pytest.param("SIGKILL", "render", 3 * RENDERS + 2, SAVE_EVERY, marks=MORE),
]
"""Signal, the function during which it is sent, which of its calls, and the step that is then saved."""

RANK_MOMENTS = [
    pytest.param("SIGTERM", "step", 7, 7, marks=MORE),
    ("SIGUSR1", "step", 13, 13),
    pytest.param("SIGHUP", "render", 3 + 2, EVAL_EVERY, marks=MORE),
    pytest.param("SIGINT", "save", 2, 2 * SAVE_EVERY, marks=MORE),
    ("SIGKILL", "step", 11, SAVE_EVERY),
]


def random_moment(seed, renders):
    """Draws a moment of training with `renders` held-out views per evaluation on a rank.

    A step is evaluated before it is saved. The last step is saved first, then evaluated, then rendered for the results.
    """
    draws = random.Random(seed)
    name, where = draws.choice(SIGNALS), draws.choice(["step", "step", "render", "save"])
    saves = [0, *range(SAVE_EVERY, STEPS, SAVE_EVERY), STEPS]
    evaluations = [*range(0, STEPS + 1, EVAL_EVERY), STEPS]
    count = draws.randint(1, {"step": STEPS, "render": renders * len(evaluations), "save": len(saves) - 1}[where])
    if where == "step":
        saved, step = SAVE_EVERY * ((count - 1) // SAVE_EVERY), count
    elif where == "render":
        index = (count - 1) // renders
        step = evaluations[index]
        saved = STEPS if step == STEPS else max(s for s in saves if s < max(step, 1))
    else:
        saved, step = saves[count - 1], saves[count]
    return name, where, count, saved if name == "SIGKILL" else step


SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT", "SIGKILL")
N_RANDOM = int(os.environ.get("TSPLAT_SIGNAL_MOMENTS", "0"))
MOMENTS += [random_moment(seed, RENDERS) for seed in range(N_RANDOM)]
RANK_MOMENTS += [random_moment(seed, (RENDERS + 1) // 2) for seed in range(N_RANDOM)]


def results(run):
    """The newest checkpoint and the metrics of a run, without times."""
    checkpoint = read_newest(run)[1]
    metrics = json.loads((run / "metrics.json").read_text())
    for entry in (metrics, *metrics["views"]):
        for name in (
            "seconds",
            "seconds_per_image",
            "images_per_second",
            "ranks_rows_received_per_step",
            "ranks_bytes",
        ):
            entry.pop(name, None)
    # The random numbers of NumPy and Python are not seeded.
    figures = {name: value for name, value in checkpoint.figures.items() if name not in ("seconds", "random")}
    return {**checkpoint.gaussians.tensors(), **checkpoint.tensors}, figures, metrics


def assert_equal_results(run, uninterrupted):
    found, expected = results(run), results(uninterrupted)
    assert found[0].keys() == expected[0].keys()
    for name, tensor in expected[0].items():
        assert torch.equal(found[0][name], tensor), name
    assert found[1:] == expected[1:]


def check_stop(process, run, name, step, seconds):
    """Checks the status and the output of a process that was sent a signal, and what it saved."""
    output = process.stdout + process.stderr
    assert "Traceback" not in output, output
    assert "@ " not in output, output  # frames of C++ functions
    assert seconds < 60, output
    if step:
        path, _, errors = read_newest(run)
        assert (path.name, errors) == (f"step_{step:08d}", [])
    else:
        assert not (run / "checkpoints").exists()
    assert name == "SIGKILL" or not (run / "lock").exists()


@pytest.fixture(scope="module")
def uninterrupted(training_forks, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "single"
    process = training_forks.run(SINGLE, run)
    assert process.returncode == 0, process.stderr
    return run


@pytest.mark.parametrize(("name", "where", "count", "step"), MOMENTS)
def test_stopped_run_is_saved_and_resumes_bit_exactly(
    name, where, count, step, tmp_path, training_forks, uninterrupted
):
    run, signum = tmp_path / "run", getattr(signal, name)
    process = training_forks.run(SINGLE, run, name, where, count)
    seconds = time.time() - float(Path(f"{run}.sent").read_text())
    check_stop(process, run, name, step, seconds)
    if name == "SIGKILL":
        assert process.returncode == -signum
    else:
        assert process.returncode == 128 + signum
        if step:
            left = "all steps are saved; for the results" if step == STEPS else f"step {step} is saved; to continue"
            expected = f"{left}: tsplat train --resume {run}"
        else:
            expected = f"no step is saved yet; to start again: tsplat train --resume {run}"
        assert process.stderr == f"tsplat: stopped by {name}; {expected}\n"
        assert not (run / "metrics.json").exists()
    process = training_forks.run(SINGLE, run)
    assert process.returncode == 0, process.stderr
    assert_equal_results(run, uninterrupted)


@pytest.fixture(scope="module")
def uninterrupted_ranks(training_forks, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "ranks"
    process = training_forks.run(LAUNCH, WORKER, run)
    assert process.returncode == 0, process.stderr
    return run


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this PyTorch has no gloo")
@pytest.mark.parametrize(("name", "where", "count", "step"), RANK_MOMENTS)
def test_all_ranks_stop_at_the_same_step(name, where, count, step, tmp_path, training_forks, uninterrupted_ranks):
    run = tmp_path / "run"
    process = training_forks.run(LAUNCH, WORKER, run, name, where, count)
    seconds = time.time() - float(Path(f"{run}.sent").read_text())
    if name == "SIGKILL":
        # The launcher was killed; the ranks end because its store no longer answers.
        assert process.returncode == -signal.SIGKILL
        wait_for(lambda: can_be_locked(run))
        step = read_newest(run)[1].step
    else:
        assert process.returncode == 128 + getattr(signal, name), process.stderr
        assert f"{name} was forwarded to all ranks" in process.stderr
    check_stop(process, run, name, step, seconds)
    process = training_forks.run(LAUNCH, WORKER, run)
    assert process.returncode == 0, process.stderr
    assert_equal_results(run, uninterrupted_ranks)


def can_be_locked(run):
    """Whether all processes that held the lock of a run have ended."""
    with contextlib.suppress(FileError), lock_folder(run):
        return True
    return False


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A COLMAP scene on disk."""
    found = capture()
    return write_colmap(tmp_path_factory.mktemp("scene"), [*found.train, *found.test], found.points)


def train_command(scene, run):
    return [sys.executable, "-m", "tsplat", "train", str(scene), "--out", str(run), "--device", "cpu",
            "--backend", "torch", "--steps", "100000", "--save-every", "50000"]  # fmt: skip


def test_command_ends_within_seconds_of_sigterm(scene, tmp_path):
    run = tmp_path / "run"
    with subprocess.Popen(train_command(scene, run), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stdout:
            if line.startswith(b"step "):
                break
        process.send_signal(signal.SIGTERM)
        output, error = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    step = read_newest(run)[1].step
    assert f"stopped after {step} of 100,000 steps\n".encode() in output
    message = f"tsplat: stopped by SIGTERM; step {step} is saved; to continue: tsplat train --resume {run}\n"
    assert error.decode() == message


def test_two_trainings_in_one_folder(scene, tmp_path, capsys):
    run = tmp_path / "run"
    with subprocess.Popen(train_command(scene, run), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stdout:
            if line.startswith(b"step "):
                break
        process.send_signal(signal.SIGSTOP)
        assert cli.main(train_command(scene, run)[3:]) == 2
        message = rf"tsplat: error: {run}: in use by process {process.pid} on .*; wait for it, or choose another folder"
        error = capsys.readouterr().err
        assert re.fullmatch(message + "\n", error), error
        # Nor can the run be resumed twice.
        assert cli.main(["train", "--resume", str(run)]) == 2
        assert capsys.readouterr().err.count("in use by process") == 1
        process.kill()
        process.communicate()
    # SIGKILL leaves the lock, which the next run replaces.
    assert (run / "lock").exists()
    assert cli.main([*train_command(scene, run)[3:], "--stop-after", "2"]) == 0
    assert not (run / "lock").exists()


def test_closing_the_terminal_saves_the_run(scene, tmp_path):
    run = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        command = train_command(scene, run)
        os.execv(command[0], command)
    output = b""
    while b"steps/s" not in output:
        output += os.read(terminal, 65536)
    os.close(terminal)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert read_newest(run)[1].step > 0


def test_training_continues_when_nobody_reads_its_output(scene, tmp_path):
    run = tmp_path / "run"
    command = [*train_command(scene, run), "--stop-after", "12"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (0, "")
    assert read_newest(run)[1].step == 12
