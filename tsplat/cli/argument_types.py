"""Argument types: parsers of paths and numbers, and common keyword arguments of `add_argument`."""

import argparse
import contextlib
import errno
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

from ..scene.option_types import Box
from ..support.files import raise_if_special
from ..support.suggestions import suggest

SIZE_MAX = 16384


def path(text: str) -> Path:
    """Parses a nonempty path: an empty one, as from an unset shell variable, would be the current folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected a path, found {text!r}")
    return Path(text)


def model_path(text: str) -> Path:
    """Parses the path of a model to read; not a pipe, as its format is detected before it is read."""
    model = path(text)
    raise_if_special(model)
    return model


def raise_if_missing(model: Path) -> None:
    """Raises FileNotFoundError if there is no such file or folder, and suggests a similar name in its folder."""
    if not os.path.lexists(model):
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(model.parent)
        raise FileNotFoundError(errno.ENOENT, f"no such file or folder{suggest([model.name], names)}", str(model))


def number(text: str) -> float:
    """Parses a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")
    return value


def positive(text: str) -> float:
    """Parses a finite number above 0."""
    value = number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value


def channel(text: str) -> float:
    """Parses a number from 0 to 1."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def integer(text: str, low: int, high: int) -> int:
    """Parses an integer from `low` to `high`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"expected an integer from {low} to {high}, found {text!r}")
    return int(text)


# Image sizes in pixels, positive counts, steps, ports, and seeds of 63 and 31 bits.
size = partial(integer, low=1, high=SIZE_MAX)
count = partial(integer, low=1, high=10**9)
steps = partial(integer, low=0, high=10**9)
port = partial(integer, low=1, high=65535)
seed = partial(integer, low=0, high=2**63 - 1)
small_seed = partial(integer, low=0, high=2**31 - 1)


COUNT: dict[str, Any] = {"type": count, "metavar": "N"}
SIZE: dict[str, Any] = {"type": size, "metavar": "N"}
VECTOR: dict[str, Any] = {"type": number, "nargs": 3, "metavar": ("X", "Y", "Z")}
BOX: dict[str, Any] = {"type": number, "nargs": 6, "metavar": ("X0", "Y0", "Z0", "X1", "Y1", "Z1")}


def box_of(numbers: list[float] | None) -> Box | None:
    """Returns the two corners of a box, given the value of an option of :data:`BOX`; None if it is not given."""
    if numbers is None:
        return None
    x0, y0, z0, x1, y1, z1 = numbers
    return (x0, y0, z0), (x1, y1, z1)


def amount(text: str) -> int | float:
    """Parses a positive count, or a percentage above 0 and up to 100%, which becomes a float up to 1."""
    if not text.endswith("%"):
        return count(text)
    share = number(text[:-1]) / 100
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"expected a percentage above 0 and up to 100%, found {text!r}")
    return share
