"""Reading training checkpoints: damaged ones are rejected, and the newest valid one is found."""

import dataclasses
import json
import os
import random
import shutil

import pytest
import torch

from tests.support.training_scenes import make_checkpoint
from tsplat import ArgumentError
from tsplat.scene import AlreadyActivatedError, open_model, write_ply
from tsplat.scene.formats.checkpoints import (
    CheckpointError,
    _read_rows,
    is_run,
    read_newest_valid,
    read_raw_checkpoint,
)
from tsplat.scene.formats.safetensors_file import write_safetensors
from tsplat.training import read_checkpoint, write_checkpoint

N_DAMAGED = int(os.environ.get("TSPLAT_DAMAGED_CHECKPOINTS", "150"))


def damage(rng, folder):
    """Damages a file of a checkpoint; returns its name."""
    files = sorted(folder.iterdir())
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    match rng.randrange(6):
        case 0:
            del content[rng.randrange(len(content)) :]
        case 1:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        case 2:
            path.unlink()
            return f"{path.name} missing"
        case 3:
            content += bytes(rng.randrange(1, 100))
        case 4:
            start = rng.randrange(len(content))
            content[start : start + 8] = (2**62).to_bytes(8, "little")
        case 5:
            other = rng.choice(files)
            content = bytearray(other.read_bytes()) if other != path else content[::-1]
    path.write_bytes(content)
    return path.name


def test_damaged_checkpoints_are_rejected(tmp_path):
    intact = write_checkpoint(tmp_path / "intact", make_checkpoint(3, 60))
    expected = read_checkpoint(intact)
    rng, folder = random.Random(11), tmp_path / "step_00000003"
    n_rejected = n_accepted = 0
    for _ in range(N_DAMAGED):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(intact, folder)
        name = damage(rng, folder)
        try:
            found = read_checkpoint(folder)
        except CheckpointError as error:
            n_rejected += str(folder) in str(error)
            continue
        n_accepted += 1
        # Whitespace in JSON has no meaning.
        assert name == "checkpoint.json"
        assert found.figures == expected.figures
        for name, tensor in expected.gaussians.tensors().items():
            assert torch.equal(found.gaussians.tensors()[name], tensor)
    assert n_rejected + n_accepted == N_DAMAGED
    assert n_rejected > 0.9 * N_DAMAGED


def test_newest_valid_checkpoint_is_read(tmp_path):
    old, new = (write_checkpoint(tmp_path, make_checkpoint(step)) for step in (1, 2))
    assert read_newest_valid(tmp_path, read_raw_checkpoint)[0] == new
    (new / "training.safetensors").write_bytes(b"")
    path, checkpoint, errors = read_newest_valid(tmp_path, read_raw_checkpoint)
    assert (path, checkpoint.step) == (old, 1)
    assert len(errors) == 1
    assert "step_00000002/training.safetensors: modified or truncated" in errors[0]
    (tmp_path / "latest").unlink()
    assert read_newest_valid(tmp_path, read_raw_checkpoint)[0] == old
    (old / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match="no valid checkpoint found"):
        read_newest_valid(tmp_path, read_raw_checkpoint)


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "._scene.safetensors", "notes/a.txt", "x.safetensors"])
def test_other_files_in_a_checkpoint_are_ignored(name, tmp_path):
    write_checkpoint(tmp_path, make_checkpoint(1))
    new = write_checkpoint(tmp_path, make_checkpoint(2))
    for folder in (tmp_path, new):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not ours")
    path, checkpoint, errors = read_newest_valid(tmp_path, read_raw_checkpoint)
    assert (path, checkpoint.step, errors) == (new, 2, [])


def test_open_model_warns_when_it_skips_a_damaged_checkpoint(tmp_path):
    write_checkpoint(tmp_path, make_checkpoint(1, 30))
    new = write_checkpoint(tmp_path, make_checkpoint(2, 40))
    (new / "scene.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipped a damaged .*step_00000002/scene.*; using step_00000001"):
        assert len(open_model(tmp_path)) == 30


