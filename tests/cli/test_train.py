"""`tsplat train`, and the other commands on the run it writes."""

import os

import numpy as np
import pytest
from PIL import Image

from tests.support.captures import write_scene
from tsplat import cli
from tsplat.scene import read_ply

INFO = """
import sys
from tsplat.cli import main
assert main(["info", sys.argv[1]]) == 0
loaded = [name for name in sys.modules if name.startswith("tsplat.training")]
assert not loaded, loaded
"""


def test_train_notes_missing_images_and_strict_refuses_them(tmp_path, capsys):
    scene = write_scene(tmp_path / os.fsdecode(b"sc\xe9ne"))
    missing = scene / "images" / "03.png"
    missing.unlink()
    command = ["train", str(scene), "--out", str(tmp_path / "run"), "--steps", "1", "--backend", "torch"]
    assert cli.main([*command, "--strict"]) == 2
    assert "images/03.png: no such file" in capsys.readouterr().err
    assert cli.main(command) == 0
    shown = str(missing).encode("utf-8", "backslashreplace").decode()
    assert f"note: skipped 1 of 10 images whose files are missing (first: {shown})\n" in capsys.readouterr().out


def test_images_that_are_too_small_to_evaluate_are_named(tmp_path, capsys):
    command = ["train", str(write_scene(tmp_path / "scene")), "--out", str(tmp_path / "run"), "--backend", "torch"]
    assert cli.main([*command, "--downscale", "3"]) == 2
    assert capsys.readouterr().err == (
        "tsplat: error: downscale: SSIM needs at least 11 pixels along each edge, found 14×10 in view '01.png' with a "
        "factor of 3; use a smaller factor\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_train_writes_a_run_that_renders_and_exports(tmp_path, forks, capsys):
    scene, run = write_scene(tmp_path / "scene"), tmp_path / "run"
    assert cli.main(["train", str(scene), "--out", str(run), "--steps", "3", "--backend", "torch"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"next: tsplat view {run}"
    out = tmp_path / "a.png"
    for model in (run, run / "point_cloud.ply"):
        assert cli.main(["render", str(model), "--out", str(out), "--width", "32", "--height", "24"]) == 0
        assert np.asarray(Image.open(out)).shape == (24, 32, 3)
        out.unlink()
    assert cli.main(["export", str(run), "--out", str(tmp_path / "a.ply")]) == 0
    assert len(read_ply(tmp_path / "a.ply")) == len(read_ply(run / "point_cloud.ply"))
    # Opening a run, too, imports nothing of training.
    forks.run(INFO, run / "point_cloud.ply").check_returncode()
