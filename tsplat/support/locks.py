"""Lock files, which ensure that only one process writes into a folder."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import FileError
from .process_identity import Identity, describe_process, is_running, kernel, shares_ids

LOCK = "lock"
"""Name of the lock file."""

CONTENT_MAX = 65536
"""Maximum number of bytes of a lock file that are read. Windows locks the next byte, as locked bytes cannot be read."""

ATTEMPTS_MAX = 100
"""Maximum number of attempts if other processes delete the file while this one opens it."""

UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.EBADF)
"""Errors of file systems without locks, such as some network file systems."""

_held: set[int] = set()
"""Descriptors of the lock files that this process holds."""


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Context manager that holds the lock of a folder.

    The lock is a file that names the process, machine and start time. The operating system locks this file as long as
    the process lives, also across containers. The file of a process that ended without removing it, for example by
    SIGKILL, is replaced. If the file system does not support locks, the existence of the file decides.

    Raises FileError if another process holds the lock, or may hold it on another machine; or if the file cannot be
    written.
    """
    path = Path(folder) / LOCK
    try:
        descriptor, content = _acquire(path)
    except FileExistsError as error:
        raise FileError(f"{path}: another process just locked this folder; try again") from error
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from error
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # not in a forked child
            _release(path, descriptor, content)


def is_locked(folder: str | os.PathLike[str]) -> bool | None:
    """Returns whether a process holds the lock of a folder; None if this machine cannot tell. Does not write."""
    path = Path(folder) / LOCK
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        holder = _read(descriptor)
        if os.name != "posix":
            return None
        if _names_process(holder) and shares_ids(holder) and is_running(holder):
            return True
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed
        _check_ended(path, holder, is_locked=True)
    except FileError:
        return None
    except OSError as error:
        return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
    finally:
        os.close(descriptor)
    return False


def _acquire(path: Path) -> tuple[int, Identity]:
    """Opens and locks a lock file, and writes this process into it. Returns its descriptor and its content."""
    for _ in range(ATTEMPTS_MAX):
        try:
            descriptor, is_own = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), True
        except PermissionError:
            descriptor, is_own = os.open(path, os.O_RDONLY), False  # the file of another user
        try:
            is_locked = _lock(path, descriptor)
            if not is_locked or _is_file_of(path, descriptor):
                _check_ended(path, _read(descriptor), is_locked)
                if is_locked and is_own:
                    return descriptor, _write(path, descriptor, is_locked)
                path.unlink(missing_ok=True)
            os.close(descriptor)
            descriptor = -1
            if not is_locked:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                return descriptor, _write(path, descriptor, is_locked)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _release(path: Path, descriptor: int, content: Identity) -> None:
    """Deletes a lock file, unless it belongs to another process by now, and releases the lock."""
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        is_own = _is_file_of(path, descriptor) and _read(descriptor) == content
        if os.name != "posix":
            os.close(descriptor)  # Windows does not delete open files
        if is_own:
            path.unlink()
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _lock(path: Path, descriptor: int) -> bool:
    """Locks a file for this process; returns False if the file system does not support locks.

    Raises FileError if another process has locked the file.
    """
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            os.lseek(descriptor, CONTENT_MAX, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except (ImportError, OSError) as error:
        if isinstance(error, ImportError) or error.errno in UNSUPPORTED:
            return False
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise
        holder = _read(descriptor)
        who = _name(holder) if "pid" in holder else "another process"
        raise FileError(f"{path.parent}: in use by {who}; wait for it, or choose another folder") from error
    return True


def _check_ended(path: Path, holder: dict[str, Any], is_locked: bool) -> None:
    """Raises :class:`FileError` unless the process that a lock file names has ended.

    `is_locked` is whether this process could lock the file.
    """
    if not _names_process(holder):
        return  # the file was truncated while it was written
    if is_locked and holder.get("file_lock"):
        if holder.get("kernel") == kernel() is not None:
            return  # a running process would still hold the lock
        # On a network file system, locks of other machines may not be visible.
        if holder["machine"] == describe_process()["machine"]:
            return  # the lock is from before this machine was rebooted
    if not shares_ids(holder):
        raise FileError(
            f"{path.parent}: locked by {_name(holder)}; this machine cannot tell whether it still runs: wait for it, "
            f"or choose another folder; if it has ended, delete {path}"
        )
    if is_running(holder):
        raise FileError(f"{path.parent}: in use by {_name(holder)}; wait for it, or choose another folder")


def _names_process(holder: dict[str, Any]) -> bool:
    return isinstance(holder.get("pid"), int) and isinstance(holder.get("machine"), str)


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid')} on {holder.get('machine')}, started {holder.get('started')}"


def _read(descriptor: int) -> dict[str, Any]:
    """Returns the content of a lock file; empty if it is damaged."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        content = json.loads(os.read(descriptor, CONTENT_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, descriptor: int, is_locked: bool) -> Identity:
    """Writes this process into its lock file, and returns the content; deletes the file if that fails."""
    content = describe_process() | {"file_lock": is_locked}
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        text = json.dumps(content).encode()
        while text:
            text = text[os.write(descriptor, text) :]
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return content


def _is_file_of(path: Path, descriptor: int) -> bool:
    """Returns whether a descriptor refers to the file that is now at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close_inherited() -> None:
    """Closes the parent's lock files in a forked child, which would otherwise hold the locks after the parent ends."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
