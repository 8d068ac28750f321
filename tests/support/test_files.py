"""Tests of atomic writes and output folders."""

import json
import math
import os
import re
import signal
import sys

import pytest

from tsplat.errors import FileError
from tsplat.support.files import (
    _cleaned,
    atomic_write,
    delete_temporaries,
    describe_os_error,
    output_folder,
    staged_folder,
    write_json,
)
from tsplat.support.process_identity import id_space
from tsplat.support.reading import allow_overwrite, protect_inputs, read_file


def test_atomic_write_replaces_the_file_at_the_end(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_atomic_write_leaves_no_files(tmp_path, error):
    def fail():
        with atomic_write(tmp_path / "a.bin") as file:
            file.write(b"partial")
            raise error

    with pytest.raises(error):
        fail()
    assert not list(tmp_path.iterdir())


def test_temporary_files_of_killed_processes_are_deleted(tmp_path):
    with atomic_write(tmp_path / "b.bin"):
        (left,) = tmp_path.glob(".b.bin.*")
    names = {".hidden", "a.bin", ".b.bin.0123456", ".b.bin.0123456g", ".notes.20261128"}
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".b.bin.01234567").mkdir()
    left.touch()
    delete_temporaries(tmp_path, ["b.bin"])
    assert {path.name for path in tmp_path.iterdir()} == names | {"b.bin", ".b.bin.01234567"}
    delete_temporaries(tmp_path / "none", ["b.bin"])


@pytest.mark.skipif(id_space() is None, reason="needs Linux")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_the_next_write_deletes_what_a_killed_one_left(tmp_path):
    child = os.fork()
    if child == 0:
        with atomic_write(tmp_path / "a.bin") as file:
            file.write(b"partial")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    with atomic_write(tmp_path / "running.bin"):
        assert not left.exists()
        (running,) = tmp_path.iterdir()
        foreign = {f".a.bin.00000000-{child}-01234567", ".notes.20261128", f".{id_space()}-{child}-01234567"}
        for name in foreign:
            (tmp_path / name).touch()
        left.mkdir()
        _cleaned.clear()
        (tmp_path / left.name.replace("a.bin", "b.bin")).touch()
        with atomic_write(tmp_path / "a.bin"):
            pass
        assert {path.name for path in tmp_path.iterdir()} == foreign | {"a.bin", left.name, running.name}


def test_atomic_write_does_not_replace_folders(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError) as raised, atomic_write(tmp_path / "a"):
        pass
    assert (raised.value.filename, raised.value.filename2) == (str(tmp_path / "a"), None)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_errors_of_atomic_writes_name_the_file_and_not_the_temporary_one(tmp_path):
    path = tmp_path / "nowhere" / "a.bin"
    with pytest.raises(FileNotFoundError) as raised, atomic_write(path):
        pass
    assert raised.value.filename == str(path)
    assert str(raised.value) == f"[Errno 2] No such file or directory: {str(path)!r}"


def test_write_json_rejects_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"psnr": math.nan})
    write_json(tmp_path / "b.json", {"psnr": 30.5})
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]
    assert json.loads((tmp_path / "b.json").read_text()) == {"psnr": 30.5}


def test_output_folder_is_removed_after_an_error(tmp_path):
    def fail():
        with output_folder(tmp_path / "a" / "b") as folder:
            assert folder.is_dir()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert not list(tmp_path.iterdir())


def test_output_folder_with_files_is_kept_after_an_error(tmp_path):
    def fail():
        with output_folder(tmp_path / "a" / "b") as folder:
            (folder / "a.txt").write_text("content")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert (tmp_path / "a" / "b" / "a.txt").read_text() == "content"


def test_output_folder_rejects_files(tmp_path):
    (tmp_path / "a").write_text("a file")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(FileError, match="cannot write there"), output_folder(path):
            pass


def test_atomic_write_follows_links(tmp_path):
    (tmp_path / "away").mkdir()
    (tmp_path / "a").symlink_to("away/b")
    for content in (b"created", b"replaced"):
        with atomic_write(tmp_path / "a") as file:
            file.write(content)
        assert (tmp_path / "away" / "b").read_bytes() == content
        assert (tmp_path / "a").is_symlink()


def test_atomic_write_of_a_name_of_maximum_length(tmp_path):
    path = tmp_path / ("é" * 125 + ".json")
    write_json(path, 1)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_open_files_are_not_replaced(tmp_path):
    """`/dev/stdout` of a shell that appends to a log."""
    log = tmp_path / "log"
    log.write_bytes(b"before")
    with log.open("ab") as file:
        (tmp_path / "link").symlink_to(f"/dev/fd/{file.fileno()}")
        (tmp_path / "folder").symlink_to("/proc/self/fd")
        own = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        for path in (own, f"/dev/fd/{file.fileno()}", tmp_path / "link", tmp_path / "folder" / str(file.fileno())):
            with pytest.raises(OSError, match="open file of a process"), atomic_write(path):
                pass
    assert log.read_bytes() == b"before"
    with atomic_write(log) as file:  # by its name
        file.write(b"after")
    assert log.read_bytes() == b"after"


def write_new(path):
    with staged_folder(path, lambda _folder, _new: ["c"], last="a") as folder:
        for name in "ab":
            (folder / name).write_text("new")
        assert (path / "a").read_text() == "old"


def test_files_are_replaced_together_or_not_at_all(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text("old")
    rename = os.rename
    for k in range(5):
        calls = []

        def fail(source, target, k=k, calls=calls):
            calls.append(source)
            if len(calls) == k + 1:
                raise OSError(5, "Input/output error", source, None, target)
            rename(source, target)

        monkeypatch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="Input/output error") as error:
            write_new(tmp_path)
        assert re.fullmatch(rf"{tmp_path}/[abc]: Input/output error", describe_os_error(error.value))
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("abc", "old")
    monkeypatch.setattr(os, "rename", rename)
    write_new(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}


def test_old_files_are_kept_and_named_if_they_cannot_be_put_back(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text("old")
    rename, calls = os.rename, []

    def fail(source, target):
        calls.append(source)
        if len(calls) > 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    message = r"Input/output error.*move a, b from .* back to it, or write it again"
    with pytest.raises(FileError, match=message) as error:
        write_new(tmp_path)
    aside = next(path for path in tmp_path.rglob(".*/.*") if path.is_dir())
    assert str(aside) in str(error.value)
    found = {path.name: path.read_text() for path in (*tmp_path.iterdir(), *aside.iterdir()) if path.is_file()}
    assert found == dict.fromkeys("abc", "old")


def test_inputs_are_protected_by_any_name(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "hard")
    with protect_inputs():
        assert read_file(tmp_path / "a") == b"old"
        for name in ("a", "link", "hard", "../" + tmp_path.name + "/a"):
            with pytest.raises(FileError, match="would replace a file that is read"), atomic_write(tmp_path / name):
                pass
        with atomic_write(tmp_path / "b") as file:
            file.write(b"new")
        with allow_overwrite():
            assert read_file(tmp_path / "b") == b"new"
        write_json(tmp_path / "b", 1)
    write_json(tmp_path / "a", 1)
