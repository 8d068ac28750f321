"""Opening files that others made."""

import contextlib
import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

from ..errors import FileError

UNASKED_BYTES = 1 << 28

JSON_BYTES_MAX, JSON_VALUES_MAX = 64 << 20, 3_000_000
"""Maximum size of a JSON file and number of its values, which limit the memory that reading it takes."""


def is_special(mode: int) -> bool:
    """Whether a mode of ``os.stat`` is that of a pipe, a socket or a device: neither a file nor a folder."""
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def stays_inside(name: str) -> bool:
    """Whether a path is relative and does not lead out of the folder that it is relative to."""
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def is_possible(path: str | os.PathLike[str]) -> bool:
    """Whether a file could have this path: not if it has NUL or surrogates, or is too long for its file system."""
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
        raise FileError(f"{short!a}: expected the name of a file; no file system can hold this one")


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a regular file for reading.

    Raises FileError for paths that no file can have, and for pipes and devices, which may block or never end.
    """
    check_possible(path)
    if is_special(os.stat(path).st_mode):  # opening a folder raises an error of its own
        raise FileError(f"{path}: expected a regular file, found a pipe, a socket or a device")
    return open(path, "rb")


def available_bytes() -> int | None:
    """Returns the memory that can be allocated without swapping, in bytes; None where Linux does not tell it."""
    with contextlib.suppress(OSError), open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def check_memory(what: str, needed: int, advice: str) -> None:
    """Raises `FileError` for more bytes than are free. Fewer than 256 MiB are not compared with them."""
    if needed > UNASKED_BYTES and (free := available_bytes()) is not None and needed > free:
        raise FileError(f"{what} needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; {advice}")


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
