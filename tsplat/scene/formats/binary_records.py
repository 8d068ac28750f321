"""Records of binary files."""

import os
from typing import Any, BinaryIO

import numpy as np

from ...errors import FileError


def read_records(
    file: BinaryIO, path: str | os.PathLike[str], record: np.dtype[np.void], count: int
) -> np.ndarray[Any, np.dtype[np.void]]:
    """Reads `count` records from the current position of an open file; raises `FileError` if there are fewer."""
    records = np.fromfile(file, record, count)
    if len(records) < count:
        raise FileError(f"{path}: the file was truncated while it was read")
    return records