def test_checkpoint_can_be_chosen(tmp_path):
    for step, n in ((1, 30), (2, 40), (2, 50)):
        write_checkpoint(tmp_path, make_checkpoint(step, n))
    sizes = {name: len(open_model(tmp_path, checkpoint=name)) for name in ("1", "2", "step_00000002", "00000001")}
    assert sizes == {"1": 30, "2": 50, "step_00000002": 40, "00000001": 30}
    with pytest.raises(CheckpointError, match="no checkpoint 999"):
        open_model(tmp_path, checkpoint="9" * 5000)
    with pytest.raises(CheckpointError, match=r"no checkpoint 7; found step_00000001, step_00000002, step_00000002_2"):
        open_model(tmp_path, checkpoint="7")
    with pytest.raises(CheckpointError, match="is not checkpoint 1"):
        open_model(tmp_path / "step_00000002", checkpoint="1")
    write_ply(tmp_path / "model.ply", read_checkpoint(tmp_path / "step_00000001").gaussians)
    with pytest.raises(ArgumentError, match="not a training run"):
        open_model(tmp_path / "model.ply", checkpoint="1")


@pytest.mark.parametrize("opacities", [False, True])
def test_activated_parameters_are_rejected_unless_forced(opacities, tmp_path):
    checkpoint = make_checkpoint(1, 300)
    raw = checkpoint.gaussians
    activated = dataclasses.replace(raw, log_scales=(raw.log_scales - 3).exp())
    if opacities:
        activated = dataclasses.replace(activated, opacity_logits=raw.opacity_logits.sigmoid())
    path = write_checkpoint(tmp_path, dataclasses.replace(checkpoint, gaussians=activated))
    message = "all above 0 and .*opacities" if opacities else "all above 0, as .*force"
    for read in (read_raw_checkpoint, open_model):
        with pytest.raises(AlreadyActivatedError, match=message):
            read(path)
    assert torch.equal(open_model(path, force=True).log_scales, activated.log_scales)


def test_open_model_reads_runs_checkpoints_and_files(tmp_path):
    path = write_checkpoint(tmp_path / "run" / "checkpoints", make_checkpoint(1))
    expected = read_checkpoint(path).gaussians
    write_ply(tmp_path / "model.ply", expected)
    for model in (tmp_path / "run", tmp_path / "run" / "checkpoints", path, tmp_path / "model.ply"):
        assert is_run(model) == (model.suffix != ".ply")
        assert torch.equal(open_model(model).means, expected.means)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file: is a file; expected a run"):
        read_newest_valid(tmp_path / "file", read_raw_checkpoint)
    with pytest.raises(CheckpointError, match="no such folder"):
        read_newest_valid(tmp_path / "missing", read_raw_checkpoint)


def test_open_model_does_not_interpret_the_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr("tsplat.training.runs.run_checkpoints.to_json", lambda config: {"unknown": 3})
    path = write_checkpoint(tmp_path, make_checkpoint(1))
    assert read_raw_checkpoint(path).config == {"unknown": 3}
    assert len(open_model(path)) == 500


IMPORTS = """
import sys
from tsplat.scene import open_model
open_model(sys.argv[1])
assert not [name for name in sys.modules if name.startswith("tsplat.training")]
"""


@pytest.mark.slow
def test_open_model_does_not_import_training(tmp_path, forks):
    path = write_checkpoint(tmp_path, make_checkpoint(1))
    found = forks.run(IMPORTS, path)
    assert found.returncode == 0, found.stderr


def test_shards_of_earlier_versions_are_read(tmp_path):
    """Those that torch.distributed.checkpoint wrote, in any order of their names."""
    values = torch.arange(21.0).view(7, 3)
    for name, first, stop in (("shard-00002-model-00001-of-00001", 0, 4), ("shard-00001-model-00001-of-00001", 4, 7)):
        metadata = {
            "DCP_VERSION": "1.0",
            "DCP_SHARDING_INFO": json.dumps({"scene/means": {"saved_offsets": [first, 0]}}),
            "format": "pt",
        }
        write_safetensors(tmp_path / f"{name}.safetensors", {"scene/means": values[first:stop]}, metadata)
    shards = sorted(tmp_path.iterdir())
    assert torch.equal(_read_rows(tmp_path, shards, 7)["scene/means"], values)
    assert torch.equal(_read_rows(tmp_path, shards, 7, slice(3, 5))["scene/means"], values[3:5])
