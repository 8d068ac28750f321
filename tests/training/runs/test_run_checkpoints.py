"""Writing checkpoints: atomic, also when a process is killed or the disk is full."""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.support.training_scenes import make_checkpoint
from tsplat.scene import FileError
from tsplat.scene.formats.checkpoints import find_checkpoints
from tsplat.training import CheckpointError, read_checkpoint, read_newest, write_checkpoint

N_KILLS = int(os.environ.get("TSPLAT_KILLS", "20"))


def test_files_are_plain_safetensors_with_raw_parameters(tmp_path):
    load_file = pytest.importorskip("safetensors.torch").load_file

    checkpoint = make_checkpoint(9)
    path = write_checkpoint(tmp_path, checkpoint)
    scene = load_file(path / "scene.safetensors")
    assert set(scene) == {"means", "log_scales", "quats", "opacity_logits", "sh0", "shN"}
    assert torch.equal(scene["log_scales"], checkpoint.gaussians.log_scales)
    assert (tmp_path / "latest").read_text() == "step_00000009\n"
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert manifest["config"]["strategy"]["kind"] == "mcmc"
    assert manifest["software"]["torch"] == torch.__version__


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(tmp_path, dtype):
    checkpoint = make_checkpoint(9)
    checkpoint.tensors["adam/means/exp_avg"] = checkpoint.tensors["adam/means/exp_avg"].to(dtype)
    read = read_checkpoint(write_checkpoint(tmp_path, checkpoint))
    assert (read.step, read.figures, read.config) == (9, checkpoint.figures, checkpoint.config)
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems only have names that are UTF-8")
def test_folder_whose_name_is_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"na\xffme")
    checkpoint = make_checkpoint(9)
    read = read_checkpoint(write_checkpoint(folder, checkpoint))
    assert torch.equal(read.gaussians.means, checkpoint.gaussians.means)
    assert not any(os.path.realpath(path) == os.path.realpath(folder) for path in Path("/proc/self/fd").iterdir())


def test_invalid_configuration_is_a_checkpoint_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tsplat.training.runs.run_checkpoints.to_json", lambda config: {"stepz": 3})
    path = write_checkpoint(tmp_path, make_checkpoint(9))
    with pytest.raises(CheckpointError, match="'stepz'"):
        read_checkpoint(path)


def test_checkpoints_are_never_overwritten(tmp_path):
    first, second = (write_checkpoint(tmp_path, make_checkpoint(4, n)) for n in (5, 6))
    assert (first.name, second.name) == ("step_00000004", "step_00000004_2")
    assert read_newest(tmp_path)[0] == second
    assert len(read_checkpoint(first).gaussians) == 5


@pytest.mark.parametrize("damage", [b"", None])
def test_damaged_checkpoints_do_not_count_as_kept(damage, tmp_path):
    paths = [write_checkpoint(tmp_path, make_checkpoint(step)) for step in range(1, 5)]
    file = paths[-1] / "training.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    newest = write_checkpoint(tmp_path, make_checkpoint(5), keep=2)
    assert find_checkpoints(tmp_path) == [paths[2], paths[3], newest]
    last = write_checkpoint(tmp_path, make_checkpoint(6), keep=2)
    assert find_checkpoints(tmp_path) == [newest, last]


def test_each_checkpoint_is_verified_once(tmp_path, monkeypatch):
    verified = []
    monkeypatch.setattr("tsplat.training.runs.run_checkpoints.is_intact", lambda path: not verified.append(path.name))
    write_checkpoint(tmp_path, make_checkpoint(1))
    intact = {}
    for step in range(2, 6):
        write_checkpoint(tmp_path, make_checkpoint(step), keep=3, intact=intact)
    assert verified == ["step_00000001"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_processes_lose_no_checkpoint(tmp_path, training_forks):
    code = "from tests.support.kill_saving import main; main()"
    process = training_forks.run(code, tmp_path, N_KILLS, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    n_killed, n_interrupted = (int(word) for word in process.stdout.split() if word.isdecimal())
    assert n_killed == N_KILLS
    assert n_interrupted > 0


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_full_disk_leaves_existing_files_intact(operation, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, make_checkpoint(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if operation == "write":
        import resource

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(FileError, match=r"step 2 cannot be written .*earlier checkpoints are intact"):
                write_checkpoint(tmp_path, make_checkpoint(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
    else:
        monkeypatch.setattr(os, operation, fail)
        with pytest.raises(FileError, match=r"step 2 cannot be written \(No space left"):
            write_checkpoint(tmp_path, make_checkpoint(2))
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert read_newest(tmp_path)[0].name == "step_00000001"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    write_checkpoint(tmp_path, make_checkpoint(1))
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileError, match="cannot be written"):
            write_checkpoint(tmp_path, make_checkpoint(2))
    finally:
        tmp_path.chmod(0o700)
    assert read_newest(tmp_path)[0].name == "step_00000001"


def test_read_only_file_system(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, make_checkpoint(1))

    def fail(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(FileError, match="Read-only file system"):
        write_checkpoint(tmp_path, make_checkpoint(2))
    monkeypatch.undo()
    assert read_newest(tmp_path)[0].name == "step_00000001"
