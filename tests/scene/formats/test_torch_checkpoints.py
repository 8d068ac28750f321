"""Checkpoints of gsplat and of Inria."""

import math
import pickle
import re

import numpy as np
import pytest
import torch

from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, read_model, read_torch_checkpoint

NAMES = {"log_scales": "scales", "opacity_logits": "opacities"}


def splats(n=6, degree=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(n, *size, generator=generator)

    shN = draw((degree + 1) ** 2 - 1, 3)
    return dict(means=draw(3), scales=draw(3) - 3, quats=draw(4), opacities=draw(), sh0=draw(1, 3), shN=shN)


def save(path, *, step=6999, **changes):
    torch.save({"step": step, "splats": {**splats(), **changes}}, path)
    return path


def inria(degree=3, radius=2.5):
    s = {name: torch.nn.Parameter(tensor) for name, tensor in splats(degree=degree).items()}
    state = {"state": {0: {"exp_avg": torch.zeros(6, 3), "step": torch.tensor(5.0)}}, "param_groups": [{"lr": 0.1}]}
    tensors = (
        s["means"],
        s["sh0"],
        s["shN"],
        s["scales"],
        s["quats"],
        torch.nn.Parameter(s["opacities"][:, None].detach()),
    )
    return (degree, *tensors, torch.zeros(6), torch.zeros(6, 1), torch.zeros(6, 1), state, radius), 30_000


def same(gaussians, wanted):
    return all(torch.equal(tensor, wanted[NAMES.get(name, name)]) for name, tensor in gaussians.tensors().items())


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_of_gsplat(tmp_path, zipped):
    content = {"step": 6999, "splats": torch.nn.ParameterDict(splats()).state_dict(), "pose_adjust": {}}
    torch.save(content, tmp_path / "ckpt_6999_rank0.pt", _use_new_zipfile_serialization=zipped)
    for found in (read_torch_checkpoint(tmp_path / "ckpt_6999_rank0.pt"), read_model(tmp_path / "ckpt_6999_rank0.pt")):
        assert same(found, splats())
        assert not any(tensor.requires_grad for tensor in found.tensors().values())


def test_what_was_read_does_not_hang_on_the_file(tmp_path):
    path = save(tmp_path / "a.pt")
    found = read_torch_checkpoint(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert same(found, splats())


@pytest.mark.parametrize("radius", [2.5, np.float32(2.5), np.float64(2.5)])
@pytest.mark.parametrize("degree", [0, 3])
def test_a_checkpoint_of_inria(tmp_path, degree, radius):
    torch.save(inria(degree, radius), tmp_path / "chkpnt30000.pth")
    found = read_model(tmp_path / "chkpnt30000.pth")
    assert same(found, splats(degree=degree))
    assert not any(tensor.requires_grad for tensor in found.tensors().values())


def ranks(folder, step, seeds):
    for rank, seed in enumerate(seeds):
        save(folder / f"ckpt_{step}_rank{rank}.pt", step=step, **splats(2, seed=seed))
    return [folder / f"ckpt_{step}_rank{rank}.pt" for rank in range(len(seeds))]


def test_ranks_are_merged_in_order(tmp_path):
    seeds = range(12)
    paths = ranks(tmp_path, 29999, seeds)
    parts = [splats(2, seed=seed) for seed in seeds]
    wanted = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    assert same(read_torch_checkpoint([*paths[5:], *paths[:5]]), wanted)
    assert same(read_torch_checkpoint(tmp_path), wanted)
    assert same(read_model(tmp_path), wanted)


def test_of_a_folder_the_last_step_is_read(tmp_path):
    ranks(tmp_path, 29999, [1, 2])
    ranks(tmp_path, 6999, [3, 4])
    assert torch.equal(read_torch_checkpoint(tmp_path).means[:2], splats(2, seed=1)["means"])


def test_a_shard_without_the_others_is_refused_by_name(tmp_path):
    paths = ranks(tmp_path, 6999, [0, 1, 2])
    for path in paths:
        others = [other.name for other in paths if other != path]
        with pytest.raises(FileError, match=".*".join(map(re.escape, [path.name, *others]))):
            read_torch_checkpoint(path)
    with pytest.raises(FileError, match=r"rank2\.pt: other ranks .*rank1\.pt;"):
        read_torch_checkpoint([paths[2], paths[0]])
    paths[1].unlink()
    with pytest.raises(FileError, match=r"missing, in ckpt_6999_rank1\.pt"):
        read_torch_checkpoint(tmp_path)
    paths[0].unlink()
    with pytest.raises(FileError, match=r"missing, in ckpt_6999_rank0\.pt, ckpt_6999_rank1\.pt"):
        read_torch_checkpoint(paths[2])


def test_shards_that_do_not_belong_together(tmp_path):
    one, other = ranks(tmp_path, 6999, [0, 1])
    save(other, step=7999, **splats(2))
    with pytest.raises(FileError, match=r"rank1\.pt: is of step 7999"):
        read_torch_checkpoint(tmp_path)
    save(other, **splats(2, degree=2))
    with pytest.raises(FileError, match=r"shN \[8, 3\].*\[15, 3\]"):
        read_torch_checkpoint(tmp_path)
    with pytest.raises(FileError, match="not the ranks of one step"):
        read_torch_checkpoint([one, other, save(tmp_path / "ckpt_1_rank0.pt")])
    with pytest.raises(ArgumentError, match="found none"):
        read_torch_checkpoint([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no checkpoints"):
        read_torch_checkpoint(tmp_path / "empty")


def test_values_that_are_activated_already_are_refused_unless_forced(tmp_path):
    plain = splats()
    active = dict(scales=plain["scales"].exp(), opacities=plain["opacities"].sigmoid())
    path = save(tmp_path / "a.pt", **active)
    with pytest.raises(FileError, match=r"a\.pt.*exp and sigmoid.*force=True"):
        read_torch_checkpoint(path)
    assert torch.equal(read_torch_checkpoint(path, force=True).log_scales, active["scales"])
    for name in active:  # one of both is not enough to tell
        save(path, **{name: active[name]})
        assert len(read_torch_checkpoint(path)) == 6
    assert len(read_torch_checkpoint(save(path, **splats(0)))) == 0


class Harm:
    def __reduce__(self):
        return print, ("this ran",)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (lambda: {"splats": splats(), "config": Harm()}, FileError, "could run code"),
        (lambda: {"splats": {**splats(), "means": splats()["means"].tolist()}}, FileError, "means.*found list"),
        (lambda: {"splats": {**splats(), "quats": torch.zeros(6, 4).long()}}, FileError, "quats.*found torch.int64"),
        (lambda: {"splats": {**splats(), "quats": torch.zeros(5, 4)}}, FileError, r"not go together.*quats"),
        (lambda: {"splats": {**splats(), "quats": torch.eye(6).to_sparse()}}, FileError, "quats"),
        (lambda: {"splats": {"means": torch.zeros(6, 3)}}, FileError, "lack scales, quats"),
        (
            lambda: {"splats": {k: v for k, v in {**splats(), "features": 1}.items() if k not in ("sh0", "shN")}},
            UnsupportedError,
            "app_opt",
        ),
        (lambda: {"model": 1}, FileError, "neither gsplat.*dict"),
        (lambda: (inria()[0][:11], 7), FileError, "neither gsplat.*tuple"),
        (lambda: splats()["means"], FileError, "neither gsplat.*Tensor"),
    ],
)
def test_what_is_no_checkpoint_is_said_in_words(tmp_path, capsys, content, error, words):
    torch.save(content(), tmp_path / "a.pt")
    with pytest.raises(error, match=words) as caught:
        read_torch_checkpoint(tmp_path / "a.pt")
    assert "a.pt" in str(caught.value)
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(Harm()), pickle.dumps([1])])
def test_bytes_of_something_else(tmp_path, capsys, content):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(FileError, match=r"a\.pt"):
        read_torch_checkpoint(tmp_path / "a.pt")
    assert "this ran" not in capsys.readouterr().out
    with pytest.raises(FileNotFoundError):
        read_torch_checkpoint(tmp_path / "b.pt")


def test_half_precision_and_nan(tmp_path):
    means = splats()["means"].half()
    means[2, 1] = math.nan
    found = read_torch_checkpoint(save(tmp_path / "a.pt", means=means))
    assert found.means.dtype == torch.float32
    assert found.sound.tolist() == [True, True, False, True, True, True]
