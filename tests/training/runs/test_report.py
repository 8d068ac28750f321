"""`tsplat report`: pages of finished, interrupted and damaged runs."""

import json
import os
import shutil

import pytest
import torch

from tests.support.captures import write_scene
from tests.support.pages import Page
from tests.support.plain_results import simplify
from tests.support.slow import slow_after
from tsplat import ArgumentError, cli
from tsplat.scene import FileError, write_ply
from tsplat.training import RunConfig, read_newest, train
from tsplat.training.runs.report import report_run

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on ten images of 43 x 30 pixels, two of them held out, and its scene."""
    folder = tmp_path_factory.mktemp("report")
    scene = write_scene(folder / os.fsdecode(b"sc\xe9ne"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        train(RunConfig(scene=str(scene), steps=2, backend="torch", sh_degree=0, test_every=5), folder / "run")
    return folder / "run"


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """A copy of the run, to change."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def run(copied, monkeypatch):
    """A copy of the run, to change, whose new pages have no charts."""
    simplify(monkeypatch.setattr)
    return copied


def read(run):
    return Page((run / "report.html").read_text(encoding="utf-8"))


def notes(parsed):
    return [entry[2] for entry in parsed.of("li")]


def values(parsed):
    return [data[1]["value"] for data in parsed.of("data")]


def test_training_writes_the_page(finished):
    parsed, metrics = read(finished), json.loads((finished / "metrics.json").read_text())
    expected = [metrics[key] for key in ("psnr", "ssim", "num_gaussians", "steps", "seconds")]
    assert values(parsed)[:5] == [str(value) for value in expected]
    assert values(parsed)[5] == str((finished / "point_cloud.ply").stat().st_size)
    assert not parsed.of("p", class_="missing")
    assert notes(parsed) == []
    assert len(parsed.images()) == 8
    (session,) = json.loads((finished / "run.json").read_text())["sessions"]
    assert session["seconds"].keys() == {"reading", "training", "evaluation", "saving"}
    assert all(seconds >= 0 for seconds in session["seconds"].values())
    assert sum(session["seconds"].values()) >= metrics["seconds"] * 0.9
    assert session["command"] in parsed.of("pre")[0][2]


@pytest.mark.slow
def test_page_of_a_finished_run_is_that_of_training_and_repeatable(copied, capsys):
    before = (copied / "report.html").read_bytes()
    (copied / "report.html").unlink()
    # Images and metrics do not need the scene.
    assert cli.main(["report", str(copied)]) == 0
    first = (copied / "report.html").read_bytes()
    printed = capsys.readouterr().out
    assert f"wrote {copied / 'report.html'}: 0." in printed
    assert printed.endswith(f"\nnext: open {copied / 'report.html'} in a web browser\n")
    assert cli.main(["report", str(copied), "--out", str(copied / "b.html")]) == 0
    assert (copied / "b.html").read_bytes() == first
    assert first == before


def test_number_of_views_can_be_chosen(run):
    report_run(run, views=1)
    assert len(read(run).images()) == 4
    with pytest.raises(ArgumentError, match="views"):
        report_run(run, views=0)


@pytest.mark.parametrize("text", slow_after(1, ["{", None, "[]", '{"steps": "x"}']))
def test_newest_checkpoint_is_evaluated_without_valid_metrics(text, run):
    expected = json.loads((run / "metrics.json").read_text())
    shutil.rmtree(run / "held_out")
    (run / "metrics.json").unlink() if text is None else (run / "metrics.json").write_text(text)
    report_run(run)
    parsed = read(run)
    assert float(values(parsed)[0]) == pytest.approx(expected["psnr"], abs=1e-4)
    assert len(parsed.images()) == 8
    assert "were computed from step_00000002" in notes(parsed)[-1]


def test_results_of_an_evaluation_are_not_computed_again(run, monkeypatch):
    expected = json.loads((run / "metrics.json").read_text())
    assert cli.main(["eval", str(run)]) == 0
    shutil.rmtree(run / "held_out")
    (run / "metrics.json").unlink()
    monkeypatch.setattr("tsplat.training.runs.report.evaluate", None)
    report_run(run)
    parsed = read(run)
    assert float(values(parsed)[0]) == pytest.approx(expected["psnr"], abs=1e-4)
    assert len(parsed.images()) == 8
    assert notes(parsed)[-1].startswith("Metrics and images were written by tsplat eval to ")


def test_images_that_are_missing_are_rendered_again(run):
    expected = values(read(run))[:5]
    shutil.rmtree(run / "held_out")
    report_run(run)
    assert values(read(run))[:5] == expected
    assert len(read(run).images()) == 8


