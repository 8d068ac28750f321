"""Reads the PLY container: parses the header, and reads the records of an element block by block.

Files may be ASCII, little-endian or big-endian (Turk, The PLY Polygon File Format, 1994). Memory is allocated only
after the sizes in the header have been checked against the size of the file.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ...errors import FileError, UnsupportedError
from .binary_records import read_records

HEADER_MAX = 1 << 20
"""Maximum size of a header in bytes."""

LINE_MAX = 1 << 20
"""Maximum size of a line of ASCII numbers in bytes."""

BLOCK_BYTES = 1 << 23
"""Size of a block of binary records."""

BLOCK_LINES = 1024
"""Number of records in a block of ASCII records."""

ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
LIST = "list"
TYPES = {
    **dict(char="i1", uchar="u1", short="i2", ushort="u2", int="i4", uint="u4", float="f4", double="f8"),
    **dict(int8="i1", uint8="u1", int16="i2", uint16="u2", int32="i4", uint32="u4", float32="f4", float64="f8"),
}

Table = np.ndarray[Any, np.dtype[np.void]]


def ply_header(comments: Iterable[str], elements: Mapping[str, tuple[int, Sequence[str]]]) -> bytes:
    """Returns the header of a binary little-endian PLY.

    Args:
        comments: Comment lines.
        elements: Name -> number of records, and properties with their types, such as ``"float x"``.
    """
    lines = ["ply", "format binary_little_endian 1.0", *(f"comment {comment}" for comment in comments)]
    for name, (count, properties) in elements.items():
        lines += [f"element {name} {count}", *(f"property {property_}" for property_ in properties)]
    return "\n".join([*lines, "end_header", ""]).encode()


@dataclasses.dataclass
class Element:
    """An element of the header, such as ``vertex``: a table of `count` records with named properties."""

    name: str
    count: int
    properties: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.properties]


class PlyFile:
    """A PLY file opened for reading, with the comments and elements of its header in file order.

    Raises FileError for an invalid header, and UnsupportedError for an unknown encoding.
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
            raise UnsupportedError(f"{path}: expected a PLY format of {', '.join(ORDERS)}, found {self._encoding!r}")

    def _read_header(self) -> None:
        first = self._file.readline(8)
        self._has_crlf = first.endswith(b"\r\n")
        if first.strip() != b"ply":
            raise FileError(f"{self.path}: not a PLY file; expected 'ply' as its first line")
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
                        raise FileError(f"{self.path}: the PLY header declares element {name!r} twice")
                    last = self.elements[name] = Element(name, int(number))
                case ["property", type_, name] if type_ in TYPES and last:
                    last.properties.append((name, TYPES[type_]))
                case ["property", "list", _, _, name] if last:
                    last.properties.append((name, LIST))
                case words:
                    beginning = " ".join(words)[:80]
                    raise FileError(f"{self.path}: invalid line in the PLY header: {beginning!r}")

    def close(self) -> None:
        self._file.close()

    @property
    def is_binary(self) -> bool:
        return self._encoding != "ascii"

    def blocks(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Table]:
        """Yields the records of an element as structured arrays. Fields of ASCII files are float64.

        For binary files, `start` and `stop` select a range of records; by default, all are yielded.

        Raises FileError if the element or one before it has a list property, a name is declared twice, or the file is
        shorter than the header says; also during iteration, if a line does not contain the expected numbers.
        """
        element = self.elements[name]
        before = list(itertools.takewhile(lambda other: other is not element, self.elements.values()))
        if len(set(element.names)) < len(element.names):
            raise FileError(f"{self.path}: element {name!r} declares a property twice")
        record = self._record(element)
        if not self.is_binary:
            # At least one digit and one separator per number, except after the last number.
            size_min = sum(2 * max(len(e.properties), 1) * e.count for e in [*before, element]) - 1
            if size_min > self._size:
                raise FileError(
                    f"{self.path}: expected {element.count} records {element.name!r} of at least {size_min:,} bytes in "
                    f"all, found {self._size:,} bytes; the file is cut short or its header is damaged"
                )
            return self._ascii_blocks(element, sum(e.count for e in before))
        skipped = sum(other.count * self._record(other).itemsize for other in before)
        if skipped + element.count * record.itemsize > self._size:
            raise FileError(
                f"{self.path}: expected {element.count} records {element.name!r} of {record.itemsize:,} bytes, found "
                f"{max(self._size - skipped, 0):,} bytes; the file is cut short or its header is damaged"
            )
        count = (element.count if stop is None else stop) - start
        return self._binary_blocks(count, record, self._start + skipped + start * record.itemsize)

    def note_rest(self, warn: Callable[[str], object]) -> None:
        """Calls `warn` with a note about data after the last binary record.

        Raises FileError if line ends were converted, for example by a transfer in text mode, which adds bytes.
        """
        types = {type_ for element in self.elements.values() for _, type_ in element.properties}
        if self._encoding == "ascii" or LIST in types:
            return
        extra = self._size - sum(element.count * self._record(element).itemsize for element in self.elements.values())
        if extra <= 0:
            return
        self._file.seek(self._start)
        n_lines = sum(part.count(b"\n") for part in iter(lambda: self._file.read(BLOCK_BYTES), b""))
        # The conversion adds a byte before each byte of the value of a line feed.
        if extra == n_lines and self._has_crlf:
            raise FileError(
                f"{self.path}: has {extra:,} bytes more than its header says, and lines that end in CR LF: the binary "
                "file was converted like a text file; copy the original in binary mode"
            )
        warn(f"{self.path}: ignored {extra:,} bytes after the last record")

    def _record(self, element: Element) -> np.dtype[np.void]:
        if LIST in (type_ for _, type_ in element.properties):
            raise FileError(f"{self.path}: element {element.name!r} has a list property; save the file without it")
        order = ORDERS[self._encoding]
        # Skipped elements may declare a name twice, which NumPy rejects; their fields are numbered instead.
        is_ambiguous = len(set(element.names)) < len(element.names)
        return np.dtype(
            [(str(i) if is_ambiguous else name, order + type_) for i, (name, type_) in enumerate(element.properties)]
        )

    def _binary_blocks(self, count: int, record: np.dtype[np.void], start: int) -> Iterator[Table]:
        per_block = max(BLOCK_BYTES // max(record.itemsize, 1), 1)
        self._file.seek(start)
        for first in range(0, count, per_block):
            size = min(per_block, count - first)
            yield read_records(self._file, self.path, record, size)

    def _ascii_blocks(self, element: Element, skipped: int) -> Iterator[Table]:
        self._file.seek(self._start)
        for _ in range(skipped):
            self._line(element)
        record = np.dtype([(name, "f8") for name in element.names])
        width = len(element.names)
        for first in range(0, element.count, BLOCK_LINES):
            numbers: list[float] = []
            for index in range(first, min(first + BLOCK_LINES, element.count)):
                words = self._line(element)
                try:
                    row = [float(word) for word in words]
                except ValueError:
                    row = []
                if len(row) != width:
                    raise FileError(
                        f"{self.path}: record {index} of {element.name!r}: expected {width} numbers, found "
                        f"{b' '.join(words[:8])[:80].decode('latin-1')!r}"
                    )
                numbers += row
            yield np.array(numbers, np.float64).view(record)

    def _line(self, element: Element) -> list[bytes]:
        """Returns the words of the next line that is not blank."""
        while line := self._file.readline(LINE_MAX):
            if len(line) == LINE_MAX:
                raise FileError(f"{self.path}: a line of element {element.name!r} is longer than {LINE_MAX:,} bytes")
            if words := line.split():
                return words
        raise FileError(f"{self.path}: the file ends within element {element.name!r}; it is cut short")
