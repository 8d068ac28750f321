"""Tests of temporary folders, with processes that end in every way."""

import signal
import subprocess
import sys

import pytest

from tests.support.paths import WITHOUT_TORCH
from tsplat.scene.capture.temporary_folders import OWNER, temporary_folder

WAITING = f"""{WITHOUT_TORCH}
import time
from pathlib import Path
from tsplat.scene.capture.temporary_folders import temporary_folder
from tsplat.support.interruption import exit_on_signals
with exit_on_signals(), temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "photo").write_text("a")
    print("ready", flush=True)
    time.sleep(60)
"""


def start(out):
    process = subprocess.Popen([sys.executable, "-c", WAITING, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


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
        process.kill()
    assert len(list(tmp_path.iterdir())) == 1
    with temporary_folder(tmp_path / "scene") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_folders_of_others_are_kept(tmp_path):
    other_scene, without_owner, other_machine = (
        tmp_path / name for name in (".scene2.01234567", ".scene.01234567", ".scene.89abcdef")
    )
    for folder in (other_scene, without_owner, other_machine):
        folder.mkdir()
        (folder / "file").write_text("keep")
    (other_machine / OWNER).write_text("tsplat prepare on another-machine\n")
    with start(tmp_path / "scene") as process:
        (running,) = (p for p in tmp_path.iterdir() if p not in (other_scene, without_owner, other_machine))
        with temporary_folder(tmp_path / "scene"):
            assert (running / "photo").exists()
        for folder in (other_scene, without_owner, other_machine):
            assert (folder / "file").exists()
        process.kill()
