"""Machine code on disk, by everything that it depends on.

An entry is one file in Triton's cache directory (`TRITON_CACHE_DIR`, or `.triton/cache` in `TRITON_HOME` or the home
directory): a header with a checksum, and the object file. It is written atomically. One whose checksum is wrong counts
as missing. Where the directory cannot be written, code stays in memory. A user without a home directory, as in
containers with arbitrary user ids, has one of their own in the directory of temporary files; Triton itself would write
to a folder named `~` in the working directory.
"""

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import triton

MAGIC = b"triton_cpu object\n"


def set_directory() -> None:
    """Replaces Triton's cache directory if its name starts with `~`: by what that stands for, if there is a home."""
    named = triton.knobs.cache.dir
    if not named.startswith("~"):
        return
    expanded = os.path.expanduser(named)
    triton.knobs.cache.dir = _own_temporary() if expanded.startswith("~") else expanded


def _own_temporary() -> str:
    """Returns a directory of temporary files that only this user can write to, the same in later runs if possible."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = os.path.join(tempfile.gettempdir(), f"triton-{user}")
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)  # not that of a link, which another user may have made
        if stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o022:
            return os.path.join(path, "cache")
    path = tempfile.mkdtemp(prefix="triton-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def problem() -> str | None:
    """Returns why nothing can be written to the cache directory, or None if it can be."""
    try:
        os.makedirs(triton.knobs.cache.dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=triton.knobs.cache.dir) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        return str(error)
    return None


_locked: set[TextIO] = set()
"""The lock files that this process holds or waits for."""


NOT_COMPILING = {"__init__.py", "cache.py", "errors.py", "launcher.py", "room.py", "threads.py", "trial.py"}
"""Modules that machine code does not depend on."""


@functools.cache
def package_hash() -> str:
    """Returns a hash of the source of this package's compiler."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name not in NOT_COMPILING:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load(kernel: str, key: str) -> bytes | None:
    """Returns the object file of an entry; None where there is none, or a damaged one."""
    try:
        content = _path(kernel, key).read_bytes()
    except OSError:
        return None
    header, code = content[: len(MAGIC) + 32], content[len(MAGIC) + 32 :]
    return code if header == MAGIC + hashlib.sha256(code).digest() else None


def store(kernel: str, key: str, code: bytes) -> None:
    """Writes an entry atomically, if the directory can be written."""
    path = _path(kernel, key)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(handle, "wb") as file:
            file.write(MAGIC + hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def compiling(kernel: str, key: str) -> Iterator[None]:
    """Lets one process at a time compile an entry, where files can be locked; the others then find it in the cache."""
    path = _path(kernel, key).with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "w"))
            _locked.add(file)
            stack.callback(_release, file, path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _release(file: TextIO, path: Path) -> None:
    """Deletes and unlocks a lock file. Processes that still wait for it find the entry in the cache."""
    if file not in _locked:  # in a child that was forked while its parent held the lock
        return
    import fcntl

    _locked.discard(file)
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)  # closing it would leave the lock to children that inherited the file


def _close_inherited() -> None:
    """Closes the parent's lock files in a forked child, which would hold the locks after the parent's end."""
    while _locked:
        _locked.pop().close()


os.register_at_fork(after_in_child=_close_inherited)
set_directory()


def _path(kernel: str, key: str) -> Path:
    return Path(triton.knobs.cache.dir) / f"cpu_{key}" / f"{kernel}.o"
