"""Annotations of scene pages: numbered places of a model with a title and a text."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from ..errors import FileError
from ..support.reading import read_json

ANNOTATIONS_MAX = 1000


@dataclasses.dataclass(frozen=True)
class Annotation:
    """A place of a model.

    Attributes:
        position: [3] the place, world frame of the model.
        title: A short title, plain text.
        text: A longer text, plain; may be empty.
        eye: [3] where the camera goes when the annotation is chosen, world frame; if None, from where the page starts
            half of the way to the place.
    """

    position: Sequence[float]
    title: str
    text: str = ""
    eye: Sequence[float] | None = None


def read_annotations(path: str | os.PathLike[str]) -> list[Annotation]:
    """Reads a JSON file: a list of objects with ``position`` and ``title``, and ``text`` and ``eye`` if wanted.

    Raises:
        FileError: The file cannot be read, or is not such a list; names the entry.
    """
    entries = read_json(path)
    if not isinstance(entries, list) or not 0 < len(entries) <= ANNOTATIONS_MAX:
        raise FileError(f"{path}: expected a list of 1 to {ANNOTATIONS_MAX:,} annotations")
    return [_annotation(entry, f"{path}: annotation {index}") for index, entry in enumerate(entries, start=1)]


def _annotation(entry: Any, name: str) -> Annotation:
    """Returns the annotation of an object read from JSON; raises FileError."""
    known = {field.name for field in dataclasses.fields(Annotation)}
    if not isinstance(entry, dict) or entry.keys() - known:
        unknown = sorted(entry.keys() - known) if isinstance(entry, dict) else entry
        raise FileError(f"{name}: expected an object with {', '.join(sorted(known))}, found {str(unknown)[:80]}")
    for key in ("title", "text"):
        if not isinstance(entry.get(key, ""), str):
            raise FileError(f"{name}: expected a text for {key}, found {str(entry[key])[:80]}")
    if not entry.get("title"):
        raise FileError(f"{name}: has no title")
    for key in ("position", "eye"):
        value = entry.get(key)
        if (value is not None or key == "position") and not _is_point(value):
            raise FileError(f"{name}: expected three finite numbers for {key}, found {str(value)[:80]}")
    if entry["position"] == entry.get("eye"):
        raise FileError(f"{name}: position and eye are the same")
    return Annotation(entry["position"], entry["title"], entry.get("text", ""), entry.get("eye"))


def _is_point(value: Any) -> bool:
    """Returns whether a value of JSON is a list of three finite numbers."""
    numbers = isinstance(value, list) and len(value) == 3 and all(type(x) in (int, float) for x in value)
    return numbers and all(abs(x) < 1e30 and math.isfinite(x) for x in value)