@pytest.mark.slow
def test_scene_that_was_moved_is_noted_and_can_be_named(finished, run, tmp_path):
    config = json.loads((run / "config.json").read_text())
    shutil.rmtree(run / "held_out")
    # The copied run has another relative path to its scene, and here the absolute path is missing, too.
    moved = tmp_path / "moved"
    os.rename(config["scene"], moved)
    try:
        report_run(run)
        parsed = read(run)
        assert not parsed.of("img")
        assert "no such scene" in " ".join(notes(parsed))
        report_run(run, scene=str(moved))
        assert len(read(run).images()) == 8
    finally:
        os.rename(moved, config["scene"])


def test_scene_that_does_not_exist_is_an_error(run, tmp_path, capsys):
    """Even where the page does not need the scene."""
    before = (run / "report.html").read_bytes()
    assert cli.main(["report", str(run), "--scene", str(tmp_path / "absent")]) == 2
    assert f"{tmp_path / 'absent'}: no such scene" in capsys.readouterr().err
    assert (run / "report.html").read_bytes() == before


@pytest.mark.parametrize("where", ["checkpoints/step_00000002", "checkpoints"])
def test_checkpoint_has_the_page_of_its_run(where, copied):
    before = (copied / "report.html").read_bytes()
    (copied / "report.html").unlink()
    assert cli.main(["report", str(copied / where)]) == 0
    assert (copied / "report.html").read_bytes() == before


def test_checkpoint_of_another_step_than_the_metrics_is_evaluated(run):
    path = run / "metrics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": 9}))
    report_run(run / "checkpoints" / "step_00000002", out=run / "new" / "a.html")
    parsed = Page((run / "new" / "a.html").read_text())
    assert notes(parsed) == [
        "Metrics and images were computed from step_00000002, as metrics.json is of another step or missing."
    ]
    assert values(parsed)[3] == "2"


def test_missing_and_damaged_pieces_are_noted(run):
    for name, words in (
        ("run.json", "time per part was not recorded"),
        ("cameras.json", "No depth"),
        ("config.json", "configuration was not found"),
        ("point_cloud.ply", "model was not found"),
    ):
        (run / name).write_text("{")
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        report_run(run)
        parsed = read(run)
        assert words in parsed.of("main")[0][2], name
        assert len(parsed.images()) == (6 if name != "run.json" else 8)
    assert "No metrics over the steps were recorded." in parsed.of("main")[0][2]


def test_damaged_checkpoint_is_skipped(run):
    newest = read_newest(run)[0]
    (newest / "scene.safetensors").write_bytes(b"")
    report_run(run)
    text = " ".join(notes(read(run)))
    assert "scene.safetensors" in text
    assert len(read(run).images()) == 8


def test_infinite_and_missing_metrics(run):
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["views"][0]["psnr"] = None
    metrics["views"][1]["psnr"] = float("nan")
    metrics["ssim"] = float("inf")
    metrics["views"].append("view")
    (run / "metrics.json").write_text(json.dumps(metrics))
    report_run(run)
    shown = [data[2] for data in read(run).of("data")]
    assert shown[1] == "\N{EN DASH}"
    assert shown[6] == "\N{INFINITY}"
    assert shown[9] == "\N{EN DASH}"


def test_model_alone_has_a_page(run, tmp_path):
    from tests.support.training_scenes import make_gaussians

    folder = tmp_path / "model"
    folder.mkdir()
    write_ply(folder / "point_cloud.ply", make_gaussians())
    report_run(folder)
    assert values(read(folder))[2] == "60"
    assert len(read(folder).of("svg")) == 3


def test_nothing_to_show_is_an_error(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a")
    for name, message in (("empty", "nothing to report"), ("file", "not the folder"), ("none", "no such folder")):
        with pytest.raises(FileError, match=message):
            report_run(tmp_path / name)
        assert cli.main(["report", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.slow
def test_runs_without_test_views_show_training_views(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    scene = write_scene(tmp_path / "scene")
    metrics = train(RunConfig(scene=str(scene), steps=1, backend="torch", sh_degree=0, test_every=0), tmp_path / "run")
    before = (tmp_path / "run" / "report.html").read_bytes()
    report_run(tmp_path / "run")
    parsed = read(tmp_path / "run")
    assert "PSNR, training views" in [entry[2] for entry in parsed.of("dt")]
    assert values(parsed)[0] == str(metrics["psnr_train"])
    assert "Training views" in [entry[2] for entry in parsed.of("h2")]
    assert len(parsed.images()) == 24
    assert len(before) > 5000
