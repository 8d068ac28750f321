"""Checks of names and numbers. The command line needs them, so this file imports no PyTorch."""

import contextlib
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from .errors import ArgumentError, UnsupportedError


def check_choice(
    name: str, value: object, choices: Sequence[object], not_implemented: Mapping[str, str] | None = None
) -> None:
    """Raises unless a value is one of the choices. `not_implemented` maps known values to what to do instead."""
    if not_implemented and isinstance(value, str) and value in not_implemented:
        raise UnsupportedError(f"{name}: {value!r} is not implemented; {not_implemented[value]}")
    if not any([equals(value, choice) for choice in choices]):
        known = ", ".join(repr(choice) for choice in choices)
        raise ArgumentError(f"{name}: expected one of {known}, found {describe(value)}")


def enum_name(value: Any) -> Any:
    """Returns the name of an enum member, of tsplat or gsplat. Returns other values unchanged."""
    return getattr(value, "name", value)


def equals(value: object, other: object) -> bool:
    """Returns whether a value is equal to a scalar; tensors and arrays are not."""
    is_tensor = hasattr(value, "requires_grad")
    return value is other or (getattr(value, "ndim", 0) == 0 and not is_tensor and value == other)


def describe(value: object) -> str:
    """Describes a value for messages: shape and dtype of a tensor or array, else at most 80 characters of its repr."""
    with contextlib.suppress(RuntimeError):  # nested tensors have no shape
        if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__setitem__"):
            return f"{type(value).__name__} {list(value.shape)} of {value.dtype}"
    try:
        text = repr(value)
    except ValueError:
        text = "an int of thousands of digits"
    return text if len(text) <= 80 else f"{text[:80]}..."


def to_int(value: object) -> int | None:
    """Converts an integer of any type, such as NumPy's, to an int. Returns None for other values and for bools."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    with contextlib.suppress(TypeError):
        return operator.index(value)
    return None


def to_float(value: object) -> float | None:
    """Converts a finite int or float to a float. Returns None for other values and for bools."""
    with contextlib.suppress(OverflowError):
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def check_size(name: str, value: object, *, or_zero: bool = False) -> int:
    """Checks that a value is a positive integer, or zero if allowed, of any integer type. Returns it as an int."""
    size = to_int(value)
    if size is None or size < (0 if or_zero else 1):
        raise ArgumentError(f"{name}: expected a positive int{' or 0' if or_zero else ''}, found {describe(value)}")
    if size >= 2**63:
        raise ArgumentError(f"{name}: expected an int below 2^63, found {describe(value)}")
    return size
