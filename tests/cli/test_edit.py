"""`tsplat edit`: operations in their order, decimation with the cameras of a run, damaged inputs, random options."""

import functools
import json
import math
import random
import re
import shutil

import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import cli
from tsplat.rendering import render
from tsplat.scene import (
    crop_gaussians,
    merge_models,
    prune_gaussians,
    read_ply,
    set_sh_degree,
    transform_gaussians,
    write_ply,
)
from tsplat.scene.rotation import axis_rotations, similarity
from tsplat.viewing.framing import cameras_around


@pytest.fixture
def source(tmp_path):
    """A PLY of 60 Gaussians of SH degree 1."""
    write_ply(tmp_path / "a.ply", make_gaussians(sh_degree=1))
    return tmp_path / "a.ply"


@pytest.fixture
def few_views(monkeypatch):
    monkeypatch.setattr("tsplat.scene.editing.decimation.N_ROUND_VIEWS", 4)
    few = functools.partial(cameras_around, n=4, size=24)
    monkeypatch.setattr("tsplat.cli.edit_command.cameras_around", few)


def edit(source, *options, out="b.ply"):
    """Edits a model; returns the result."""
    out = source.parent / out
    assert cli.main(["edit", str(source), str(out), *map(str, options)]) == 0
    return read_ply(out)


def test_edit_ends_with_the_command_that_shows_the_model(source, capsys):
    edit(source, "--scale", 2)
    assert capsys.readouterr().out.endswith(f"\nnext: tsplat view {source.parent / 'b.ply'}\n")


def test_operations_are_applied_in_their_order(source):
    gaussians = read_ply(source)
    box = "--crop", -0.5, -0.5, -0.5, 0.5, 0.5, 0.5
    move = similarity(translation=(0.3, 0, 0))
    cropped_first = edit(source, *box, "--translate", 0.3, 0, 0)
    moved_first = edit(source, "--translate", 0.3, 0, 0, *box)
    corners = (-0.5,) * 3, (0.5,) * 3
    assert_same_tensors(cropped_first, transform_gaussians(crop_gaussians(gaussians, corners), move))
    assert_same_tensors(moved_first, crop_gaussians(transform_gaussians(gaussians, move), corners))
    assert len(cropped_first) != len(moved_first)


