"""Identifies processes, and checks whether one still runs.

Containers may share a machine name, and each numbers its processes from 1, so neither identifies a process.
"""

import datetime
import hashlib
import os
import socket
from pathlib import Path
from typing import Any

Identity = dict[str, Any]
"""JSON values of :func:`describe_process`."""


def describe_process() -> Identity:
    """Returns the id and the start of this process, its machine, and on Linux the boot ID and the PID namespace."""
    state = _process_state(os.getpid())
    return {
        "pid": os.getpid(),
        "machine": socket.gethostname(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "ticks": int(state[19]) if state else None,
        "kernel": kernel(),
        "ids": _ids(),
    }


def kernel() -> str | None:
    """Returns the boot ID; None on platforms without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def shares_ids(process: Identity) -> bool:
    """Returns whether both processes are in one PID namespace."""
    if "ids" not in process:  # of an earlier version
        return bool(process.get("machine") == socket.gethostname())
    return (process["machine"], process.get("kernel"), process["ids"]) == (socket.gethostname(), kernel(), _ids())


def id_space() -> str | None:
    """Returns eight hexadecimal digits, the same for processes that share their ids with this one.

    None on platforms without a boot ID.
    """
    if (started := kernel()) is None:
        return None
    return hashlib.sha256(repr((socket.gethostname(), started, _ids())).encode()).hexdigest()[:8]


def is_running(process: Identity) -> bool:
    """Returns whether a process in the PID namespace of this one runs: not a later one with its id, nor a zombie."""
    pid = process["pid"]
    if os.name != "posix":
        return True  # there, os.kill() would interrupt it
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    state = _process_state(pid)
    return not state or (state[0] not in "ZX" and process.get("ticks") in (None, int(state[19])))


def is_main_rank() -> bool:
    """Returns whether this process is rank 0 of several, or the only one, by the variable RANK of torchrun."""
    return os.environ.get("RANK", "0") == "0"


def _ids() -> str | None:
    """Returns the name of the PID namespace, of which each container has its own; None except on Linux."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _process_state(pid: int) -> list[str]:
    """Returns the fields of ``/proc/PID/stat`` from the state on; see proc(5). Empty except on Linux."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
