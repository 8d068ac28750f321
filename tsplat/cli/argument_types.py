"""Types of arguments: paths and numbers."""

import argparse
import math
from pathlib import Path

from ..support.files import raise_if_special

SIZE_MAX = 16384


def path(text: str) -> Path:
    """A path that is not empty: an empty one, as of a shell variable that is not set, would be the current folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected a path, found {text!r}")
    return Path(text)


def model_path(text: str) -> Path:
    """A path to read a model from; no pipe, as the format is detected before the file is read."""
    found = path(text)
    raise_if_special(found)
    return found


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, found {text!r}")
    return value


def channel(text: str) -> float:
    """A number from 0 to 1."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def integer(text: str, least: int, most: int) -> int:
    """An integer within limits."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected an integer from {least} to {most}, found {text!r}")
    return int(text)


def amount(text: str) -> int | float:
    """A positive number of things, or a percentage of them up to 100%, which becomes a float up to 1."""
    if not text.endswith("%"):
        return count(text)
    share = number(text[:-1]) / 100
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"expected a percentage above 0 and up to 100%, found {text!r}")
    return share


def size(text: str) -> int:
    """A size of images in pixels."""
    return integer(text, 1, SIZE_MAX)


def count(text: str) -> int:
    """A positive number of things."""
    return integer(text, 1, 10**9)


def steps(text: str) -> int:
    """A number of steps, 0 or more."""
    return integer(text, 0, 10**9)


def port(text: str) -> int:
    """A port to listen at."""
    return integer(text, 1, 65535)


def seed(text: str) -> int:
    """A seed of 63 bits."""
    return integer(text, 0, 2**63 - 1)


def small_seed(text: str) -> int:
    """A seed of 31 bits."""
    return integer(text, 0, 2**31 - 1)
