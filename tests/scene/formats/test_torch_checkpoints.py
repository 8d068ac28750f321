"""Tests of reading checkpoints of gsplat and Inria."""

import math
import os
import pickle
import re
import zipfile

import numpy as np
import pytest
import torch

from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import AlreadyActivatedError, FileError, read_model, read_torch_checkpoint
from tsplat.support import reading

GSPLAT_NAMES = {"log_scales": "scales", "opacity_logits": "opacities"}


def splats(n=6, degree=3, seed=0):
    """The tensors of a gsplat checkpoint."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(n, *size, generator=generator)

    shN = draw((degree + 1) ** 2 - 1, 3)
    return dict(means=draw(3), scales=draw(3) - 3, quats=draw(4), opacities=draw(), sh0=draw(1, 3), shN=shN)


def save(path, *, step=6999, **changes):
    torch.save({"step": step, "splats": {**splats(), **changes}}, path)
    return path


def inria(degree=3, radius=2.5):
    """The content of a checkpoint of Inria's code; `radius` is the extent of the scene."""
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


def assert_equals(gaussians, expected):
    for name, tensor in gaussians.tensors().items():
        assert torch.equal(tensor, expected[GSPLAT_NAMES.get(name, name)]), name


@pytest.mark.parametrize("zipped", [True, False])
def test_read_gsplat_checkpoint(tmp_path, zipped):
    content = {"step": 6999, "splats": torch.nn.ParameterDict(splats()).state_dict(), "pose_adjust": {}}
    torch.save(content, tmp_path / "ckpt_6999_rank0.pt", _use_new_zipfile_serialization=zipped)
    for read in (read_torch_checkpoint, read_model):
        notes = []
        found = read(tmp_path / "ckpt_6999_rank0.pt", warn=notes.append)
        assert_equals(found, splats())
        assert len(notes) == 1
        assert notes[0].endswith("ckpt_6999_rank0.pt: ignored the parts pose_adjust; only 3D Gaussians are read")
        assert not any(tensor.requires_grad for tensor in found.tensors().values())


def test_2dgs_is_read(tmp_path):
    (degree, means, sh0, shN, scales, *rest), step = inria()
    torch.save(((degree, means, sh0, shN, scales[:, :2], *rest), step), tmp_path / "a.pth")
    found = read_model(tmp_path / "a.pth")
    assert found.surfels and torch.equal(found.log_scales[:, :2], scales[:, :2])


@pytest.mark.parametrize("checksums", [True, False])
def test_checksums_of_records_are_verified(tmp_path, checksums):
    torch.serialization.set_crc32_options(checksums)
    try:
        content = bytearray(save(tmp_path / "a.pt").read_bytes())
    finally:
        torch.serialization.set_crc32_options(True)
    assert_equals(read_torch_checkpoint(tmp_path / "a.pt"), splats())
    content[content.index(splats()["means"].numpy().tobytes())] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    if checksums:
        with pytest.raises(FileError, match=r"a\.pt: damaged or cut short .*CRC-32"):
            read_torch_checkpoint(tmp_path / "a.pt")
    else:
        assert len(read_torch_checkpoint(tmp_path / "a.pt")) == 6


