"""Tests of opening files that others made."""

import os

import pytest

from tsplat.errors import FileError
from tsplat.scene import read_capture, read_model
from tsplat.scene.images import read_image
from tsplat.support.reading import open_file, read_file


@pytest.mark.parametrize("read", [open_file, read_file, read_model, read_capture, read_image])
def test_pipes_devices_and_impossible_names_are_errors(tmp_path, read):
    os.mkfifo(tmp_path / "a.json")
    for path in (tmp_path / "a.json", "/dev/zero", "a\0.json", "\ud800.json"):
        with pytest.raises(FileError):
            read(path)


def test_larger_files_than_expected_are_errors(tmp_path):
    (tmp_path / "a").write_bytes(bytes(11))
    assert read_file(tmp_path / "a", 11) == bytes(11)
    with pytest.raises(FileError, match="expected at most 10 bytes, found 11"):
        read_file(tmp_path / "a", 10)
