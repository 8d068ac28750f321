"""Types of arguments that are paths."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..support.files import raise_if_special


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
