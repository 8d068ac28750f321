"""Commands on models larger than the memory that they may use: the same results, and what is not possible."""

import json
from argparse import Namespace

import numpy as np
import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians
from tsplat import cli
from tsplat.cli import large_models
from tsplat.scene import model_rows, read_model, read_ply, write_ply

MEMORY = "--memory", "0.00001"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A PLY of 300 Gaussians, in a folder of its own, that needs more than :data:`MEMORY`, and is read in ranges."""
    gaussians = random_gaussians(300, 3)
    gaussians.log_scales.clamp_(-4, -1)
    gaussians.opacity_logits.clamp_(-2, 2)
    folder = tmp_path / "models"
    folder.mkdir()
    write_ply(folder / "a.ply", gaussians)
    monkeypatch.setattr(model_rows, "CHUNK", 64)
    monkeypatch.setattr(large_models, "MEMORY", dict.fromkeys(large_models.MEMORY, (0, 0)))
    return folder / "a.ply"


def run(*words):
    return cli.main([str(word) for word in words])


def both(command, source, tmp_path, capsys, name, *options):
    """Runs a command within the memory and without a limit; returns both outputs, and compares what is printed."""
    outs, printed = [], []
    for folder, memory in (("small", MEMORY), ("whole", ())):
        out = tmp_path / folder / name
        out.parent.mkdir(exist_ok=True)
        assert run(command, source, out, *options, *memory) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        told = f"{source}: 300 Gaussians, 0.00 GB, are read part by part: about 0.0 GB of memory"
        assert captured.err.startswith(told) if memory else captured.err == ""
        outs.append(out)
        printed.append(captured.out.replace(str(out.parent), "").split(", in ")[0])
    assert printed[0] == printed[1]
    assert [path.name for path in outs[0].parent.iterdir()] == [name]
    return outs


@pytest.mark.parametrize("name", ["b.ply", "b.spz", "b.sog"])
@pytest.mark.parametrize("options", [(), ("--crop", -1, -1, -1, 1, 1, 1), ("--up", 0, 0, 1)])
def test_convert_writes_the_same_file(source, tmp_path, capsys, name, options):
    pytest.importorskip("PIL")
    small, whole = both("convert", source, tmp_path, capsys, name, *options)
    assert small.read_bytes() == whole.read_bytes()


def test_edit_writes_the_same_model(source, tmp_path, capsys):
    write_ply(tmp_path / "other.ply", random_gaussians(40, 1))
    steps = (
        *("--crop", -2, -2, -2, 2, 2, 2, "--translate", 0.1, 0, 0, "--rotate", 10, 20, 30, "--min-opacity", 0.3),
        *("--merge", tmp_path / "other.ply", "--crop-sphere", 0, 0, 0, 2, "--sh-degree", 1, "--drop-invalid"),
    )
    small, whole = both("edit", source, tmp_path, capsys, "b.ply", *steps)
    assert small.read_bytes() == whole.read_bytes()
    assert 100 < len(read_ply(small)) < 340


@pytest.mark.parametrize(("amount", "n"), [("40%", 120), ("7", 7)])
def test_decimate_without_rendering(source, tmp_path, capsys, amount, n):
    pytest.importorskip("scipy")
    assert run("edit", source, tmp_path / "b.ply", "--decimate", amount, *MEMORY) == 0
    found = read_ply(tmp_path / "b.ply")
    assert len(found) == n and bool(found.valid.all())
    assert f"--decimate: 300 -> {n} Gaussians" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-isolation", 5), "--max-isolation: not for a model larger than memory"),
        (("--decimate", 9, "--finetune", 3), "--finetune: not for a model larger than memory"),
        (("--crop", 90, 90, 90, 91, 91, 91), "--crop: leaves none of 300 Gaussians"),
    ],
)
def test_edits_that_fail(source, tmp_path, capsys, options, words):
    assert run("edit", source, tmp_path / "b.ply", *options, *MEMORY) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_formats_that_are_written_from_memory(source, tmp_path, capsys):
    assert run("convert", source, tmp_path / "b.splat", *MEMORY) == 2
    error = capsys.readouterr().err
    assert "splat is written from memory only, which is too small for 300 Gaussians; write ply, spz, " in error
    assert run("convert", source, tmp_path / "b.html", *MEMORY) == 2
    assert "--memory: not for an output that ends in .html" in capsys.readouterr().err


def test_too_little_memory_for_parts_is_an_error_with_numbers(source, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    for words in (("info", source), ("convert", source, tmp_path / "b.spz"), ("view", source)):
        if words[0] == "view":
            pytest.importorskip("viser")
        assert run(*words, *MEMORY) == 2
        assert "300 Gaussians need about 0." in (error := capsys.readouterr().err)
        assert "0.0 GB may be used; allow more with --memory" in error


def test_info_prints_the_same(source, capsys):
    printed = []
    for memory in (MEMORY, ()):
        assert run("info", source, "--json", *memory) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]


def test_render_shows_the_same(source, tmp_path):
    image = pytest.importorskip("PIL.Image")
    found = []
    for i, memory in enumerate((MEMORY, ())):
        place = ("--eye", 0, -1, -4, "--look-at", 0, 0, 0, "--up", 0, -1, 0)
        out = tmp_path / f"{i}.png"
        assert run("render", source, "--out", out, "--width", 60, "--height", 40, *place, *memory) == 0
        found.append(np.asarray(image.open(out)).astype(int))
    assert np.abs(found[0] - found[1]).max() <= 1 and found[0].std() > 5


def test_viewer_shows_what_fits(source, monkeypatch, capsys):
    pytest.importorskip("scipy")
    arguments = Namespace(memory=0.00012, model=None)
    found = large_models.read_to_view(arguments, source)
    assert len(found) == 100 and bool(found.valid.all())
    assert large_models.read_to_view(Namespace(memory=1.0), source) is None


def test_viewer_shows_the_progress_of_reading(source, monkeypatch, capsys):
    monkeypatch.setattr(large_models, "LARGE_FILE", 1)
    gaussians = read_ply(source)
    assert_same_tensors(large_models.read_to_view(Namespace(memory=1.0), source), gaussians)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [f"reading a.ply {n}/300" for n in (128, 192, 256, 300)]
    described = large_models.describe_memory("a.ply", gaussians)
    assert described == "a.ply: 300 Gaussians of SH degree 3, 0.00 GB in memory; up to 0.3 GB while images are rendered"


def test_other_models_are_read_whole(source, tmp_path, capsys):
    assert run("convert", source, tmp_path / "b.spz") == 0
    assert run("convert", tmp_path / "b.spz", tmp_path / "c.ply", *MEMORY) == 0
    assert "part by part" not in capsys.readouterr().err
    assert_same_tensors(read_model(tmp_path / "b.spz"), read_ply(tmp_path / "c.ply"))
    assert torch.isfinite(read_ply(tmp_path / "c.ply").means).all()
