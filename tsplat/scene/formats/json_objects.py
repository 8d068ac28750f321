"""Reads JSON objects in model files, checking the type of each value."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FileError
from ...scalars import describe, to_float

LOG_MAX = math.log(np.finfo(np.float32).max)
"""Maximum magnitude of position bounds, which are logarithms."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"found {name}, which is not JSON")


class JsonObject:
    """A JSON object; every access checks the type of the value.

    Args:
        path: Path of the model, for messages.
        file: Name of the JSON file, for messages.
        values: The object. Values of another type are treated as an empty object.
        name: Name of the object, for messages; empty for the root.
    """

    def __init__(self, path: str, file: str, values: Any, name: str = "") -> None:
        self.path, self.file = path, file
        self.values = values if isinstance(values, dict) else {}
        self.name = name

    @classmethod
    def parse(cls, path: str, text: bytes, file: str) -> "JsonObject":
        """Parses JSON."""
        try:
            return cls(path, file, json.loads(text, parse_constant=_refuse_constant))
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}: {file} is not JSON ({str(error)[:120]})") from error

    def fail(self, name: str, expected: str) -> FileError:
        return FileError(
            f"{self.path}: {self.file}: expected {self._full_name(name)} to be {expected}; the file is damaged"
        )

    def _full_name(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def part(self, name: str) -> "JsonObject":
        return JsonObject(self.path, self.file, self.values.get(name), self._full_name(name))

    def parts(self, name: str) -> "list[JsonObject]":
        """Returns a list of objects; an empty list if the value is missing."""
        objects = self.values.get(name, [])
        if not isinstance(objects, list):
            raise self.fail(name, "a list")
        full_name = self._full_name(name)
        return [JsonObject(self.path, self.file, value, f"{full_name}[{i}]") for i, value in enumerate(objects)]

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.fail(name, "a string")
        return value

    def names(self, name: str, default: list[str] | None = None) -> list[str]:
        """Returns a list of strings; `default`, if given, for a missing value."""
        value = self.values.get(name, default)
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise self.fail(name, "a list of names")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """Returns a nonnegative integer; `default`, if given, for a missing value."""
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fail(name, "a nonnegative integer")
        return value

    def number(self, name: str) -> float:
        value = to_float(self.values.get(name))
        if value is None:
            raise self.fail(name, "a finite number")
        return value

    def floats(self, name: str, size: int | None = None) -> NDArray[np.float64]:
        """Returns a list of `size` numbers, or of any length if `size` is None."""
        value = self.values.get(name)
        numeric = isinstance(value, list) and all(isinstance(x, int | float) for x in value)
        if not isinstance(value, list) or not numeric or size not in (None, len(value)):
            raise self.fail(name, "a list of numbers" if size is None else f"a list of {size} numbers")
        with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
            values = np.array(value, np.float64)
            if np.isfinite(values.astype(np.float32)).all():
                return values
        raise self.fail(name, "a list of numbers in the range of a float")

    def log_bounds(self) -> NDArray[np.float64]:
        """Returns ``mins`` and ``maxs`` of sign(x) log(1 + |x|), [2, 3]."""
        bounds = np.stack([self.floats(name, 3) for name in ("mins", "maxs")])
        if not (np.abs(bounds) <= LOG_MAX).all():
            raise self.fail("mins and maxs", f"logarithms of at most {LOG_MAX:.1f} in magnitude")
        return bounds

    def files(self, size: int) -> list[str]:
        value = self.values.get("files")
        if not isinstance(value, list) or len(value) < size or not all(isinstance(x, str) for x in value):
            raise self.fail("files", f"a list of {size} file names")
        if not all(is_file_name(x) for x in value):
            raise self.fail("files", "file names without a folder")
        return value


def finite_number(values: Mapping[str, Any], key: str, where: object, default: float | None = None) -> float:
    """Returns a finite number from an object. Raises FileError for other values, and for missing ones without a
    default."""
    value = values.get(key, default)
    number = to_float(value)
    if number is None:
        raise FileError(f"{where}: {key}: expected a finite number, found {describe(value)}")
    return number


def finite_numbers(values: object, count: int, where: str, text: str | None = None) -> list[float]:
    """Returns a list of `count` finite numbers. Raises a FileError that quotes `text` or the values for others."""
    numbers = [to_float(value) for value in values[: count + 1]] if isinstance(values, list) else []
    finite = [number for number in numbers if number is not None]
    if len(numbers) != count or len(finite) != count:
        raise FileError(f"{where}: expected {count} finite numbers, found {describe(values if text is None else text)}")
    return finite


def is_file_name(name: str) -> bool:
    """Returns whether a name is a plain file name without folders on every operating system."""
    with contextlib.suppress(UnicodeEncodeError):
        os.fsencode(name)
        return name not in ("", ".", "..") and name == os.path.basename(name) and not set(name) & {"\\", "\0"}
    return False
