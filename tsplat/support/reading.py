"""Reading of untrusted files, and protection of inputs from being overwritten by outputs."""

import contextlib
import contextvars
import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import FileError
from .free_memory import available_bytes

UNCHECKED_BYTES_MAX = 1 << 28
"""Allocations up to this size are not compared with the free memory."""

JSON_BYTES_MAX, JSON_VALUES_MAX = 64 << 20, 3_000_000
"""Maximum size of a JSON file and maximum number of its values, which limit the memory of reading it."""


def is_special(mode: int) -> bool:
    """Returns whether the mode from ``os.stat`` is neither that of a file nor of a folder: a pipe, socket or device."""
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


_inputs: contextvars.ContextVar[set[tuple[int, int]] | None] = contextvars.ContextVar("inputs", default=None)
"""Device and inode of the files that were read inside of :func:`protect_inputs`."""


@contextlib.contextmanager
def _noting_in(inputs: set[tuple[int, int]] | None) -> Iterator[None]:
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


def protect_inputs() -> contextlib.AbstractContextManager[None]:
    """Context manager that protects the files that are read: no output replaces them, by any path or link."""
    return _noting_in(set())


def allow_overwrite() -> contextlib.AbstractContextManager[None]:
    """Context manager that allows outputs to replace the files that are read, as they are an earlier output."""
    return _noting_in(None)


def note_read(path: str | os.PathLike[str] | int) -> None:
    """Records for :func:`raise_if_read` that a file, or an open descriptor, is read, by tsplat or another library."""
    inputs = _inputs.get()
    if inputs is not None:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            inputs.add((status.st_dev, status.st_ino))


def raise_if_read(path: str | os.PathLike[str]) -> None:
    """Raises FileError if the file at a path was read inside of :func:`protect_inputs`."""
    inputs = _inputs.get()
    if inputs:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in inputs:
                raise FileError(f"{path}: would replace a file that is read; choose another name")


def stays_inside(name: str) -> bool:
    """Returns whether a path is relative and does not leave the folder that it is relative to."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def path_inside(folder: Path, name: str) -> Path | None:
    """Returns the path that a file in a folder names, as one below the folder; None if it leads out of the folder.

    Absolute paths and ``..`` are resolved by their names alone, so that links in the folder may lead anywhere.
    """
    full = Path(os.path.abspath(folder / name))
    for root in (os.path.abspath(folder), os.path.realpath(folder)):
        if full.is_relative_to(root):
            return folder / full.relative_to(root)
    return None


def is_possible(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file could have this path: it has no NUL or surrogate, and is not too long."""
    try:
        os.lstat(path)
    except ValueError:  # NUL, or characters that the file system cannot encode
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def check_possible(path: str | os.PathLike[str]) -> None:
    """Raises FileError for a path that no file can have."""
    if not is_possible(path):
        text = os.fspath(path)
        short = text if len(text) <= 200 else f"{text[:200]}..."
        raise FileError(f"{short!a}: expected the name of a file; this name is too long or has invalid characters")


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a regular file for reading.

    Raises FileError for paths that no file can have, and for pipes and devices, which may block or never end.
    """
    check_possible(path)
    if is_special(os.stat(path).st_mode):  # open() raises an error for folders
        raise FileError(f"{path}: expected a regular file, found a pipe, a socket or a device")
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    note_read(file.fileno())
    return file


def check_memory(what: str, needed: int, advice: str = "free some, or the file is damaged") -> None:
    """Raises `FileError` if more than 256 MiB are needed and fewer bytes are free."""
    if needed > UNCHECKED_BYTES_MAX and (free := available_bytes()) is not None and needed > free:
        raise FileError(
            f"{what} needs {min(needed, 1 << 80) / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; {advice}"
        )


def read_file(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """Reads a regular file of at most `limit` bytes; raises as :func:`open_file`, and `FileError` if it is larger."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise FileError(f"{path}: expected at most {limit:,} bytes, found {size:,}; it is damaged")
        return file.read()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file; raises as :func:`read_file`, and `FileError` if it is not JSON or has too many values."""
    content = read_file(path, JSON_BYTES_MAX)
    n_values = sum(content.count(symbol) for symbol in (b",", b"[", b"{"))
    if n_values > JSON_VALUES_MAX:
        raise FileError(f"{path}: expected at most {JSON_VALUES_MAX:,} values, found {n_values:,}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not readable as JSON ({str(error)[:120]})") from error
