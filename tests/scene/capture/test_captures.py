"""Tests of reading captures of any format."""

import pytest
import torch

from tests.support.captures import POINTS, sample_views, write_colmap, write_transforms
from tsplat.scene import FileError, read_capture

pytest.importorskip("pycolmap")


def test_format_is_detected_by_the_files_in_the_folder(tmp_path):
    views = sample_views()
    colmap = read_capture(write_colmap(tmp_path / "a", views, POINTS), downscale=2, test_every=3)
    assert len(colmap.points) == 3
    assert len(colmap.test) == 3
    transforms = read_capture(write_transforms(tmp_path / "b", views), downscale=2, test_every=3, seed=5)
    assert len(transforms.points) == 20_000
    other_seed = read_capture(tmp_path / "b" / "transforms.json", seed=6)
    assert not torch.equal(transforms.points, other_seed.points)
    for one, other in zip(colmap.train, transforms.train):
        assert torch.equal(one.image, other.image)


def test_folder_without_cameras_is_rejected(tmp_path):
    (tmp_path / "c").mkdir()
    with pytest.raises(
        FileError, match=r"c: no cameras found; expected sparse/0/ or .*transforms\.json.*tsplat prepare"
    ):
        read_capture(tmp_path / "c")
    for name in (".DS_Store", "a.JPG", "b.heic"):
        (tmp_path / "c" / name).touch()
    with pytest.raises(FileError, match=r"c: a folder of photographs without cameras; .* tsplat prepare \S*/c --out"):
        read_capture(tmp_path / "c")
    with pytest.raises(FileError, match="d: no such folder"):
        read_capture(tmp_path / "d")
