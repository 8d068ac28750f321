"""Reads the extensions of SPZ files: records with a type, a size in bytes, and data of this size.

They follow the header in version 4, and the Gaussians in versions 2 and 3. SPZ_ADOBE_coordinate_system names the axes
of the file. Others are ignored, such as SPZ_ADOBE_safe_orbit_camera, which limits a camera.
"""

import struct
from typing import NamedTuple

from ...errors import FileError
from .foreign import Warn, note_ignored

RECORD = struct.Struct("<II")
VALUE = struct.Struct("<I")
COORDINATE_SYSTEM = 0xADBE0003
NAMES = {0xADBE0002: "SPZ_ADOBE_safe_orbit_camera"}
"""Code of an ignored extension -> name for messages. Others are named by their code."""

EXTENSIONS_MAX = 1 << 20
"""Maximum size of all extensions in bytes."""

UPRIGHT = ("LDB", "RDB", "LUB", "RUB", "LDF", "RDF", "LUF", "RUF")
TURNED = ("LFD", "RFD", "LFU", "RFU", "LBD", "RBD", "LBU", "RBU")
AXES = (*UPRIGHT, *TURNED)
"""Directions of x, y and z: left or right, down or up, backward or forward (F). Files store the index plus one.

Niantic's library of July 2026 converts LFD, RFD, LBU and RBU to RUB as if they were LBU, RBU, LFD and RFD.
"""

QUARTER_TURN = (0.5**0.5, -(0.5**0.5), 0.0, 0.0)
"""Quaternion wxyz of the rotation about x that maps y to -z and makes axes of :data:`TURNED` upright."""


class Axes(NamedTuple):
    """Conversion of Gaussians to the axes of a PLY: signs of x, y and z, then optionally a 90-degree rotation about
    x."""

    x: int
    y: int
    z: int
    turned: bool = False

    @classmethod
    def of(cls, name: str) -> "Axes":
        """Returns the conversion for one of :data:`AXES`."""
        x, y, z = (1 if letter in "RDF" else -1 for letter in name)
        # The rotation swaps y (forward or backward) and z (down or up), and changes the sign of y.
        return cls(x, -y, z, turned=True) if name in TURNED else cls(x, y, z)


RUB = Axes.of("RUB")
"""Right, up, backward: the axes of SPZ files without the extension."""


def parse_extensions(path: str, records: bytes, warn: Warn) -> Axes:
    """Returns the axes that the first such extension of a file names, by default :data:`RUB`.

    Args:
        path: Path of the file, for messages.
        records: The bytes of all extensions.
        warn: Called with the names of ignored extensions.

    Raises:
        FileError: A record is truncated or invalid.
    """
    systems: list[int] = []
    ignored: list[str] = []
    start = 0
    while start < len(records):
        if start + RECORD.size > len(records):
            raise FileError(f"{path}: the file ends within an extension; it is damaged or cut short")
        code, size = RECORD.unpack_from(records, start)
        start += RECORD.size
        if size > len(records) - start or (code == COORDINATE_SYSTEM and size != VALUE.size):
            raise FileError(f"{path}: extension {code:#x} has an invalid size of {size:,} bytes; the file is damaged")
        if code == COORDINATE_SYSTEM:
            systems += VALUE.unpack_from(records, start)
        else:
            ignored.append(NAMES.get(code, f"{code:#x}"))
        start += size
    note_ignored(path, "the extensions", ignored, warn)
    system = systems[0] if systems else 0
    if system > len(AXES):
        raise FileError(
            f"{path}: expected a coordinate system of at most {len(AXES)}, found {system}; the file is damaged"
        )
    return Axes.of(AXES[system - 1]) if system else RUB
