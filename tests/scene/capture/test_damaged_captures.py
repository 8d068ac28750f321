"""Damaged captures are read or rejected. ``python -m tests.tools.capture_corruption FORMAT`` tries more."""

import os

import pytest

from tests.support.slow import slow_after
from tests.tools.capture_corruption import FORMATS, Scene
from tests.tools.damage import DAMAGES

pytest.importorskip("pycolmap")

COUNT = int(os.environ.get("TSPLAT_CORRUPTIONS", "44"))


@pytest.mark.parametrize("kind", slow_after(3, FORMATS))
def test_damaged_file(tmp_path, kind):
    scene = Scene(tmp_path / "scene", kind)
    outcomes = {scene.check(seed) for seed in range(COUNT)}
    assert "FileError" in outcomes and (kind != "e57_content" or "read" in outcomes)
    assert len(DAMAGES) * len(scene.targets) <= COUNT
