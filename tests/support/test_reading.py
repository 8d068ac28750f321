"""Tests of opening untrusted files."""

import json
import os

import pytest

from tests.support.training_scenes import make_gaussians
from tsplat.errors import FileError
from tsplat.scene import (
    open_model,
    read_capture,
    read_colmap,
    read_model,
    read_transforms,
    write_sog,
    write_streamed_sog,
)
from tsplat.scene.capture.captures import is_capture
from tsplat.scene.images import read_image
from tsplat.support.reading import open_file, read_file, read_json

READERS = [open_file, read_file, read_json, read_model, open_model, read_capture, read_transforms, read_image]
IMPOSSIBLE = ["a\0.json", "\ud800.json", "a" * 300 + ".json", "a/" * 3000 + "a.json"]


@pytest.mark.parametrize("read", READERS)
def test_pipes_devices_and_impossible_names_are_errors(tmp_path, read):
    os.mkfifo(tmp_path / "a.json")
    for path in (tmp_path / "a.json", "/dev/zero", *IMPOSSIBLE):
        with pytest.raises(FileError):
            read(path)


def test_larger_files_than_expected_are_errors(tmp_path):
    (tmp_path / "a").write_bytes(bytes(11))
    assert read_file(tmp_path / "a", 11) == bytes(11)
    with pytest.raises(FileError, match="expected at most 10 bytes, found 11"):
        read_file(tmp_path / "a", 10)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000])
def test_files_that_are_not_json_are_errors(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileError, match=r"a\.json: not readable as JSON"):
        read_json(tmp_path / "a.json")


def test_json_of_many_empty_lists_is_an_error(tmp_path):
    (tmp_path / "a.json").write_bytes(b"[[]" + b",[]" * 1_500_000 + b"]")
    with pytest.raises(FileError, match=r"a\.json: expected at most 3,000,000 values, found 3,000,002"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_names_of_folders_are_errors(name):
    for read in (read_capture, read_colmap, read_transforms):
        with pytest.raises(FileError, match="expected the name of a file"):
            read(name.removesuffix(".json"))
    assert not is_capture(name)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_names_in_files_are_errors(tmp_path, name):
    """Names in a meta.json and in a lod-meta.json."""
    gaussians = make_gaussians()
    write_sog(tmp_path / "meta.json", gaussians)
    meta = json.loads((tmp_path / "meta.json").read_text())
    for key in ("means", "quats", "scales", "sh0"):
        changed = {**meta, key: {**meta[key], "files": [name] * len(meta[key]["files"])}}
        (tmp_path / "meta.json").write_text(json.dumps(changed))
        with pytest.raises(FileError):
            read_model(tmp_path)
    write_streamed_sog(tmp_path / "lod", gaussians)
    meta = json.loads((tmp_path / "lod" / "lod-meta.json").read_text())
    (tmp_path / "lod" / "lod-meta.json").write_text(json.dumps({**meta, "filenames": [name] * len(meta["filenames"])}))
    with pytest.raises(FileError):
        read_model(tmp_path / "lod")
