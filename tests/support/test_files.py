"""Files that are there whole or not at all."""

import json
import math

import pytest

from tsplat.errors import FileError
from tsplat.support.files import atomic_write, output_folder, write_json


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_that_fails_changes_nothing(tmp_path, error):
    def half():
        with atomic_write(tmp_path / "a.bin") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        half()
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_is_an_error_and_nothing_is_left(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"), atomic_write(tmp_path / "a"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"psnr": math.nan})
    write_json(tmp_path / "b.json", {"psnr": 30.5})
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]
    assert json.loads((tmp_path / "b.json").read_text()) == {"psnr": 30.5}


def test_folders_made_for_a_run_that_fails_go_again(tmp_path):
    def fail():
        with output_folder(tmp_path / "a" / "b") as folder:
            assert folder.is_dir()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert not list(tmp_path.iterdir())


def test_folders_that_were_there_or_hold_a_file_stay(tmp_path):
    def fail():
        with output_folder(tmp_path / "a" / "b") as folder:
            (folder / "whole.txt").write_text("whole")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert (tmp_path / "a" / "b" / "whole.txt").read_text() == "whole"


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("a file")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(FileError, match="cannot write there"), output_folder(path):
            pass
