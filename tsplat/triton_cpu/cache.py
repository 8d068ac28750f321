"""The cache of machine code on disk. Its keys contain everything that the code depends on.

An entry is one file in Triton's cache directory (`TRITON_CACHE_DIR`, or `.triton/cache` in `TRITON_HOME` or the home
directory): a header with a checksum, and the object file. Files are written atomically. A file with a wrong checksum
counts as missing. If the directory is not writable, code stays in memory. For users without a home directory, for
example in containers with arbitrary user ids, the cache is in the directory for temporary files. (Triton would write to
a directory named `~` in the working directory.)
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
    """Expands `~` in the name of Triton's cache directory. Without a home directory, uses a temporary one."""
    named = triton.knobs.cache.dir
    if not named.startswith("~"):
        return
    expanded = os.path.expanduser(named)
    triton.knobs.cache.dir = _own_temporary() if expanded.startswith("~") else expanded


def _own_temporary() -> str:
    """Returns a temporary directory that only this user can write to. Later runs get the same one if possible."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = os.path.join(tempfile.gettempdir(), f"triton-{user}")
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)  # does not follow links, which another user may have created
        if stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o022:
            return os.path.join(path, "cache")
    path = tempfile.mkdtemp(prefix="triton-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def problem() -> str | None:
    """Returns why the cache directory is not writable, or None if it is."""
    try:
        os.makedirs(triton.knobs.cache.dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=triton.knobs.cache.dir) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        return str(error)
    return None


_locked: set[TextIO] = set()
"""The lock files that this process holds or waits for."""


NOT_COMPILING = {"__init__.py", "address_space.py", "cache.py", "errors.py", "launcher.py", "threads.py", "trial.py"}
"""Modules that do not affect machine code."""


@functools.cache
def package_hash() -> str:
    """Returns a hash of the source of the compiler."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name not in NOT_COMPILING:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load(kernel: str, key: str) -> bytes | None:
    """Returns the object file of an entry, or None if it is missing or damaged."""
    try:
        content = _path(kernel, key).read_bytes()
    except OSError:
        return None
    header, code = content[: len(MAGIC) + 32], content[len(MAGIC) + 32 :]
    return code if header == MAGIC + hashlib.sha256(code).digest() else None


def store(kernel: str, key: str, code: bytes) -> None:
    """Writes an entry atomically, if the directory is writable."""
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
    """Lets only one process at a time compile an entry, if files can be locked. The others then load it."""
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
    """Deletes and unlocks a lock file. Processes that wait for it then load the entry."""
    if file not in _locked:  # in a child that was forked while its parent held the lock
        return
    import fcntl

    _locked.discard(file)
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)  # after closing alone, children that inherited the file would hold the lock


def _close_inherited() -> None:
    """Closes the lock files of the parent in a forked child, which would hold the locks after the parent exits."""
    while _locked:
        _locked.pop().close()


os.register_at_fork(after_in_child=_close_inherited)
set_directory()


def _path(kernel: str, key: str) -> Path:
    return Path(triton.knobs.cache.dir) / f"cpu_{key}" / f"{kernel}.o"
