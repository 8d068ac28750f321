"""Outputs on a file system that is read-only or full."""

import contextlib
import errno
import os
import subprocess

import pytest

from tests.cli.test_outputs import FILES, FOLDERS, KEPT, VIDEO, command, finished, one_sentence, suffix
from tests.support.slow import slow_after

__all__ = ["command", "finished"]

COMMANDS = (FILES | FOLDERS).values()
NAMES = list(FILES | FOLDERS)


@pytest.fixture
def mounted(tmp_path):
    """An empty file system of 64 KiB."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder):
    """Leaves no byte on a file system."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):  # no space left
        while True:
            file.write(bytes(4096))


def keep(folder, words):
    """Writes a file where a command writes its own; a command that writes a folder finds none."""
    path = folder / f"a{suffix(words)}"
    if words in FILES.values():
        path.write_bytes(KEPT)
    return path


@pytest.mark.parametrize("words", slow_after(3, COMMANDS), ids=NAMES)
def test_read_only_file_systems(command, mounted, words):
    path = keep(mounted, words)
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    one_sentence(command(words, mounted / "a"), mounted, os.strerror(errno.EROFS))
    assert [found.read_bytes() for found in mounted.iterdir()] == [KEPT] * path.is_file()


@pytest.mark.parametrize("words", slow_after(3, COMMANDS), ids=NAMES)
def test_full_file_systems(command, mounted, words):
    path = keep(mounted, words)
    fill(mounted)
    one_sentence(command(words, mounted / "a"), mounted, os.strerror(errno.ENOSPC))
    if words in FILES.values():
        assert path.read_bytes() == KEPT
        assert {found.name for found in mounted.iterdir()} == {path.name, "filler"}


@pytest.mark.parametrize("end", [".mp4", ".webm"])
def test_videos_on_full_file_systems(command, mounted, end):
    pytest.importorskip("imageio_ffmpeg", reason="videos need the extra video")
    words = ["render", "{model}", "--out", f"{{out}}{end}", *VIDEO]
    path = mounted / f"a{end}"
    path.write_bytes(KEPT)
    fill(mounted)
    one_sentence(command(words, mounted / "a"), path, os.strerror(errno.ENOSPC))
    assert path.read_bytes() == KEPT
    assert {found.name for found in mounted.iterdir()} == {path.name, "filler"}
