"""Files that are there whole or not at all, and the folders they go to."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import FileError

ZIP = b"PK\x03\x04"
"""How a ZIP archive begins."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that appears under its name when the block ends well; until then, and otherwise, nothing changes.

    Raises:
        OSError: The file cannot be written there.
    """
    path = Path(path)
    # Beside the target, as a rename is atomic within a file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes JSON that others can read: UTF-8, and an error rather than a NaN."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


@contextlib.contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder that files can be written to, made if need be; if the block fails, empty folders it made go again.

    Raises:
        FileError: The folder cannot be made or written to.
    """
    path = Path(path)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise FileError(f"{path}: cannot write there ({error.strerror}); choose another folder") from error
        yield path
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
