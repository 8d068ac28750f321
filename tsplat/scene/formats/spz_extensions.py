"""Extensions of SPZ files: records of a type, a size in bytes, and that many bytes.

They follow the header in version 4, and the Gaussians in versions 2 and 3. SPZ_ADOBE_coordinate_system names the axes
that a file is stored with. Its values 1 to 8 are LDB, RDB, LUB, RUB, LDF, RDF, LUF and RUF: where x (left or right),
y (down or up) and z (back or forward) point to. Other extensions do not change how Gaussians look.
"""

from __future__ import annotations

import struct

from ...errors import FileError, UnsupportedError
from .foreign import Warn, note_ignored

RECORD = struct.Struct("<II")
VALUE = struct.Struct("<I")
COORDINATE_SYSTEM = 0xADBE0003
NAMES = {0xADBE0002: "SPZ_ADOBE_safe_orbit_camera"}

EXTENSIONS_MAX = 1 << 20
"""Maximum size of all extensions in bytes."""

Axes = tuple[int, int, int]

RUB: Axes = (1, -1, -1)
"""Signs of x, y, z that convert right, up, backward, the axes of SPZ files by default, to those of PLY files."""

N_CODES, N_AXIS_ALIGNED = 17, 9


def read_axes(path: str, records: bytes, warn: Warn) -> Axes:
    """Returns the signs of x, y, z that convert a file to the axes of PLY files: right, down, forward.

    Args:
        path: For messages.
        records: All extensions.
        warn: Called with the names of those that are ignored.

    Raises:
        FileError: A record is cut short or invalid.
        UnsupportedError: The axes y and z are exchanged.
    """
    codes: list[int] = []
    ignored: list[str] = []
    start = 0
    while start < len(records):
        if start + RECORD.size > len(records):
            raise FileError(f"{path}: the file ends within an extension; it is damaged or cut short")
        kind, size = RECORD.unpack_from(records, start)
        start += RECORD.size
        if size > len(records) - start or (kind == COORDINATE_SYSTEM and size != VALUE.size):
            raise FileError(f"{path}: extension {kind:#x} has an invalid size of {size} bytes; the file is damaged")
        if kind == COORDINATE_SYSTEM:
            codes += VALUE.unpack_from(records, start)
        else:
            ignored.append(NAMES.get(kind, f"{kind:#x}"))
        start += size
    note_ignored(path, "the extensions", ignored, warn)
    code = codes[0] if codes else 0
    if code >= N_CODES:
        raise FileError(f"{path}: expected a coordinate system below {N_CODES}, found {code}; the file is damaged")
    if code >= N_AXIS_ALIGNED:
        raise UnsupportedError(
            f"{path}: its coordinate system ({code}) exchanges y and z, which is not implemented; convert it to "
            "right, up, back (RUB)"
        )
    return _axes(code) if code else RUB


def _axes(code: int) -> Axes:
    """Signs of x, y, z for the values 1 to 8."""
    right, up, forward = (bool(code - 1 & bit) for bit in (1, 2, 4))
    return 1 if right else -1, -1 if up else 1, 1 if forward else -1
