"""Writes new folders atomically, by one process at a time.

The content is written to a hidden folder first. Hidden folders are removed at the end, on signals, or by the next
process with the same output.
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
"""File in a hidden folder that names the machine of its process; the process keeps it locked."""

INSIDE = ".tsplat-prepare"
"""Name of the hidden folder if the output folder already exists."""

COMPLETE = ".tsplat-complete"
"""File that marks a hidden folder whose content is complete and is being moved to the output folder."""

LAST = "sparse"
"""Entry that is moved last; readers recognize a scene by it."""

IGNORED = ("lost+found",)
"""Entries that an empty folder may contain; new file systems have them."""


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Creates a hidden folder, and moves its content to `out` if the block succeeds.

    A new folder appears with all its content. An existing empty folder, such as a mount point, a link to a folder, or
    the current folder, is not replaced but filled. If the block raises, nothing remains. Leftovers for the same `out`
    from processes that were killed on this machine are removed first.

    Raises:
        FileError: `out` is not an empty folder, is not writable, or another process is writing it.
        OSError: A file cannot be written; the error names `out` instead of the hidden folder.
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
    """Creates a hidden folder for this process, removing a stale one, and returns its locked owner file."""
    in_use = FileError(
        f"{out}: another tsplat prepare is writing it, or was killed on another machine; wait for it, or choose "
        f"another folder; if it has ended, delete {folder}"
    )
    if os.path.lexists(folder):
        _remove_stale(folder, target, in_use)
    try:
        folder.mkdir()
        owner = io.FileIO(folder / OWNER, "x")
    except (FileExistsError, FileNotFoundError):  # another process has just changed it
        raise in_use from None
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise _translated(error, folder, out) from error
    try:
        # Lock first: other processes delete a folder only if its owner file names this machine.
        if _lock(owner):
            owner.write(_machine())
    except BlockingIOError:  # another process is removing it
        owner.close()
        raise in_use from None
    except OSError as error:
        owner.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise _translated(error, folder, out) from error
    return owner


def _remove_stale(folder: Path, target: Path, in_use: FileError) -> None:
    """Removes the hidden folder of a killed process of this machine; complete content is moved to the output folder.

    Raises `in_use` if the folder may be in use.
    """
    try:
        with open(folder / OWNER, "rb") as owner:
            # The system releases the lock however the process ends.
            if owner.read(4096) not in (b"", _machine()) or not _lock(owner):
                raise in_use
            if (folder / COMPLETE).exists():
                _move(folder, target)
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # the process was killed before it created the owner file
            return
        raise in_use from None
    except OSError as error:
        raise in_use from error


def _publish(folder: Path, target: Path, inside: bool) -> None:
    """Moves the content of a hidden folder to the output folder."""
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
    """Renames a hidden folder to a visible name if possible, and returns its path."""
    with contextlib.suppress(OSError):
        for name in (OWNER, COMPLETE):
            (folder / name).unlink(missing_ok=True)
        names = (folder.with_name(f"prepared-{number}") for number in itertools.count(1))
        shown = next(path for path in names if not os.path.lexists(path))
        os.rename(folder, shown)
        return shown
    return folder


def _translated(error: OSError, folder: Path, out: Path) -> OSError:
    """Converts an error about a file in the hidden folder to an error about `out`; returns others unchanged."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, (str, os.PathLike))]
    if error.errno is None or not (not names or any(folder in (path := Path(name), *path.parents) for name in names)):
        return error
    if error.errno in FULL and ";" not in (error.strerror or ""):
        return disk_full(error, out, 0)
    return OSError(error.errno, error.strerror, str(out))


def _machine() -> bytes:
    return f"tsplat prepare on {socket.gethostname()}\n".encode()


def _lock(file: IO[bytes]) -> bool:
    """Locks a file for this process; returns False if locks are not supported. Raises BlockingIOError if another
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
