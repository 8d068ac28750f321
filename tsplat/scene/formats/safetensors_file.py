"""Reads and writes safetensors files: a JSON header, followed by the values of each tensor.

The package safetensors maps files into memory: if a file is truncated while it is read, the process ends (SIGBUS).
Here, this raises an error. The package also copies all tensors before it writes them. This module copies at most one
tensor at a time, and only if it is on a GPU or not contiguous.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ...errors import FileError
from ...support.reading import JSON_BYTES_MAX, open_file

DTYPES = {
    **dict(F64=torch.float64, F32=torch.float32, F16=torch.float16, BF16=torch.bfloat16, BOOL=torch.bool),
    **dict(F8_E4M3=torch.float8_e4m3fn, F8_E5M2=torch.float8_e5m2),
    **dict(I64=torch.int64, I32=torch.int32, I16=torch.int16, I8=torch.int8, U8=torch.uint8),
}
"""Name in the header -> dtype."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}

LENGTH_BYTES = 8
"""Size of the header length at the beginning of the file."""

ALIGNMENT = 8
"""Values begin at a multiple of this number of bytes."""


class Entry(NamedTuple):
    """A tensor in a file: its dtype, shape, and the offset of its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


class SafetensorsFile:
    """An open safetensors file; a context manager that closes it.

    Attributes:
        entries: Name -> tensor in the file.
        metadata: Name -> text.

    Raises:
        FileError: The file is damaged or truncated.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._file = open_file(path)
        try:
            self.entries, self.metadata = self._read_header(os.fstat(self._file.fileno()).st_size)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def _read_header(self, size: int) -> tuple[dict[str, Entry], dict[str, str]]:
        length = int.from_bytes(self._file.read(LENGTH_BYTES), "little")
        begin = LENGTH_BYTES + length
        if begin > size or length > JSON_BYTES_MAX:
            raise self._damaged(f"its header of {length:,} bytes exceeds the file")
        try:
            header: dict[str, Any] = json.loads(self._file.read(length))
            metadata = header.pop("__metadata__", {})
            entries = {}
            for name, value in header.items():
                dtype, shape = DTYPES[value["dtype"]], tuple(int(n) for n in value["shape"])
                first, end = (int(n) for n in value["data_offsets"])
                if min(shape, default=0) < 0 or first < 0 or end - first != dtype.itemsize * math.prod(shape):
                    raise ValueError(name)
                if begin + end > size:
                    raise self._damaged(f"the values of {name[:60]!a} exceed the file")
                entries[name] = Entry(dtype, shape, begin + first)
        except FileError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise self._damaged(f"its header is invalid ({str(error)[:80]!a})") from error
        return entries, metadata

    def _damaged(self, reason: str) -> FileError:
        return FileError(f"{self._path}: not a valid safetensors file: {reason}; it is damaged or cut short")

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """Reads a tensor, or consecutive rows of it."""
        dtype, shape, start = self.entries[name]
        if rows != slice(None) and shape:
            first, stop, _ = rows.indices(shape[0])
            shape = (max(stop - first, 0), *shape[1:])
            start += first * dtype.itemsize * math.prod(shape[1:])
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        if not tensor.numel():
            return tensor
        if sys.byteorder != "little":
            raise NotImplementedError("safetensors files are read on little-endian machines only")
        view = tensor.reshape(-1).view(torch.uint8).numpy().data
        self._file.seek(start)
        if self._file.readinto(view) < len(view):
            raise FileError(f"{self._path}: the file was truncated while it was read")
        return tensor


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors of any shape with dtypes in :data:`DTYPES`; not atomic.

    Raises:
        OSError: The file cannot be written.
    """
    if sys.byteorder != "little":
        raise NotImplementedError("safetensors files are written on little-endian machines only")
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    ordered = sorted(tensors.items(), key=lambda named: (-named[1].element_size(), named[0]))  # so that all are aligned
    for name, tensor in ordered:
        first, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for _, tensor in ordered:
            if tensor.numel():
                file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