def test_compressed_records_are_refused(tmp_path):
    save(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as one, zipfile.ZipFile(tmp_path / "b.pt", "w") as other:
        for name in one.namelist():
            other.writestr(name, one.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(FileError, match=r"b\.pt: its records are compressed"):
        read_torch_checkpoint(tmp_path / "b.pt")


def test_tensors_are_not_mapped_to_the_file(tmp_path):
    path = save(tmp_path / "a.pt")
    found = read_torch_checkpoint(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert_equals(found, splats())


@pytest.mark.parametrize("radius", [2.5, np.float32(2.5), np.float64(2.5)])
@pytest.mark.parametrize("degree", [0, 3])
def test_read_inria_checkpoint(tmp_path, degree, radius):
    torch.save(inria(degree, radius), tmp_path / "chkpnt30000.pth")
    found = read_model(tmp_path / "chkpnt30000.pth")
    assert_equals(found, splats(degree=degree))
    assert not any(tensor.requires_grad for tensor in found.tensors().values())


def write_ranks(folder, step, seeds):
    """Writes one file per rank with two Gaussians each."""
    for rank, seed in enumerate(seeds):
        save(folder / f"ckpt_{step}_rank{rank}.pt", step=step, **splats(2, seed=seed))
    return [folder / f"ckpt_{step}_rank{rank}.pt" for rank in range(len(seeds))]


def test_ranks_are_concatenated_in_order(tmp_path):
    seeds = range(12)
    paths = write_ranks(tmp_path, 29999, seeds)
    parts = [splats(2, seed=seed) for seed in seeds]
    expected = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    assert_equals(read_torch_checkpoint([*paths[5:], *paths[:5]]), expected)
    assert_equals(read_torch_checkpoint(tmp_path), expected)
    assert_equals(read_model(tmp_path), expected)


def test_last_step_of_a_folder_is_read(tmp_path):
    write_ranks(tmp_path, 29999, [1, 2])
    write_ranks(tmp_path, 6999, [3, 4])
    assert torch.equal(read_torch_checkpoint(tmp_path).means[:2], splats(2, seed=1)["means"])


def test_missing_ranks_are_named(tmp_path):
    paths = write_ranks(tmp_path, 6999, [0, 1, 2])
    for path in paths:
        others = [other.name for other in paths if other != path]
        with pytest.raises(FileError, match=".*".join(map(re.escape, [path.name, *others]))):
            read_torch_checkpoint(path)
    with pytest.raises(FileError, match=r"rank2\.pt: the checkpoint continues in .*rank1\.pt;"):
        read_torch_checkpoint([paths[2], paths[0]])
    paths[1].unlink()
    with pytest.raises(FileError, match=r"missing: ckpt_6999_rank1\.pt"):
        read_torch_checkpoint(tmp_path)
    paths[0].unlink()
    with pytest.raises(FileError, match=r"missing: ckpt_6999_rank0\.pt, ckpt_6999_rank1\.pt"):
        read_torch_checkpoint(paths[2])


def test_inconsistent_ranks_are_rejected(tmp_path):
    one, other = write_ranks(tmp_path, 6999, [0, 1])
    save(other, step=7999, **splats(2))
    with pytest.raises(FileError, match=r"rank1\.pt: .*found step 7999"):
        read_torch_checkpoint(tmp_path)
    save(other, **splats(2, degree=2))
    with pytest.raises(FileError, match=r"expected .*shN \[N, 15, 3\].*found .*shN \[N, 8, 3\]"):
        read_torch_checkpoint(tmp_path)
    with pytest.raises(FileError, match="expected the ranks of one step"):
        read_torch_checkpoint([one, other, save(tmp_path / "ckpt_1_rank0.pt")])
    with pytest.raises(ArgumentError, match="found none"):
        read_torch_checkpoint([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="expected files ckpt_"):
        read_torch_checkpoint(tmp_path / "empty")


def test_activated_values_are_rejected_unless_forced(tmp_path):
    values = splats()
    activated = dict(scales=values["scales"].exp(), opacities=values["opacities"].sigmoid())
    path = save(tmp_path / "a.pt", **activated)
    with pytest.raises(AlreadyActivatedError, match=r"a\.pt.*exp and sigmoid.*force=True"):
        read_torch_checkpoint(path)
    assert torch.equal(read_torch_checkpoint(path, force=True).log_scales, activated["scales"])
    for name in activated:  # only both together are conclusive for six Gaussians
        save(path, **{name: activated[name]})
        assert len(read_torch_checkpoint(path)) == 6
    assert len(read_torch_checkpoint(save(path, **splats(0)))) == 0


class Executable:
    """Runs code if it is unpickled without restrictions."""

    def __reduce__(self):
        return print, ("this ran",)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (lambda: {"splats": splats(), "config": Executable()}, FileError, "could run code"),
        (lambda: {"splats": {**splats(), "means": splats()["means"].tolist()}}, FileError, "means.*found list"),
        (lambda: {"splats": {**splats(), "quats": torch.zeros(6, 4).long()}}, FileError, "quats.*found torch.int64"),
        (lambda: {"splats": {**splats(), "quats": torch.zeros(5, 4)}}, FileError, r"inconsistent tensors.*quats"),
        (lambda: {"splats": {**splats(), "quats": torch.eye(6).to_sparse()}}, FileError, "quats"),
        (lambda: {"splats": {"means": torch.zeros(6, 3)}}, FileError, "lacks scales, quats"),
        (
            lambda: {"splats": {k: v for k, v in {**splats(), "features": 1}.items() if k not in ("sh0", "shN")}},
            UnsupportedError,
            "app_opt",
        ),
        (lambda: {"model": 1}, FileError, "expected a checkpoint of gsplat.*another dict"),
        (lambda: (inria()[0][:11], 7), FileError, "expected a checkpoint of gsplat.*another tuple"),
        (lambda: splats()["means"], FileError, "expected a checkpoint of gsplat.*another Tensor"),
    ],
)
def test_invalid_content_is_rejected(tmp_path, capsys, content, error, words):
    torch.save(content(), tmp_path / "a.pt")
    with pytest.raises(error, match=words) as caught:
        read_torch_checkpoint(tmp_path / "a.pt")
    assert "a.pt" in str(caught.value)
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(Executable()), pickle.dumps([1])])
def test_other_files_are_rejected(tmp_path, capsys, content):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(FileError, match=r"a\.pt"):
        read_torch_checkpoint(tmp_path / "a.pt")
    assert "this ran" not in capsys.readouterr().out
    with pytest.raises(FileNotFoundError):
        read_torch_checkpoint(tmp_path / "b.pt")


