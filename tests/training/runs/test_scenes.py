"""The scene of a run: found again after a move, and compared with the photographs and cameras of the run."""

import dataclasses
import json
import os
import shutil
from types import SimpleNamespace

import pytest

from tests.support.captures import write_scene
from tsplat import cli
from tsplat.scene import FileError, read_capture
from tsplat.training import RunConfig, evaluate_run, read_newest, resume, train
from tsplat.training.runs.scenes import (
    STEP_BYTES,
    describe_capture,
    difference,
    locate_scene,
    note_large_images,
    scene_to_save,
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a few steps, whose scene was given by a relative path."""
    monkeypatch.chdir(tmp_path)
    write_scene(tmp_path / "scene")
    train(RunConfig(scene="scene", steps=4, backend="torch", sh_degree=0), tmp_path / "run", stop_after=2)
    return tmp_path / "run"


def test_resume_works_from_any_directory(run, tmp_path, monkeypatch):
    assert read_newest(run)[1].config.scene == str(tmp_path / "scene")
    monkeypatch.chdir("/")
    assert resume(run, stop_after=3)["steps"] == 3
    assert evaluate_run(run)["steps"] == 3


def test_a_note_states_the_memory_of_steps_on_large_images():
    views = [SimpleNamespace(width=width, height=height) for width, height in ((4000, 3000), (7680, 3840), (80, 60))]
    gib = 7680 * 3840 * STEP_BYTES / 2**30
    assert note_large_images(views) == [
        f"a step on the largest image, 7680×3840 pixels, takes about {gib:.1f} GiB of memory in addition to the "
        "Gaussians; with max_size 3840, it takes a quarter of it"
    ]
    assert not note_large_images(views[::2])


def test_run_and_scene_can_be_moved_together(run, tmp_path):
    moved = tmp_path / "elsewhere" / "deep"
    moved.mkdir(parents=True)
    for name in ("scene", "run"):
        shutil.move(tmp_path / name, moved / name)
    assert resume(moved / "run", stop_after=3)["steps"] == 3
    assert read_newest(moved / "run")[1].config.scene == str(moved / "scene")


def test_scene_option_names_a_scene_that_was_moved(run, tmp_path, capsys):
    shutil.move(tmp_path / "scene", tmp_path / "moved")
    assert cli.main(["train", "--resume", str(run)]) == 2
    expected = f"tsplat: error: {tmp_path / 'scene'}: no such scene; if it has moved: --scene PATH\n"
    assert capsys.readouterr().err == expected
    assert cli.main(["train", "--resume", str(run), "--scene", "moved"]) == 0
    assert read_newest(run)[1].config.scene == str(tmp_path / "moved")


@pytest.mark.slow
def test_photographs_that_differ_are_named(run, tmp_path, capsys):
    images = tmp_path / "scene" / "images"
    content = bytearray((images / "03.png").read_bytes())
    content[-1] ^= 1
    (images / "03.png").write_bytes(content)
    (images / "05.png").write_bytes((images / "05.png").read_bytes() + b"x")
    assert cli.main(["train", "--resume", str(run)]) == 2
    size = (images / "05.png").stat().st_size
    expected = (
        f"tsplat: error: {tmp_path / 'scene'}: 2 photographs have changed since the run started: 03.png has changed "
        f"(its hash differs), 05.png has changed ({size - 1} bytes, now {size}); restore them, or accept the changes "
        "with --accept-changes\n"
    )
    assert capsys.readouterr().err == expected
    evaluate_run(run)
    assert "warning: " in capsys.readouterr().out
    assert cli.main(["train", "--resume", str(run), "--accept-changes", "--stop-after", "3"]) == 0
    # From now on, these are the photographs of the run.
    assert cli.main(["train", "--resume", str(run)]) == 0


def test_new_and_missing_photographs_are_named(run, tmp_path):
    sparse = tmp_path / "scene" / "sparse" / "0" / "images.txt"
    os.rename(tmp_path / "scene" / "images" / "04.png", tmp_path / "scene" / "images" / "14.png")
    sparse.write_text(sparse.read_text().replace("04.png", "14.png"))
    with pytest.raises(FileError, match=r"2 photographs have changed .*: 04.png is missing, 14.png is new; restore"):
        resume(run)


def test_changed_cameras_and_points_are_refused(run, tmp_path, capsys):
    sparse = tmp_path / "scene" / "sparse" / "0"
    images = (sparse / "images.txt").read_text()
    (sparse / "images.txt").write_text(images.replace(" -0.5 0 2 ", " -0.75 0 2 "))
    (sparse / "points3D.txt").write_text((sparse / "points3D.txt").read_text().replace(" 0.5 3 ", " 0.5 4 "))
    assert cli.main(["train", "--resume", str(run)]) == 2
    expected = (
        f"tsplat: error: {tmp_path / 'scene'}: 1 cameras have changed since the run started: 07.png; the points have "
        "changed since the run started (their hash differs); restore them, or accept the changes with "
        "--accept-changes\n"
    )
    assert capsys.readouterr().err == expected
    assert cli.main(["train", "--resume", str(run), "--accept-changes", "--stop-after", "3"]) == 0
    cameras = (sparse / "cameras.txt").read_text()
    (sparse / "cameras.txt").write_text(cameras.replace(" 50 52 ", " 50 52.5 "))
    lines = (sparse / "points3D.txt").read_text().splitlines()
    (sparse / "points3D.txt").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(
        FileError, match=r"10 cameras have changed .*; the points have changed .* \(5, now 4\); restore"
    ):
        resume(run)


def test_cameras_may_differ_by_rounding(run, tmp_path):
    images = tmp_path / "scene" / "sparse" / "0" / "images.txt"
    images.write_text(images.read_text().replace(" -0.5 0 2 ", " -0.5000001 1e-9 2 "))
    assert resume(run, stop_after=3)["steps"] == 3


def test_parts_that_were_not_recorded_are_not_compared(run, tmp_path):
    capture = read_capture(tmp_path / "scene")
    found = describe_capture(capture)
    assert json.loads(json.dumps(found)) == found
    assert difference(found, found, "scene") == ""
    other = describe_capture(dataclasses.replace(capture, points=capture.points + 1))
    expected = "scene: the points have changed since the run started (their hash differs)"
    assert difference(found, other, "scene") == expected
    assert difference({"photographs": found["photographs"]}, other, "scene") == ""
    assert difference({}, found, "scene") == ""


def test_older_checkpoints_have_no_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scene").mkdir()
    config = RunConfig(scene="scene")
    assert locate_scene(config, {}, tmp_path / "run", None).scene == str(tmp_path / "scene")
    with pytest.raises(FileError, match="missing: no such scene"):
        locate_scene(dataclasses.replace(config, scene="missing"), {}, tmp_path / "run", None)
    assert scene_to_save(config, {}, tmp_path / "run") == {"relative": "../scene"}
