"""Locks of folders."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support.paths import WITHOUT_TORCH
from tsplat.errors import FileError
from tsplat.support.locks import lock_folder

HOLD = f"""{WITHOUT_TORCH}
from tsplat.support.locks import lock_folder
with lock_folder(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
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