def test_half_precision_becomes_float32(tmp_path):
    means = splats()["means"].half()
    means[2, 1] = math.nan
    found = read_torch_checkpoint(save(tmp_path / "a.pt", means=means))
    assert found.means.dtype == torch.float32
    assert found.valid.tolist() == [True, True, False, True, True, True]


def nerfstudio(degree=3, prefix="_model.gauss_params.", step=29999):
    """The content of a checkpoint of nerfstudio's splatfacto."""
    s = splats(degree=degree)
    tensors = dict(features_dc=s["sh0"][:, 0], features_rest=s["shN"], opacities=s["opacities"][:, None])
    state = {prefix + name: tensor for name, tensor in ({**s, **tensors}).items() if name not in ("sh0", "shN")}
    state["_model.lpips.net.scaling_layer.shift"] = torch.zeros(1, 3, 1, 1)
    schedulers = {"means": {"base_lrs": [1.6e-4], "_last_lr": [np.float64(1.6e-6)]}}
    return {"step": step, "pipeline": state, "optimizers": {"means": {"state": {}}}, "schedulers": schedulers}


@pytest.mark.parametrize("prefix", ["_model.gauss_params.", "_model.", "module._model.gauss_params."])
def test_read_nerfstudio_output(tmp_path, prefix):
    folder = tmp_path / "nerfstudio_models"
    folder.mkdir()
    torch.save({**nerfstudio(prefix=prefix), "pipeline": {}}, folder / "step-000009999.ckpt")
    torch.save(nerfstudio(prefix=prefix), folder / "step-000029999.ckpt")
    config = tmp_path / "config.yml"
    for mode in ("classic", "antialiased"):
        config.write_text(f"!!python/object:nerfstudio.Config\nmodel:\n    rasterize_mode: {mode}\n")
        for path in (tmp_path, folder, folder / "step-000029999.ckpt", config):
            found = read_model(path)
            assert_equals(found, splats())
            assert found.antialiased == (mode == "antialiased")


def test_colors_of_nerfstudio_without_view_dependence_are_sigmoids(tmp_path):
    torch.save(nerfstudio(degree=0), tmp_path / "step-000000100.ckpt")
    found = read_model(tmp_path)
    torch.testing.assert_close(0.5 + 0.28209479177387814 * found.sh0, splats(degree=0)["sh0"].sigmoid())


def test_other_methods_of_nerfstudio_are_refused(tmp_path):
    torch.save({"step": 1, "pipeline": {"_model.field.mlp": torch.zeros(3)}}, tmp_path / "step-1.ckpt")
    with pytest.raises(FileError, match=r"'pipeline' lacks means, .* of splatfacto; other methods are not read"):
        read_model(tmp_path)


@pytest.mark.parametrize("antialiased", [True, False])
def test_read_gsplat_output(tmp_path, antialiased):
    (tmp_path / "ckpts").mkdir()
    (tmp_path / "cfg.yml").write_text(f"antialiased: {str(antialiased).lower()}\nsh_degree: 3\n")
    save(tmp_path / "ckpts" / "ckpt_99_rank0.pt", step=99, means=torch.zeros(6, 3))
    save(tmp_path / "ckpts" / "ckpt_6999_rank0.pt")
    found = read_model(tmp_path)
    assert_equals(found, splats())
    assert found.antialiased == antialiased


def test_a_file_that_is_truncated_after_it_was_opened_ends_no_process(tmp_path, monkeypatch):
    """Mapped into memory, the values are missing once they are read, which is SIGBUS."""
    path = tmp_path / "a.pt"
    save(path)
    modes, load = [], torch.load

    def truncate(*args, **kwargs):
        modes.append(kwargs["mmap"])
        return load(*args, **kwargs)

    monkeypatch.setattr(torch, "load", truncate)
    read_model(path)
    assert modes == [False]
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(FileError, match="damaged or cut short"):
        read_model(path)


def test_one_file_with_the_names_of_many_ranks_is_counted_first(tmp_path, monkeypatch):
    torch.save({}, tmp_path / "ckpt_7_rank0.pt")
    for rank in range(1, 50):
        os.link(tmp_path / "ckpt_7_rank0.pt", tmp_path / f"ckpt_7_rank{rank}.pt")
    monkeypatch.setattr(reading, "UNCHECKED_BYTES_MAX", 0)
    monkeypatch.setattr(reading, "available_bytes", lambda: 1000)
    with pytest.raises(FileError, match=r"ckpt_7_rank0\.pt: a checkpoint of 50 files needs"):
        read_model(tmp_path)
