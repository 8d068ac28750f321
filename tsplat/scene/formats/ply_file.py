"""PLY files as tables: the header, and the records of an element a block at a time.

ASCII, little-endian and big-endian (Turk, The PLY Polygon File Format, 1994). Nothing is allocated before the sizes in
the header are known to fit the file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from ...errors import FileError, UnsupportedError

HEADER_MAX = 1 << 20
LINE_MAX = 1 << 20
"""Bytes of a line of numbers in ASCII."""
BLOCK = 1 << 23
"""Bytes of records that are held at once."""
ASCII_ROWS = 1024
"""Lines of numbers that are held at once."""

ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
LIST = "list"
TYPES = {
    **dict(char="i1", uchar="u1", short="i2", ushort="u2", int="i4", uint="u4", float="f4", double="f8"),
    **dict(int8="i1", uint8="u1", int16="i2", uint16="u2", int32="i4", uint32="u4", float32="f4", float64="f8"),
}

Table = np.ndarray[Any, np.dtype[np.void]]


@dataclasses.dataclass
class Element:
    """What the header says of one kind of record."""

    name: str
    count: int
    properties: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.properties]


class PlyFile:
    """An open PLY.

    Attributes:
        comments: What follows ``comment`` in the header, line by line.
        elements: By name, in the order of the file.

    Raises:
        FileError: The header is not one of a PLY.
        UnsupportedError: A format of numbers that is not known.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.path = path
        self.comments: list[str] = []
        self.elements: dict[str, Element] = {}
        self._file = file
        self._encoding = ""
        self._read_header()
        self._start = file.tell()
        self._size = os.fstat(file.fileno()).st_size - self._start
        if self._encoding not in ORDERS:
            raise UnsupportedError(f"{path}: found PLY format {self._encoding!r}; known are {', '.join(ORDERS)}")

    def _read_header(self) -> None:
        if self._file.readline(8).strip() != b"ply":
            raise FileError(f"{self.path}: not a PLY file (its first line is not 'ply')")
        last: Element | None = None
        while True:
            line = self._file.readline(HEADER_MAX)
            if not line.endswith(b"\n") or self._file.tell() > HEADER_MAX:
                raise FileError(f"{self.path}: the PLY header has no end_header line")
            text = line.decode("latin-1").strip()
            match text.split():
                case ["end_header"]:
                    return
                case ["comment", *_]:
                    self.comments.append(text.removeprefix("comment").strip())
                case [] | ["obj_info", *_]:
                    pass
                case ["format", encoding, _]:
                    self._encoding = encoding
                case ["element", name, number] if number.isascii() and number.isdecimal() and len(number) < 32:
                    if name in self.elements:
                        raise FileError(f"{self.path}: the PLY header has element {name!r} twice; rewrite the file")
                    last = self.elements[name] = Element(name, int(number))
                case ["property", kind, name] if kind in TYPES and last:
                    last.properties.append((name, TYPES[kind]))
                case ["property", "list", _, _, name] if last:
                    last.properties.append((name, LIST))
                case words:
                    found = " ".join(words)[:80]
                    raise FileError(f"{self.path}: the PLY header has a line that is not understood: {found!r}")

    def blocks(self, name: str) -> Iterator[Table]:
        """The records of an element as structured arrays, whose fields are in ASCII all of float64.

        Raises:
            FileError: The element or one before it has lists or two properties of one name, or does not fit the file;
                when a block is asked for, also: a line of numbers that is none.
        """
        before = []
        for element in self.elements.values():
            if element.name == name:
                break
            before.append(element)
        element = self.elements[name]
        if len(set(element.names)) < len(element.names):
            raise FileError(f"{self.path}: element {name!r} has two properties of one name; rewrite the file")
        return self._ascii(element, before) if self._encoding == "ascii" else self._binary(element, before)

    def _binary(self, element: Element, before: list[Element]) -> Iterator[Table]:
        record = self._record(element)
        skipped = sum(other.count * self._record(other).itemsize for other in before)
        if skipped + element.count * record.itemsize > self._size:
            raise FileError(
                f"{self.path}: the header asks for {element.count} records {element.name!r} of "
                f"{record.itemsize} bytes, but only {max(self._size - skipped, 0)} bytes follow; the file is cut short "
                "or not what it says"
            )
        return self._binary_blocks(element.count, record, self._start + skipped)

    def _record(self, element: Element) -> np.dtype[np.void]:
        if LIST in (kind for _, kind in element.properties):
            raise FileError(f"{self.path}: element {element.name!r} has a list property; rewrite the file without it")
        order = ORDERS[self._encoding]
        # An element that is passed over may have two properties of one name; numbers never clash.
        clash = len(set(element.names)) < len(element.names)
        return np.dtype(
            [(str(i) if clash else name, order + kind) for i, (name, kind) in enumerate(element.properties)]
        )

    def _binary_blocks(self, count: int, record: np.dtype[np.void], start: int) -> Iterator[Table]:
        rows = max(BLOCK // max(record.itemsize, 1), 1)
        self._file.seek(start)
        for first in range(0, count, rows):
            block = np.fromfile(self._file, record, min(rows, count - first))
            if len(block) < min(rows, count - first):
                raise FileError(f"{self.path}: the file became shorter while it was read")
            yield block

    def _ascii(self, element: Element, before: list[Element]) -> Iterator[Table]:
        if LIST in (kind for _, kind in element.properties):
            raise FileError(f"{self.path}: element {element.name!r} has a list property; rewrite the file without it")
        # A digit and what parts it from the next, a number; the last line may end without.
        least = sum(2 * max(len(e.properties), 1) * e.count for e in [*before, element]) - 1
        if least > self._size:
            raise FileError(
                f"{self.path}: the header asks for {element.count} records {element.name!r}, at least {least} bytes, "
                f"but only {self._size} bytes follow; the file is cut short or not what it says"
            )
        return self._ascii_blocks(element, sum(e.count for e in before))

    def _ascii_blocks(self, element: Element, skipped: int) -> Iterator[Table]:
        self._file.seek(self._start)
        for _ in range(skipped):
            self._line(element)
        record = np.dtype([(name, "f8") for name in element.names])
        width = len(element.names)
        for first in range(0, element.count, ASCII_ROWS):
            rows = range(first, min(first + ASCII_ROWS, element.count))
            numbers: list[float] = []
            for row in rows:
                words = self._line(element)
                try:
                    found = [float(word) for word in words]
                except ValueError:
                    found = []
                if len(found) != width:
                    raise FileError(
                        f"{self.path}: record {row} of {element.name!r} is not {width} numbers: "
                        f"{b' '.join(words[:8])[:80].decode('latin-1')!r}"
                    )
                numbers += found
            yield np.array(numbers, np.float64).view(record)

    def _line(self, element: Element) -> list[bytes]:
        """The words of the next line that has any."""
        while line := self._file.readline(LINE_MAX):
            if len(line) == LINE_MAX:
                raise FileError(f"{self.path}: a line of element {element.name!r} is over {LINE_MAX} bytes long")
            if words := line.split():
                return words
        raise FileError(f"{self.path}: the file ends within element {element.name!r}; it is cut short")
