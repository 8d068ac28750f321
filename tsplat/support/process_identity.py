"""Identifies processes, and checks whether a process still runs.

A machine name and a process id do not identify a process, as containers may share the name, and each of them numbers
its processes from 1.
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
    """Returns the id, start time and machine of this process and, on Linux, the boot ID and the PID namespace."""
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
    """Returns whether a process is in the same PID namespace as this one."""
    if "ids" not in process:  # written by an earlier version
        return bool(process.get("machine") == socket.gethostname())
    return (process["machine"], process.get("kernel"), process["ids"]) == (socket.gethostname(), kernel(), _ids())


def id_space() -> str | None:
    """Returns eight hexadecimal digits that identify the PID namespace; None on platforms without a boot ID."""
    if (started := kernel()) is None:
        return None
    return hashlib.sha256(repr((socket.gethostname(), started, _ids())).encode()).hexdigest()[:8]


def is_running(process: Identity) -> bool:
    """Returns whether a process in the same PID namespace runs; not a zombie, nor a later process with its id."""
    pid = process["pid"]
    if os.name != "posix":
        return True  # on Windows, os.kill() would interrupt it
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    state = _process_state(pid)
    return not state or (state[0] not in "ZX" and process.get("ticks") in (None, int(state[19])))


def is_main_rank() -> bool:
    """Returns whether this process is rank 0 of several, or the only process, according to torchrun's variable RANK."""
    return os.environ.get("RANK", "0") == "0"


def _ids() -> str | None:
    """Returns the name of the PID namespace, which differs between containers; None except on Linux."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _process_state(pid: int) -> list[str]:
    """Returns the fields of ``/proc/PID/stat``, starting with the state; see proc(5). Empty except on Linux."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
