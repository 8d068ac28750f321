"""Point clouds of scanners: LAS and LAZ by laspy, and E57 by pye57 (extra ``points``), block by block."""

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import FileError, UnsupportedError
from ...support.extras import require
from ...support.reading import check_memory, open_file

SUFFIXES = (".las", ".laz", ".e57")
BLOCK = 1 << 20
"""Number of points that are read at a time."""

HEADER, RECORD_BYTES = struct.Struct("<24xBB68xHII"), 54
"""Of LAS: version, size of the header, start of the points, and number of records of variable length, with their
minimum size."""

EXTENDED, EXTENDED_BYTES = struct.Struct("<243xI"), 60
"""Of LAS 1.4: number of such records after the points, with their minimum size."""

BLOCK_BYTES_MAX = 1 << 10
"""Largest record of a LAS point in bytes."""


Blocks = Iterator[tuple[NDArray[np.float64], NDArray[Any] | None]]
"""Positions [B, 3] fp64 and colors [B, 3], or None for points without, of some points at a time."""


class PointBlocks(NamedTuple):
    """The points of a file.

    Attributes:
        n_points: Their number, as the header says.
        blocks: Returns one of every k of them.
        largest: The value of a color that is 1; None to take it from the largest value: 255, or 65,535.
    """

    n_points: int
    blocks: Callable[[int], Blocks]
    largest: float | None


@contextlib.contextmanager
def open_scan(path: str | os.PathLike[str]) -> Iterator[PointBlocks]:
    """Opens a LAS, LAZ or E57 file.

    Raises:
        FileError: The file is damaged or cut short, also while its blocks are read.
        UnsupportedError: The coordinates of an E57 scan are neither Cartesian nor spherical.
        MissingExtraError: laspy and lazrs, or pye57, is not installed.
        OSError: The file cannot be read.
    """
    path = Path(path)
    is_e57 = path.suffix.lower() == ".e57"
    require(*(["pye57"] if is_e57 else ["laspy", "lazrs"]))
    open_file(path).close()  # refuses pipes, and names what cannot be read
    try:
        with _open_e57(path) if is_e57 else _open_las(path) as points:
            yield points
    except (FileError, UnsupportedError, MemoryError, OSError):
        raise
    except Exception as error:  # the libraries raise errors of many types for damaged files
        reason = " ".join(str(error).split())[:160]
        name = path.suffix[1:].upper()
        raise FileError(f"{path}: cannot be read as {name} ({reason or type(error).__name__})") from error


@contextlib.contextmanager
def _open_las(path: Path) -> Iterator[PointBlocks]:
    import laspy

    _check_records(path)
    with laspy.open(path) as file:
        header = file.header
        if header.point_format.size > BLOCK_BYTES_MAX:
            raise FileError(f"{path}: expected points of at most {BLOCK_BYTES_MAX} bytes; it is damaged")
        is_compressed = path.suffix.lower() == ".laz" or header.are_points_compressed
        size = header.offset_to_point_data + header.point_count * header.point_format.size
        if not is_compressed and size > path.stat().st_size:
            raise FileError(f"{path}: expected {header.point_count:,} points, found fewer; it is cut short or damaged")
        has_colors = "red" in header.point_format.dimension_names

        def blocks(every: int) -> Blocks:
            n = 0
            for block in file.chunk_iterator(BLOCK):
                chosen = slice(-n % every, None, every)
                n += len(block)
                block = block[chosen]
                colors = np.stack([block.red, block.green, block.blue], -1) if has_colors else None
                yield np.stack([block.x, block.y, block.z], -1).astype(np.float64), colors
            if n != header.point_count:
                raise FileError(f"{path}: expected {header.point_count:,} points, found {n:,}; it is cut short")

        yield PointBlocks(header.point_count, blocks, None)


def _check_records(path: Path) -> None:
    """Raises FileError unless the records of variable length that a LAS header announces fit, which laspy reads."""
    with open_file(path) as file:
        size, header = os.fstat(file.fileno()).st_size, file.read(EXTENDED.size)
    if header[:4] != b"LASF" or len(header) < HEADER.size:
        raise FileError(f"{path}: expected LASF at its start, found {header[:4]!a}; not a LAS file")
    major, minor, header_size, points_start, n_records = HEADER.unpack(header[: HEADER.size])
    n_extended = EXTENDED.unpack(header)[-1] if (major, minor) >= (1, 4) and len(header) == EXTENDED.size else 0
    if RECORD_BYTES * n_records > points_start - header_size or max(points_start, EXTENDED_BYTES * n_extended) > size:
        raise FileError(
            f"{path}: its header says that it has {n_records:,} and {n_extended:,} records before and after points, "
            f"which start at byte {points_start:,} of {size:,}; it is cut short or damaged"
        )


@contextlib.contextmanager
def _open_e57(path: Path) -> Iterator[PointBlocks]:
    import pye57

    file = pye57.E57(str(path))
    try:
        headers = [file.get_header(i) for i in range(file.scan_count)]
        count = sum(header.point_count for header in headers)
        for i, header in enumerate(headers):
            if not {"cartesianX", "sphericalRange"} & {*header.point_fields}:
                raise UnsupportedError(f"{path}: scan {i}: expected Cartesian or spherical coordinates, found neither")

        def blocks(every: int) -> Blocks:
            n = 0
            for header in headers:
                yield from _scan_blocks(file, header, n, every)
                n += header.point_count

        yield PointBlocks(count, blocks, 255.0)
    finally:
        file.close()


def _scan_blocks(file: Any, header: Any, first: int, every: int) -> Blocks:
    """Yields one of every k points of a scan, whose first one has an index in the file, in the frame of the file, but
    for invalid ones."""
    fields = {*header.point_fields}
    is_cartesian = "cartesianX" in fields
    kind, ends = ("cartesian", ("X", "Y", "Z")) if is_cartesian else ("spherical", ("Range", "Azimuth", "Elevation"))
    axes, invalid = [kind + end for end in ends], f"{kind}InvalidState"
    colors = ["colorRed", "colorGreen", "colorBlue"]
    has_colors = fields.issuperset(colors)
    names = [*axes, *(colors if has_colors else []), *([invalid] if invalid in fields else [])]
    capacity = min(BLOCK, max(header.point_count, 1))
    check_memory("a block of points", 64 * capacity)
    data, buffers = file.make_buffers(names, capacity)
    reader = header.points.reader(buffers)
    while n := reader.read():
        values = {name: array[-first % every : n : every].copy() for name, array in data.items()}
        first += n
        xyz = np.stack([values[name] for name in axes], -1).astype(np.float64)
        if not is_cartesian:
            distance, azimuth, elevation = xyz.T
            flat = distance * np.cos(elevation)
            xyz = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), distance * np.sin(elevation)], -1)
        if header.has_pose():
            xyz = file.to_global(xyz, header.rotation, header.translation)
        valid = values[invalid] == 0 if invalid in values else slice(None)
        yield xyz[valid], np.stack([values[name] for name in colors], -1)[valid] if has_colors else None
