"""Atomic writes and output folders."""

import contextlib
import errno
import io
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import FileError
from .output import FULL
from .reading import is_special

ZIP = b"PK\x03\x04"
"""The first four bytes of a ZIP archive."""


def describe_os_error(error: OSError) -> str:
    """Returns the path and the reason, without the number of the error."""
    path = error.filename2 or error.filename
    return f"{path}: {error.strerror}" if path and error.strerror else str(error)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file for an atomic write: it replaces `path` when the block succeeds.

    If the block raises, `path` is left as it was and no temporary file remains. A symbolic link stays, and its target
    is replaced.

    Raises:
        OSError: The file cannot be written, or `path` is a folder, a device or a pipe; names `path`. If the disk is
            full, the message tells the size.
    """
    path = Path(path)
    raise_if_special(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    target = Path(os.path.realpath(path))
    # In the same folder, because a rename is atomic only within one file system; cut off, as names have a maximum.
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}")
    writer: _Writer | None = None
    try:
        with _Writer(io.FileIO(temporary, "x")) as writer:
            yield writer
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        concerns_temporary = error.filename is None or Path(error.filename) == temporary
        if error.errno in FULL and concerns_temporary:
            raise disk_full(error, path, writer.size if writer is not None else 0) from error
        if error.errno is not None and concerns_temporary:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        _remove(temporary)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the error that is reported is the one before
        path.unlink()


def raise_if_special(path: str | os.PathLike[str]) -> None:
    """Raises an OSError if there is neither a file nor a folder at a path, but a device or a pipe."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if is_special(mode):
        raise OSError(errno.EINVAL, "is a device, a pipe or a socket; expected a file", str(path))


def disk_full(error: OSError, path: Path, size: int) -> OSError:
    """Returns the error of a full disk, with the path, the size that is needed at least, and the free space."""
    found = ""
    with contextlib.suppress(OSError):
        found = f", and {shutil.disk_usage(path.parent).free:,} are free"
    needed = f"at least {size:,} bytes are needed{found}" if size else "free some space"
    return OSError(error.errno, f"{error.strerror}; {needed}", str(path))


class _Writer(io.BufferedWriter):
    """A binary file that knows the size in bytes that it would have if nothing failed."""

    size = 0

    def write(self, data: Any, /) -> int:
        self.size = max(self.size, self.tell() + memoryview(data).nbytes)
        return super().write(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes strict JSON in UTF-8, atomically.

    Raises:
        ValueError: The value contains NaN or infinity, which JSON cannot represent.
        OSError: The file cannot be written.
    """
    text = json.dumps(value, indent=2, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


@contextlib.contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Creates a folder if it does not exist and checks that it is writable.

    If the block raises, the folders created here are removed again, unless they contain files.

    Raises:
        FileError: The folder cannot be created or is not writable.
    """
    path = Path(path)
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise FileError(f"{path}: cannot write there ({error.strerror}); choose another folder") from error
        yield path
    except BaseException:
        for folder in created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def utf8_path(folder: Path) -> Iterator[Path]:
    """Yields a UTF-8 path of a folder, for libraries that cannot open other paths."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            yield Path(f"/proc/self/fd/{descriptor}")  # only Linux has other names
        finally:
            os.close(descriptor)
    else:
        yield folder
