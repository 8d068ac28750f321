"""Tests of ``tsplat prepare``."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from tests.support.captures import write_image, write_photos
from tsplat import cli
from tsplat.scene import read_colmap

pytestmark = pytest.mark.slow

pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"))


def test_prepare_prints_progress_and_result(photos, tmp_path, capsys):
    out = tmp_path / "scene"
    assert cli.main(["prepare", str(photos), "--out", str(out), "--max-size", "320", "--camera-model", "OPENCV"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^features  5/5  \d+ s$", printed, re.MULTILINE)
    assert re.search(r"^cameras   5/5  \d+ s$", printed, re.MULTILINE)
    assert re.search(r"registered 5 of 5 photographs; [\d,]+ points, mean reprojection error 0\.\d\d px", printed)
    assert len(printed.splitlines()) <= 3 * 4 + 4
    assert printed.splitlines()[-1] == f"next: tsplat train {out} --out {out}_run"
    assert cli.main(["prepare", str(photos), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error == f"tsplat: error: {out}: already exists and is not an empty folder; choose another folder\n"


@pytest.mark.parametrize("module", ["pycolmap", "PIL", "rich"])
def test_prepare_names_missing_extra(photos, tmp_path, monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["prepare", str(photos), "--out", str(tmp_path / "new" / "scene")]) == 2
    assert "pip install 'tsplat[train]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_prepare_names_photographs_that_colmap_cannot_read(photos, tmp_path, capsys):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    for name in ("a.HEIC", "b.dng"):
        (folder / name).write_bytes(b"?")
    write_image(folder / "plain.png", torch.full((240, 320, 3), 90, dtype=torch.uint8))
    assert cli.main(["prepare", str(folder), "--out", str(tmp_path / "scene"), "--max-size", "320"]) == 0
    printed = capsys.readouterr().out
    note = f"note: skipped 2 photographs in formats that cannot be read (first: {folder}/a.HEIC); convert them to JPEG"
    assert note in printed
    assert "registered 5 of 6 photographs" in printed
    assert "not registered: plain.png: few features: blurred, dark, plain or masked; retake it" in printed
    assert f"wrote {tmp_path}/scene: images/, sparse/0/; cameras.png shows the cameras and points\n" in printed
    assert sorted(path.name for path in (tmp_path / "scene" / "images").iterdir()) == [
        *(f"{i}.png" for i in range(5)),
        "plain.png",
    ]


def test_prepare_of_heic_photographs_only_says_what_to_do(tmp_path, capsys):
    for i in range(3):
        (tmp_path / f"{i}.heic").write_bytes(b"?")
    assert cli.main(["prepare", str(tmp_path), "--out", str(tmp_path / "scene")]) == 2
    assert "found 0; skipped 3 photographs in formats that cannot be read (first: " in capsys.readouterr().err


@pytest.mark.parametrize("where", ["photos", "photo", "out"])
def test_prepare_with_a_name_that_is_not_utf8(photos, tmp_path, capsys, where):
    odd = os.fsdecode(b"caf\xe9")
    folder = tmp_path / (odd if where == "photos" else "photos")
    shutil.copytree(photos, folder)
    if where == "photo":
        (folder / "0.png").rename(folder / f"{odd}.png")
    out = tmp_path / (odd if where == "out" else "scene")
    status = cli.main(["prepare", str(folder), "--out", str(out), "--max-size", "320"])
    if where == "photo":
        assert status == 2
        assert "caf\\udce9.png: expected a name in UTF-8, which COLMAP needs; rename it" in capsys.readouterr().err
    else:
        assert status == 0
        assert len(read_colmap(out).train) == 4


def test_terminated_prepare_leaves_no_files(photos, tmp_path):
    command = [sys.executable, "-m", "tsplat", "prepare", str(photos), "--out", str(tmp_path / "new" / "scene")]
    for name in ("SIGTERM", "SIGHUP"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline().startswith("features")
            process.send_signal(getattr(signal, name))
            assert process.wait(60) == 128 + getattr(signal, name)
            assert "***" not in process.stderr.read()
        assert list(tmp_path.iterdir()) == []