def test_note_says_where_a_model_of_a_run_keeps_its_cameras(stopped_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(stopped_run, run)
    note = f"note: pages and images of {tmp_path / 'a.ply'} start from a guessed view; a model inside {run}, "
    for words, out, is_noted in (
        (["--drop-invalid"], tmp_path / "a.ply", True),
        (["--drop-invalid"], run / "b.ply", False),
        (["--scale", "2"], tmp_path / "c.ply", False),  # the cameras would not fit
    ):
        assert cli.main(["edit", str(run), str(out), *words]) == 0
        assert (note in capsys.readouterr().out) == is_noted


def test_every_operation_but_decimation(source, tmp_path, capsys):
    gaussians, other = read_ply(source), random_gaussians(n=7, degree=3)
    other.means[3] = math.nan
    write_ply(tmp_path / "other.ply", other)
    matrix = similarity(axis_rotations((0, 90, 0)), (1, 2, 3), 2)
    (tmp_path / "matrix.txt").write_text(json.dumps(matrix.tolist()))
    words = "--merge {0}/other.ply --rotate 10 20 30 --scale 2 --up 0 0 1 --transform {0}/matrix.txt --drop-invalid "
    words += "--crop-sphere 1 2 3 4 --max-scale 9 --min-opacity 0.3 --max-isolation 5 --sh-degree 2 --format ply"
    found = edit(source, *words.format(tmp_path).split(), out="b")
    expected = merge_models([gaussians, other])
    for step in (similarity(axis_rotations((10, 20, 30))), similarity(scale=2), "up", matrix):
        quarter = similarity(axis_rotations((90, 0, 0)))
        expected = transform_gaussians(expected, quarter if step == "up" else step) if len(expected) else expected
    expected = prune_gaussians(expected, drop_invalid=True)
    inside = (expected.means - torch.tensor([1.0, 2, 3])).norm(dim=-1) <= 4
    expected = expected.map(lambda tensor: tensor[inside])
    expected = prune_gaussians(prune_gaussians(expected, max_scale=9, min_opacity=0.3), max_isolation=5)
    expected = set_sh_degree(expected, 2)
    assert 10 < len(found) < 67
    assert torch.allclose(found.means, expected.means, atol=1e-5)
    assert torch.allclose(found.shN[:, :8], expected.shN, atol=1e-5)
    assert not found.shN[:, 8:].any()
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["--merge: 60 -> 67 Gaussians", "--drop-invalid: 67 -> 66 Gaussians"]
    assert re.fullmatch(rf"wrote {len(found)} Gaussians to .*b: 0\.\d\d MB, in \d+\.\d s", printed[-1])


@pytest.mark.slow
@pytest.mark.usefixtures("few_views")
def test_decimation_and_its_options(source, capsys):
    pytest.importorskip("scipy")
    assert len(edit(source, "--decimate", "50%", "--backend", "torch", "--finetune", 2)) == 30
    assert "--decimate: 60 -> 30 Gaussians\n" in capsys.readouterr().out
    assert len(edit(source, "--decimate", 1000, "--decimate", "25", "--backend", "torch", "--finetune", 0)) == 25


def test_cameras_of_a_file_move_with_the_model(source, tmp_path, monkeypatch):
    gaussians = read_ply(source)
    view, _ = make_views(gaussians, n=2)
    pose = torch.linalg.inv(view.camera.viewmat.double())
    camera = dict(position=pose[:3, 3].tolist(), rotation=pose[:3, :3].tolist(), fx=40, fy=40, width=48, height=32)
    (tmp_path / "cameras.json").write_text(json.dumps([camera]))
    seen = []

    def decimate(moved, n, cameras, **_):
        seen.append(render(moved, cameras[0], backend="torch"))
        return moved

    monkeypatch.setattr("tsplat.cli.edit_command.decimate_gaussians", decimate)
    options = ["--decimate", 20, "--backend", "torch", "--cameras", tmp_path / "cameras.json"]
    edit(source, *options)
    edit(source, "--rotate", 10, 70, -30, "--scale", 3, "--translate", 1, 2, 3, *options)
    assert seen[0].std() > 0.05
    assert (seen[0] - seen[1]).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("", "expected at least one operation, such as --crop"),
        ("--crop 9 9 9 8 8 8", "--crop: leaves none of 60 Gaussians"),
        ("--finetune 5 --scale 2", "--finetune: only with --decimate"),
        ("--finetune 0 --scale 2", "--finetune: only with --decimate"),
        ("--cameras c.json --scale 2", "--cameras: only with --decimate"),
        ("--decimate 0", "--decimate: expected an integer from 1"),
        ("--decimate 120%", "expected a percentage above 0 and up to 100%"),
        ("--decimate x%", "expected a finite number, found 'x'"),
        ("--scale -1", "--scale: expected a positive number, found -1.0"),
        ("--up 0 0 0", "up: expected a finite direction"),
        ("--crop-sphere 0 0 0 -2", "radius: expected a positive number, found -2.0"),
        ("--min-opacity 2", "expected a number from 0 to 1"),
        ("--max-isolation 0.5", "max_isolation: expected a number of at least 1"),
        ("--sh-degree 7", "invalid choice: 7"),
        ("--merge missing.ply", "missing.ply: No such file"),
        ("--merge {out}", "would replace the model that is read"),
        ("--transform missing.txt", "missing.txt: No such file"),
        ("--transform {matrix}", "expected the 16 or 12 numbers of a 4×4 or 3×4 matrix, found 3"),
        ("--transform {words}", "expected the 16 numbers of a 4×4 matrix, row by row"),
        ("--tranlsate 1 2 3", "did you mean --translate instead of --tranlsate"),
        ("--scale 2 --format xyz", "invalid choice: 'xyz'"),
    ],
)
def test_problems_are_told_in_one_line(options, problem, source, tmp_path, capsys):
    (tmp_path / "matrix.txt").write_text("1 2 3")
    (tmp_path / "words.txt").write_text("one two")
    names = dict(out=tmp_path / "b.ply", matrix=tmp_path / "matrix.txt", words=tmp_path / "words.txt")
    assert cli.main(["edit", str(source), str(tmp_path / "b.ply"), *options.format(**names).split()]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not (tmp_path / "b.ply").exists()


def test_the_model_that_is_read_is_not_replaced(source, capsys):
    before = source.read_bytes()
    assert cli.main(["edit", str(source), str(source), "--scale", "2"]) == 2
    assert "would replace the model that is read" in capsys.readouterr().err
    assert source.read_bytes() == before


def random_operation(rng, folder):
    number = rng.choice([-1.5, 0, 1e-3, 0.5, 1, 2, 40])
    vector = [rng.choice([-1, 0, 0.2, 1, 90]) for _ in range(3)]
    return rng.choice(
        [
            ["--crop", *vector, *(rng.uniform(-2, 2) for _ in range(3))],
            ["--crop-sphere", *vector, number],
            ["--translate", *vector],
            ["--rotate", *vector],
            ["--scale", number],
            ["--up", *vector],
            ["--transform", folder / "matrix.txt"],
            ["--min-opacity", rng.random() ** 3],
            ["--max-scale", number],
            ["--max-isolation", number],
            ["--drop-invalid"],
            ["--sh-degree", rng.randrange(5)],
            ["--merge", folder / rng.choice(["a.ply", "other.ply"])],
            ["--decimate", rng.choice(["90%", "3", "1"]), "--backend", "torch", "--finetune", "1"],
        ]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_views")
@pytest.mark.parametrize("part", range(10))
def test_random_options_give_a_valid_model_or_a_typed_error(part, source, tmp_path, monkeypatch, capsys):
    pytest.importorskip("scipy")
    monkeypatch.setattr("tsplat.scene.editing.decimation.N_ROUNDS", 2)
    other = random_gaussians(n=20, degree=3, antialiased=True)
    for i, tensor in enumerate(other.tensors().values()):
        tensor[i] = (math.nan, math.inf, -math.inf)[i % 3]
    write_ply(tmp_path / "other.ply", other)
    (tmp_path / "matrix.txt").write_text("0 -1 0 3\n1 0 0 0\n0 0 -1 0\n0 0 0 1\n")
    rng, written = random.Random(part), 0
    for i in range(20):
        operations = [random_operation(rng, tmp_path) for _ in range(rng.randint(1, 5))]
        words = [str(word) for operation in operations for word in operation]
        out = tmp_path / f"{i}.{rng.choice(['ply', 'splat', 'compressed.ply', 'spz'])}"
        status = cli.main(["edit", str(tmp_path / rng.choice(["a.ply", "other.ply"])), str(out), *words])
        error = capsys.readouterr().err
        assert status in (0, 2), (words, error)
        if status == 0:
            written += 1
            assert cli.main(["info", str(out), "--json"]) == 0
            count = json.loads(capsys.readouterr().out)["count"]
            assert count > 0
        else:
            assert re.search(r"tsplat: error: .+\n$", error), error
            assert not out.exists(), words
    assert written > 2
