"""Points with colours in PLY files: text or binary, of either byte order."""

from __future__ import annotations

import os
from typing import BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from .files import FileError
from .ply import HEADER_MAX, TYPES

ORDERS: dict[str, Literal["<", ">"]] = {"binary_little_endian": "<", "binary_big_endian": ">"}


def read_points(path: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Reads the vertices' places and colours; those without a finite place are left out.

    Returns:
        Points [P, 3]; and their RGB in [0, 1], [P, 3], grey where the file has none.

    Raises:
        FileError: The file is missing, not a PLY of points, shorter than its header says, or has fewer than two points.
    """
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            encoding, count, properties = _read_header(file, str(path))
            names = [name for name, _ in properties]
            if encoding == "ascii":
                lines = [line.split() for _, line in zip(range(count), file)]
                rows = np.array([words[: len(names)] for words in lines], np.float64).reshape(-1, len(names))
                columns, found = dict(zip(names, rows.T)), len(rows)
            else:
                record = np.dtype([(name, np.dtype(kind).newbyteorder(ORDERS[encoding])) for name, kind in properties])
                vertices = np.fromfile(file, record, min(count, size // record.itemsize))
                columns, found = {name: vertices[name] for name in names}, len(vertices)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: its vertices cannot be read ({error})") from error
    if found < count:
        raise FileError(f"{path}: the header asks for {count} vertices, but only {found} follow; it is cut short")
    points = torch.from_numpy(np.stack([columns[name] for name in "xyz"], -1).astype(np.float32))
    colors = torch.full_like(points, 0.5)
    if {"red", "green", "blue"} <= columns.keys():
        values = np.stack([columns[name] for name in ("red", "green", "blue")], -1).astype(np.float32)
        is_float = dict(properties)["red"].lstrip("<").startswith("f")
        colors = (torch.from_numpy(values) / (1 if is_float else 255)).clamp(0, 1)
    sound = points.isfinite().all(-1)
    if sound.sum() < 2:
        raise FileError(f"{path}: expected at least two points, found {int(sound.sum())} with finite places")
    return points[sound], colors[sound]


def _read_header(file: BinaryIO, path: str) -> tuple[str, int, list[tuple[str, str]]]:
    """The encoding, how many vertices there are and their properties; leaves the file at the header's end."""
    if file.readline(8).strip() != b"ply":
        raise FileError(f"{path}: not a PLY file (its first line is not 'ply')")
    encoding, count = "", 0
    elements: list[str] = []
    properties: list[tuple[str, str]] = []
    while True:
        line = file.readline(HEADER_MAX)
        if not line.endswith(b"\n") or file.tell() > HEADER_MAX:
            raise FileError(f"{path}: the PLY header has no end_header line")
        match line.decode("latin-1").split():
            case ["end_header"]:
                break
            case ["format", encoding, _]:
                pass
            case ["element", name, number] if number.isascii() and number.isdecimal() and len(number) < 19:
                elements.append(name)
                count = int(number) if name == "vertex" else count
            case ["property", kind, name] if elements == ["vertex"] and kind in TYPES:
                properties.append((name, TYPES[kind]))
            case ["property", *_] if elements and elements[0] == "vertex" and len(elements) > 1:
                pass
            case [] | ["comment", *_] | ["obj_info", *_]:
                pass
            case words:
                raise FileError(f"{path}: the PLY header has a line that is not understood: {' '.join(words)[:80]!r}")
    if encoding not in ("ascii", *ORDERS):
        raise FileError(f"{path}: found PLY format {encoding!r}, expected ascii or one of {', '.join(ORDERS)}")
    names = [name for name, _ in properties]
    if not {"x", "y", "z"} <= set(names) or len(set(names)) < len(names):
        raise FileError(f"{path}: not a PLY of points, its first element has to be vertices with x, y and z")
    return encoding, count, properties
