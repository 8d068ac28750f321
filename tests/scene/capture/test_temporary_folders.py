"""Tests of folders that are written completely or not at all, with processes that end in every way."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import WITHOUT_TORCH
from tsplat.errors import FileError
from tsplat.scene.capture import temporary_folders
from tsplat.scene.capture.temporary_folders import COMPLETE, INSIDE, OWNER, new_folder

WAITING = f"""{WITHOUT_TORCH}
import time
from pathlib import Path
from tsplat.scene.capture.temporary_folders import new_folder
from tsplat.support.interruption import exit_on_signals
with exit_on_signals(), new_folder(Path(sys.argv[1])) as folder:
    (folder / "photo").write_text("a")
    print("ready", flush=True)
    time.sleep(60)
"""


def start(out):
    process = subprocess.Popen([sys.executable, "-c", WAITING, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def write_scene(folder):
    (folder / "images").mkdir()
    (folder / "sparse").mkdir()
    (folder / "images" / "a.png").write_text("a")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["missing", "empty", "link", "dangling link", "current", "new file system", "long"])
def test_output_of_each_kind_gets_the_content(tmp_path, monkeypatch, kind):
    target = out = tmp_path / "scene"
    if kind in ("link", "dangling link"):
        target = tmp_path / "elsewhere" / "target"
        out.symlink_to(target)
    elif kind == "current":
        out = Path()
    elif kind == "long":
        target = out = tmp_path / ("é" * 127)
    if kind not in ("missing", "dangling link", "long"):
        target.mkdir(parents=True)
    if kind == "new file system":
        (target / "lost+found").mkdir()
    if kind == "current":
        monkeypatch.chdir(target)
    before = target.stat().st_ino if target.exists() else None
    with new_folder(out) as folder:
        write_scene(folder)
    assert [name for name in names(target) if name != "lost+found"] == ["images", "sparse"]
    assert (target / "images" / "a.png").read_text() == "a"
    assert before in (None, target.stat().st_ino)  # what is mounted there stays mounted
    assert out.is_symlink() == (kind in ("link", "dangling link"))
    assert [name for name in names(target.parent) if name != "scene"] == [n for n in [target.name] if n != "scene"]


@pytest.mark.parametrize("exists", [False, True])
def test_failed_block_leaves_nothing(tmp_path, exists):
    out = tmp_path / "new" / "scene"
    if exists:
        out.mkdir(parents=True)

    def fail():
        with new_folder(out) as folder:
            write_scene(folder)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (names(out) if exists else names(tmp_path)) == []


def test_folder_with_content_a_file_and_a_circle_of_links_are_refused(tmp_path):
    (tmp_path / "file").write_text("keep")
    (tmp_path / "circle").symlink_to("circle")
    for out in (tmp_path, tmp_path / "file", tmp_path / "circle"):
        with pytest.raises(FileError, match="already exists and is not an empty folder"), new_folder(out):
            pytest.fail("the block runs")
    assert names(tmp_path) == ["circle", "file"]


@pytest.mark.parametrize("exists", [False, True])
def test_second_process_is_refused_before_it_works(tmp_path, exists):
    out = tmp_path / "scene"
    if exists:
        out.mkdir()
    with new_folder(out) as folder:
        write_scene(folder)
        (tmp_path / "link").symlink_to(out)
        for same in (out, tmp_path / "link"):
            with pytest.raises(FileError, match="another tsplat prepare is writing it"), new_folder(same):
                pytest.fail("the block runs")
    assert names(out) == ["images", "sparse"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_errors_name_the_output(tmp_path, number):
    out = tmp_path / "scene"
    with pytest.raises(OSError, match=os.strerror(number)) as caught, new_folder(out) as folder:
        raise OSError(number, os.strerror(number), str(folder / "images" / "a.png"))
    assert caught.value.filename == str(out)
    assert ("free some space" in str(caught.value)) == (number != errno.EIO)
    with pytest.raises(FileNotFoundError) as caught, new_folder(out):
        (tmp_path / "nowhere").read_text()
    assert caught.value.filename == str(tmp_path / "nowhere")


def test_what_cannot_be_moved_is_kept_and_named(tmp_path):
    out = tmp_path / "scene"

    def write():
        with new_folder(out) as folder:
            write_scene(folder)
            out.mkdir()
            (out / "of another program").write_text("keep")

    with pytest.raises(FileError, match=r"scene: cannot be created .*; what was computed is in .*prepared-1$"):
        write()
    assert names(tmp_path / "prepared-1") == ["images", "sparse"]
    assert names(out) == ["of another program"]


def test_kill_between_two_moves_is_made_good_by_the_next_call(tmp_path, monkeypatch):
    rename, out = os.rename, tmp_path / "scene"
    out.mkdir()

    class Killed(BaseException):
        pass

    def die(source, target):
        if Path(source).name == "sparse":
            raise Killed
        rename(source, target)

    monkeypatch.setattr(os, "rename", die)
    monkeypatch.setattr(temporary_folders.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed), new_folder(out) as folder:
        write_scene(folder)
    monkeypatch.undo()
    assert names(out) == [INSIDE, "images"]
    assert names(out / INSIDE) == [COMPLETE, OWNER, "sparse"]
    with pytest.raises(FileError, match="already exists"), new_folder(out):
        pytest.fail("the block runs")
    assert names(out) == ["images", "sparse"]


@pytest.mark.parametrize("left", ["nothing", "owner"])
def test_kill_before_the_folder_has_an_owner_is_made_good(tmp_path, left):
    (tmp_path / "scene" / INSIDE).mkdir(parents=True)
    if left == "owner":
        (tmp_path / "scene" / INSIDE / OWNER).touch()
    with new_folder(tmp_path / "scene") as folder:
        write_scene(folder)
    assert names(tmp_path / "scene") == ["images", "sparse"]


def test_folders_of_others_are_kept(tmp_path):
    for content in (None, "tsplat prepare on another-machine\n"):
        folder = tmp_path / "scene" / INSIDE
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file").write_text("keep")
        if content is not None:
            (folder / OWNER).write_text(content)
        with pytest.raises(FileError, match=f"if it has ended, delete .*{INSIDE}$"), new_folder(tmp_path / "scene"):
            pytest.fail("the block runs")
        assert (folder / "file").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signal_removes_the_folder(tmp_path, name):
    with start(tmp_path / "scene") as process:
        assert [path.name.startswith(".scene.") for path in tmp_path.iterdir()] == [True]
        process.send_signal(getattr(signal, name))
        assert process.wait(20) == 128 + getattr(signal, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_next_call_removes_what_a_killed_process_left(tmp_path):
    with start(tmp_path / "scene") as process:
        with pytest.raises(FileError, match="another tsplat prepare"), new_folder(tmp_path / "scene"):
            pytest.fail("the block runs")
        process.kill()
    assert len(list(tmp_path.iterdir())) == 1
    with new_folder(tmp_path / "scene") as folder:
        assert list(tmp_path.iterdir()) == [folder]
        assert names(folder) == [OWNER]
    assert names(tmp_path / "scene") == []
