"""New folders that are written completely or not at all, by one process at a time.

They are written as hidden folders, which no process leaves behind: they are removed at the end, on signals, or by the
next process with the same output.
"""

import contextlib
import errno
import hashlib
import io
import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ...errors import FileError
from ...support.files import disk_full, output_folder
from ...support.output import FULL

OWNER = ".tsplat-owner"
"""File in a hidden folder that names its process's machine, and is locked while the process lives."""

INSIDE = ".tsplat-prepare"
"""Name of a hidden folder in an output that exists."""

COMPLETE = ".tsplat-complete"
"""File in a hidden folder whose content is complete, and is being moved to its place."""

LAST = "sparse"
"""Entry that is moved last, without which no reader takes a folder for a scene."""

IGNORED = ("lost+found",)
"""Entries of an empty folder: those of a new file system."""


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Creates a hidden folder, and moves what the block writes there to `out` when it succeeds.

    A folder that does not exist appears with all its content. One that exists, and is empty, stays what it is, such as
    a mount point, a link to a folder, or the current folder, and gets the content. If the block raises, nothing
    remains. Leftovers for the same `out` of processes that were killed on this machine are removed first.

    Raises:
        FileError: `out` is not an empty folder, cannot be written to, or another process is writing it.
        OSError: A file cannot be written; names `out` if it is in the hidden folder.
    """
    target = Path(os.path.realpath(out))
    inside = target.is_dir()
    parent, out_parent = target if inside else target.parent, Path(os.path.abspath(out)).parent
    if not inside and os.path.realpath(out_parent) == str(parent):
        parent = out_parent  # which errors name
    # Names have a maximum of 255 bytes.
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]
    folder = parent / (INSIDE if inside else f".{target.name[:50]}.{digest}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(output_folder(parent))
        stack.callback(_claim(folder, target, out).close)
        removal = stack.enter_context(contextlib.ExitStack())
        removal.callback(shutil.rmtree, folder, ignore_errors=True)
        if os.path.lexists(target) and not (
            inside and all(path == folder or path.name in IGNORED for path in target.iterdir())
        ):
            raise FileError(f"{out}: already exists and is not an empty folder; choose another folder")
        try:
            yield folder
        except OSError as error:
            raise _translated(error, folder, out) from error
        try:
            _publish(folder, target, inside)
        except OSError as error:
            removal.pop_all()
            raise FileError(
                f"{out}: cannot be created ({error.strerror}); what was computed is in {_make_visible(folder)}"
            ) from error


def _claim(folder: Path, target: Path, out: Path) -> IO[bytes]:
    """Creates a hidden folder for this process, and returns its file that is locked; removes one that was left."""
    in_use = FileError(
        f"{out}: another tsplat prepare is writing it, or was killed on another machine; wait for it, or choose "
        f"another folder; if it has ended, delete {folder}"
    )
    if os.path.lexists(folder):
        _remove_stale(folder, target, in_use)
    try:
        folder.mkdir()
        owner = io.FileIO(folder / OWNER, "x")
    except (FileExistsError, FileNotFoundError):  # of another process, just now
        raise in_use from None
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise _translated(error, folder, out) from error
    try:
        # Lock first: other processes delete a folder only if its owner file names this machine.
        if _lock(owner):
            owner.write(_machine())
    except BlockingIOError:  # another process removes it
        owner.close()
        raise in_use from None
    except OSError as error:
        owner.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise _translated(error, folder, out) from error
    return owner


def _remove_stale(folder: Path, target: Path, in_use: FileError) -> None:
    """Removes a hidden folder whose process was killed on this machine; raises an error if it may be in use.
    Complete content is moved to its place."""
    try:
        with open(folder / OWNER, "rb") as owner:
            # The system releases the lock of a process that ends in any way.
            if owner.read(4096) not in (b"", _machine()) or not _lock(owner):
                raise in_use
            if (folder / COMPLETE).exists():
                _move(folder, target)
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # killed before it had an owner
            return
        raise in_use from None
    except OSError as error:
        raise in_use from error


def _publish(folder: Path, target: Path, inside: bool) -> None:
    """Moves the content of a hidden folder to its place."""
    if inside:
        (folder / COMPLETE).touch()
        _move(folder, target)
        shutil.rmtree(folder, ignore_errors=True)
    else:
        os.replace(folder, target)
        (target / OWNER).unlink(missing_ok=True)


def _move(folder: Path, target: Path) -> None:
    for name in sorted(set(os.listdir(folder)) - {OWNER, COMPLETE}, key=lambda name: name == LAST):
        os.rename(folder / name, target / name)


def _make_visible(folder: Path) -> Path:
    """Gives a hidden folder a name that is not hidden, if it can be renamed, and returns its path."""
    with contextlib.suppress(OSError):
        for name in (OWNER, COMPLETE):
            (folder / name).unlink(missing_ok=True)
        names = (folder.with_name(f"prepared-{number}") for number in itertools.count(1))
        shown = next(path for path in names if not os.path.lexists(path))
        os.rename(folder, shown)
        return shown
    return folder


def _translated(error: OSError, folder: Path, out: Path) -> OSError:
    """Returns an error of a file in a hidden folder as one of `out`; others as they are."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, (str, os.PathLike))]
    if error.errno is None or not (not names or any(folder in (path := Path(name), *path.parents) for name in names)):
        return error
    if error.errno in FULL and ";" not in (error.strerror or ""):
        return disk_full(error, out, 0)
    return OSError(error.errno, error.strerror, str(out))


def _machine() -> bytes:
    return f"tsplat prepare on {socket.gethostname()}\n".encode()


def _lock(file: IO[bytes]) -> bool:
    """Locks a file for this process; returns False if that is not possible. Raises BlockingIOError if another
    process holds the lock."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError) as error:
        if getattr(error, "errno", None) in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError from error
        return False
    return True
