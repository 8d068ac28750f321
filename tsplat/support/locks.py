"""A lock file, so that only one process writes into a folder."""

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import FileError
from .reading import read_json

LOCK = "lock"
"""Name of the lock file."""


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Holds the lock of a folder, a file with process id, machine and start time, while the block runs.

    The lock of a process that ended without removing it, as after SIGKILL, is replaced. Raises FileError if another
    process holds the lock, or may do so on another machine; or if the file cannot be written.
    """
    path = Path(folder) / LOCK
    content = _describe_process()
    try:
        with _exclusive(path.parent):
            holder = _read(path)
            if holder is not None:
                _check_ended(path, holder)
                path.unlink(missing_ok=True)
            with open(path, "x") as file:
                json.dump(content, file)
    except FileExistsError as error:
        raise FileError(f"{path}: another process just locked this folder; try again") from error
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _read(path) == content:
                path.unlink()


def _describe_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "machine": socket.gethostname(),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "ticks": int(state[19]) if (state := _process_state(os.getpid())) else None,  # of its start, on Linux only
    }


def _check_ended(path: Path, holder: dict[str, Any]) -> None:
    """Raises :class:`FileError` unless the process that a lock file names has ended."""
    pid, machine = holder.get("pid"), holder.get("machine")
    if not isinstance(pid, int) or not isinstance(machine, str):
        return  # cut off while it was written
    who = f"process {pid} on {machine}, started {holder.get('started')}"
    if machine != socket.gethostname():
        raise FileError(
            f"{path.parent}: locked by {who}; this machine cannot tell whether it still runs: wait for it, or choose "
            f"another folder; if it has ended, delete {path}"
        )
    if _is_running(pid, holder.get("ticks")):
        raise FileError(f"{path.parent}: in use by {who}; wait for it, or choose another folder")


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a lock file; empty if it is damaged, None if it does not exist."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_running(pid: int, ticks: object) -> bool:
    """Whether a process of this machine runs: not a later one with its id, nor one that ended unnoticed."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    state = _process_state(pid)
    return not state or (state[0] not in "ZX" and ticks in (None, int(state[19])))


def _process_state(pid: int) -> list[str]:
    """What Linux tells about a process, from its state on; see proc(5). Empty elsewhere."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lets one process at a time run the block, on platforms and file systems that support it."""
    if os.name != "posix":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
