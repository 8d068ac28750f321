"""Reads point clouds of scanners block by block: LAS and LAZ with laspy, and E57 with pye57 (extra ``points``)."""

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

HEADER, RECORD_BYTES = struct.Struct("<94xHII"), 54
"""LAS header fields (header size, start of the points, number of variable-length records), and the minimum size of such
a record."""

LASZIP, LASZIP_FIELD = struct.Struct("<32xH"), struct.Struct("<HHH")
"""LAZ record about the compression: the number of fields of a point; and type, size and version of a field."""

CHUNK_TABLE = struct.Struct("<II")
"""Version and number of chunks, before their compressed sizes."""

LAYERS: dict[int, int | None] = {10: 9, 11: 1, 12: 2, 13: 1, 14: None}
"""Type of a LAS 1.4 field -> number of compressed layers; None for one layer per byte."""

CHUNK_BYTES_MAX = 1 << 30
"""Maximum size of a LAZ chunk in bytes; most chunks have 50,000 points."""

BLOCK_BYTES_MAX = 1 << 10
"""Maximum size of a LAS point record in bytes."""

Blocks = Iterator[tuple[NDArray[np.float64], NDArray[Any] | None]]
"""Yields positions [B, 3] fp64 and colors [B, 3], or None if there are no colors, block by block."""


class PointBlocks(NamedTuple):
    """The points of a file.

    Attributes:
        n_points: Number of points according to the header.
        blocks: Function that yields every k-th point.
        largest: Color value that represents 1; None to derive it from the largest value: 255 or 65,535.
    """

    n_points: int
    blocks: Callable[[int], Blocks]
    largest: float | None


@contextlib.contextmanager
def open_scan(path: str | os.PathLike[str]) -> Iterator[PointBlocks]:
    """Opens a LAS, LAZ or E57 file.

    Raises:
        FileError: The file is damaged or truncated; may also be raised while its blocks are read.
        UnsupportedError: The coordinates of an E57 scan are neither Cartesian nor spherical.
        MissingExtraError: laspy and lazrs, or pye57, is not installed.
        OSError: The file cannot be read.
    """
    path = Path(path)
    is_e57 = path.suffix.lower() == ".e57"
    require(*(["pye57"] if is_e57 else ["laspy", "lazrs"]))
    open_file(path).close()  # rejects pipes, and names unreadable files
    try:
        with _open_e57(path) if is_e57 else _open_las(path) as points:
            yield points
    except (FileError, UnsupportedError, MemoryError, OSError):
        raise
    except BaseException as error:  # the libraries raise errors of many types for damaged files
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # a Rust panic
            raise
        reason = " ".join(str(error).split())[:160]
        name = path.suffix[1:].upper()
        raise FileError(f"{path}: cannot be read as {name} ({reason or type(error).__name__})") from error


@contextlib.contextmanager
def _open_las(path: Path) -> Iterator[PointBlocks]:
    import laspy

    _check_records(path)
    with laspy.open(path, read_evlrs=False) as file:  # extended records may announce any size
        header = file.header
        if header.point_format.size > BLOCK_BYTES_MAX:
            raise FileError(f"{path}: expected points of at most {BLOCK_BYTES_MAX:,} bytes; it is damaged")
        is_compressed = path.suffix.lower() == ".laz" or header.are_points_compressed
        size = header.offset_to_point_data + header.point_count * header.point_format.size
        if not is_compressed and size > path.stat().st_size:
            raise FileError(f"{path}: expected {header.point_count:,} points, found fewer; it is cut short or damaged")
        if is_compressed:
            _check_chunks(path, header)
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
    """Raises FileError if the variable-length records that a LAS header announces do not fit into the file."""
    with open_file(path) as file:
        size, header = os.fstat(file.fileno()).st_size, file.read(HEADER.size)
    if header[:4] != b"LASF" or len(header) < HEADER.size:
        raise FileError(f"{path}: expected LASF at its start, found {header[:4]!a}; not a LAS file")
    header_size, points_start, n_records = HEADER.unpack(header)
    if RECORD_BYTES * n_records > points_start - header_size or points_start > size:
        raise FileError(
            f"{path}: its header says that it has {n_records:,} records before its points, which start at byte "
            f"{points_start:,} of {size:,}; it is cut short or damaged"
        )


def _check_chunks(path: Path, header: Any) -> None:
    """Raises FileError if the chunks of a LAZ file, or the layers in them, do not fit into the file.

    lazrs allocates as much as they announce, and ends the process if the allocation fails.
    """
    import lazrs

    damaged = FileError(f"{path}: its chunks do not fit into it; it is cut short or damaged")
    record = header.vlrs.get("LasZipVlr")[0].record_data
    (n_fields,) = LASZIP.unpack_from(record)
    fields = [LASZIP_FIELD.unpack_from(record, LASZIP.size + LASZIP_FIELD.size * i) for i in range(n_fields)]
    point_size = sum(size for _, size, _ in fields)
    n_layers = sum(size if (n := LAYERS[type_]) is None else n for type_, size, _ in fields if type_ in LAYERS)
    start, size = header.offset_to_point_data, path.stat().st_size
    with open_file(path) as file:
        file.seek(start)
        (table,) = struct.unpack("<q", file.read(8))
        if table == -1:  # the writer could not seek; the table is at the end
            file.seek(size - 8)
            (table,) = struct.unpack("<q", file.read(8))
        if not start + 8 <= table <= size - CHUNK_TABLE.size:
            raise damaged
        file.seek(table)
        _, n_chunks = CHUNK_TABLE.unpack(file.read(CHUNK_TABLE.size))
        if n_chunks * point_size > table - start:
            raise damaged
        file.seek(start)
        position = start + 8
        layers = struct.Struct(f"<{point_size}x4x{n_layers}I")  # after a first point, and the number of points
        for n_points, n_bytes in lazrs.read_chunk_table(file, lazrs.LazVlr(record)):
            if not 0 < n_points * point_size <= CHUNK_BYTES_MAX:
                raise damaged
            if n_bytes > table - position or (n_layers and n_bytes < layers.size):
                raise damaged
            if n_layers:
                file.seek(position)
                if sum(layers.unpack(file.read(layers.size))) > n_bytes - layers.size:
                    raise damaged
            position += n_bytes


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
    """Yields the valid points among every k-th point of a scan, in the frame of the file; `first` is the index of the
    scan's first point in the file."""
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
