"""Temporary folders that no process leaves behind: removed at the end, on signals, or by the next process."""

import contextlib
import glob
import io
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

OWNER = ".tsplat-owner"
"""File in a temporary folder that names its process's machine, and is locked while the process lives."""


@contextlib.contextmanager
def temporary_folder(out: Path) -> Iterator[Path]:
    """Creates a hidden folder next to `out`, and removes it at the end unless it was renamed.
    Folders that killed processes of this machine have left for the same `out` are removed first."""
    _remove_stale(out)
    folder = out.absolute().with_name(f".{out.name}.{secrets.token_hex(4)}")
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        owner = stack.enter_context(io.FileIO(folder / OWNER, "x"))
        # Locked before it names the machine, without which nobody removes the folder.
        if _lock(owner):
            try:
                owner.write(_machine())
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(out)) from error
        yield folder


def _remove_stale(out: Path) -> None:
    """Removes temporary folders of `out` whose process was killed on this machine."""
    for folder in out.absolute().parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 8}"):
        if not folder.is_symlink():
            with contextlib.suppress(OSError), open(folder / OWNER, "rb") as owner:
                # The system releases the lock of a process that ends in any way.
                if owner.read(4096) == _machine() and _lock(owner):
                    shutil.rmtree(folder, ignore_errors=True)


def _machine() -> bytes:
    return f"tsplat prepare on {socket.gethostname()}\n".encode()


def _lock(file: IO[bytes]) -> bool:
    """Locks a file for this process; returns False if it is locked or cannot be."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
