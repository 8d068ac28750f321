"""Tests of opening files that others made."""

import os

import pytest

from tsplat.errors import FileError
from tsplat.scene import read_capture, read_model
from tsplat.scene.images import read_image
from tsplat.support.reading import open_file, read_file, read_json


@pytest.mark.parametrize("read", [open_file, read_file, read_json, read_model, read_capture, read_image])
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


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000])
def test_files_that_are_not_json_are_errors(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileError, match=r"a\.json: not readable as JSON"):
        read_json(tmp_path / "a.json")


def test_json_of_many_empty_lists_is_an_error(tmp_path):
    (tmp_path / "a.json").write_bytes(b"[[]" + b",[]" * 1_500_000 + b"]")
    with pytest.raises(FileError, match=r"a\.json: expected at most 3,000,000 values, found 3,000,002"):
        read_json(tmp_path / "a.json")
