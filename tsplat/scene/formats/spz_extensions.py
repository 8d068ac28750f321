"""Extensions of SPZ files: records of a type, a size in bytes, and that many bytes.

They follow the header in version 4, and the Gaussians in versions 2 and 3. SPZ_ADOBE_coordinate_system names the axes
that a file is stored with, SPZ_ADOBE_safe_orbit_camera limits a camera. Others are ignored.
"""

import struct
from typing import NamedTuple

from ...errors import ArgumentError, FileError
from .foreign import Warn, note_ignored

RECORD = struct.Struct("<II")
VALUE = struct.Struct("<I")
LIMITS = struct.Struct("<fff")
ORBIT, COORDINATE_SYSTEM = 0xADBE0002, 0xADBE0003
SIZES = {ORBIT: LIMITS.size, COORDINATE_SYSTEM: VALUE.size}

EXTENSIONS_MAX = 1 << 20
"""Maximum size of all extensions in bytes."""

UPRIGHT = ("LDB", "RDB", "LUB", "RUB", "LDF", "RDF", "LUF", "RUF")
TURNED = ("LFD", "RFD", "LFU", "RFU", "LBD", "RBD", "LBU", "RBU")
AXES = (*UPRIGHT, *TURNED)
"""Directions of x, y and z: left or right, down or up, backward or forward (F). A file has the index plus one.

Niantic's library of July 2026 converts LFD, RFD, LBU and RBU to RUB as if they were LBU, RBU, LFD and RFD.
"""

QUARTER_TURN = (0.5**0.5, -(0.5**0.5), 0.0, 0.0)
"""Quaternion wxyz of the rotation about x that turns y to -z, after which axes of :data:`TURNED` are upright."""


class Axes(NamedTuple):
    """Conversion of Gaussians to the axes of a PLY: signs of x, y and z, and then a quarter turn about x or none."""

    x: int
    y: int
    z: int
    turned: bool = False

    @classmethod
    def of(cls, name: str) -> "Axes":
        """Returns the conversion of one of :data:`AXES`."""
        x, y, z = (1 if letter in "RDF" else -1 for letter in name)
        # The turn exchanges y, forward or backward, with z, down or up, and changes the sign of y.
        return cls(x, -y, z, turned=True) if name in TURNED else cls(x, y, z)


RUB = Axes.of("RUB")
"""Right, up, backward: the axes of SPZ files without the extension."""


class OrbitLimits(NamedTuple):
    """Limits of a camera that orbits around the model, of the extension SPZ_ADOBE_safe_orbit_camera.

    Attributes:
        elevation_min, elevation_max: Radians above the horizon.
        radius_min: Distance from the center, world units.
    """

    elevation_min: float
    elevation_max: float
    radius_min: float


class Extensions(NamedTuple):
    """Contents of a file's extensions: its axes, and limits of a camera or None."""

    axes: Axes = RUB
    orbit: OrbitLimits | None = None


def extension_records(axes: str, orbit: OrbitLimits | None) -> bytes:
    """Returns the records of a file with one of :data:`AXES` and limits; none of what is the default.

    Raises:
        ArgumentError: The axes have another name.
    """
    if axes not in AXES:
        raise ArgumentError(f"axes: expected one of {', '.join(AXES)}, found {axes!r}")
    records = RECORD.pack(ORBIT, LIMITS.size) + LIMITS.pack(*orbit) if orbit else b""
    if axes != "RUB":
        records += RECORD.pack(COORDINATE_SYSTEM, VALUE.size) + VALUE.pack(AXES.index(axes) + 1)
    return records


def parse_extensions(path: str, records: bytes, warn: Warn) -> Extensions:
    """Returns what all extensions of a file say. Of several of a type, the first one counts.

    Args:
        path: For messages.
        records: All extensions.
        warn: Called with the names of those that are ignored.

    Raises:
        FileError: A record is cut short or invalid.
    """
    contents: dict[int, bytes] = {}
    ignored: list[str] = []
    start = 0
    while start < len(records):
        if start + RECORD.size > len(records):
            raise FileError(f"{path}: the file ends within an extension; it is damaged or cut short")
        code, size = RECORD.unpack_from(records, start)
        start += RECORD.size
        if size > len(records) - start or size != SIZES.get(code, size):
            raise FileError(f"{path}: extension {code:#x} has an invalid size of {size} bytes; the file is damaged")
        if code in SIZES:
            contents.setdefault(code, records[start : start + size])
        else:
            ignored.append(f"{code:#x}")
        start += size
    note_ignored(path, "the extensions", ignored, warn)
    (system,) = VALUE.unpack(contents[COORDINATE_SYSTEM]) if COORDINATE_SYSTEM in contents else (0,)
    if system > len(AXES):
        raise FileError(
            f"{path}: expected a coordinate system of at most {len(AXES)}, found {system}; the file is damaged"
        )
    orbit = OrbitLimits(*LIMITS.unpack(contents[ORBIT])) if ORBIT in contents else None
    return Extensions(Axes.of(AXES[system - 1]) if system else RUB, orbit)
