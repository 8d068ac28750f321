"""Tests of ``tsplat prepare``."""

import re
import sys

import pytest

from tests.support.captures import write_photos
from tsplat import cli

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
    assert re.search(r"registered 5 of 5 photographs; \d+ points, mean reprojection error 0\.\d\d px", printed)
    assert len(printed.splitlines()) <= 3 * 4 + 4
    assert cli.main(["prepare", str(photos), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error == f"tsplat: error: {out}: already exists and is not an empty folder; choose another folder\n"


@pytest.mark.parametrize("module", ["pycolmap", "PIL", "rich"])
def test_prepare_names_missing_extra(photos, tmp_path, monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["prepare", str(photos), "--out", str(tmp_path / "new" / "scene")]) == 2
    assert "pip install 'tsplat[train]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
