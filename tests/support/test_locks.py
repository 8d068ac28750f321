"""Tests of folder locks."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from tests.support.paths import WITHOUT_TORCH
from tsplat.errors import FileError
from tsplat.support import locks
from tsplat.support.locks import is_locked, lock_folder
from tsplat.support.process_identity import describe_process

HOLD = f"""{WITHOUT_TORCH}
from tsplat.support.locks import lock_folder
with lock_folder(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Starts another process that holds the lock of `tmp_path`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_lock_of_a_running_process_is_refused(tmp_path, holder):
    message = rf"{tmp_path}: in use by process {holder.pid} on .*, started 20.*; wait"
    with pytest.raises(FileError, match=message), lock_folder(tmp_path):
        pass
    holder.stdin.close()
    assert holder.wait() == 0
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "lock").exists()


@pytest.mark.slow
def test_lock_of_a_killed_process_is_replaced(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists()
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_lock_of_a_killed_process_that_nobody_waited_for_is_replaced(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    os.kill(holder.pid, 0)
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path):
        raise KeyboardInterrupt
    assert not (tmp_path / "lock").exists()


def test_lock_of_another_machine_is_refused(tmp_path):
    (tmp_path / "lock").write_text(json.dumps({"pid": 7, "machine": "node-12", "started": "2026-01-01T00:00:00"}))
    message = f"locked by process 7 on node-12, started 2026.*if it has ended, delete {tmp_path / 'lock'}"
    with pytest.raises(FileError, match=message), lock_folder(tmp_path):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_lock_of_an_earlier_process_with_the_same_id_is_replaced(tmp_path):
    lock = {"pid": os.getpid(), "machine": socket.gethostname(), "started": "2026-01-01T00:00:00", "ticks": 1}
    (tmp_path / "lock").write_text(json.dumps(lock))
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"pid": "x"}'])
def test_damaged_lock_is_replaced(content, tmp_path):
    (tmp_path / "lock").write_bytes(content)
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


RACE = f"""{WITHOUT_TORCH}
import time
from tsplat.errors import FileError
from tsplat.support.locks import lock_folder
while time.time() < float(sys.argv[2]):
    pass
try:
    with lock_folder(sys.argv[1]):
        print("locked", flush=True)
        sys.stdin.read()
except FileError as error:
    print("refused", flush=True)
"""


@pytest.mark.slow
def test_one_of_several_processes_replaces_a_stale_lock(tmp_path):
    (tmp_path / "lock").write_text(json.dumps({"pid": 2**22 + 1, "machine": socket.gethostname()}))
    command = [sys.executable, "-c", RACE, str(tmp_path), str(time.time() + 2)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    try:
        assert sorted(process.stdout.readline() for process in processes) == [b"locked\n", b"refused\n", b"refused\n"]
    finally:
        for process in processes:
            process.communicate()


def write_holder(folder, **changes):
    """Writes the lock file of a process that has ended."""
    (folder / "lock").write_text(json.dumps(describe_process() | {"pid": 2**22 + 1, "file_lock": True} | changes))


def test_held_file_is_refused_whatever_it_names(tmp_path):
    """Simulates another container, in which processes of this one seem to have ended."""
    fcntl = pytest.importorskip("fcntl")
    for changes in ({}, {"machine": "other"}, {"ids": "pid:[1]"}, {"pid": os.getpid(), "ticks": 1}):
        write_holder(tmp_path, **changes)
        with open(tmp_path / "lock", "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            message = rf"{tmp_path}: in use by process \d+ on .*, started 20.*; wait for it"
            assert is_locked(tmp_path) is True
            with pytest.raises(FileError, match=message), lock_folder(tmp_path):
                pass
        with lock_folder(tmp_path):
            pass
        assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("supported", [True, False])
def test_one_process_cannot_lock_a_folder_twice(tmp_path, monkeypatch, supported):
    fcntl = pytest.importorskip("fcntl")
    if not supported:

        def flock(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
    for _ in range(2):
        with lock_folder(tmp_path):
            with pytest.raises(FileError, match=f"in use by process {os.getpid()} on"), lock_folder(tmp_path):
                pass
            assert json.loads((tmp_path / "lock").read_text())["file_lock"] is supported
        assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({"file_lock": False, "ids": "pid:[1]"}, True),
        ({"file_lock": False, "machine": "other"}, True),
        ({"kernel": "another", "machine": "other"}, True),
        ({"kernel": "another"}, False),  # this machine before a reboot
        ({"file_lock": False}, False),
    ],
)
def test_processes_that_cannot_be_seen_may_run(changes, is_refused, tmp_path):
    pytest.importorskip("fcntl")
    write_holder(tmp_path, **changes)
    refused = pytest.raises(FileError, match="cannot tell whether it still runs") if is_refused else nullcontext()
    assert is_locked(tmp_path) is (None if is_refused else False)
    with refused, lock_folder(tmp_path):
        pass


def test_a_lock_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tsplat.support.locks.os.write", write)
    with pytest.raises(FileError, match="lock: cannot be written"), lock_folder(tmp_path):
        pass
    assert not (tmp_path / "lock").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_children_do_not_hold_the_lock(tmp_path):
    descriptor, _ = locks._acquire(tmp_path / "lock")
    locks._held.add(descriptor)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(reading, 1)
        locks._held.remove(descriptor)
        os.close(descriptor)  # as if this process were killed
        with lock_folder(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")
def test_containers_with_the_same_machine_name(tmp_path):
    """Both containers see another process with the id of the holder, or none."""
    space = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare is not allowed here")
    command = [*space, sys.executable, "-c", HOLD, str(tmp_path)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as holder:
        assert holder.stdout.readline() == b"locked\n"
        second = subprocess.run(command, input=b"", capture_output=True, check=False)
        holder.communicate()
    assert second.returncode == 1
    assert b"in use by process 1 on" in second.stderr
    assert subprocess.run(command, input=b"", capture_output=True, check=False).stdout == b"locked\n"
