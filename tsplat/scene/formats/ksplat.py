"""Reads ``.ksplat`` files of GaussianSplats3D (mkkellogg/GaussianSplats3D), version 0.1, compression levels 0 to 2.

A file has a header of 4,096 bytes, section headers of 1,024 bytes each, and the sections. A section has the lengths of
partially filled buckets, the centers of buckets, and one record per Gaussian. A record has the position, scales after
exp, the rotation wxyz, RGBA as bytes (opacity after the sigmoid) and the SH coefficients of degrees 1 and 2, each
degree channel by channel. At level 0, all values are float32. At levels 1 and 2, positions are 16-bit offsets from the
center of their bucket, and scales and rotations have half precision. SH coefficients have half precision at level 1,
and are bytes between two bounds of the header at level 2.
"""

import dataclasses
import math
import os
import struct
import warnings
from typing import BinaryIO

import numpy as np

from ...errors import FileError, UnsupportedError
from ...support.reading import open_file
from ..gaussians import FLAT, Gaussians
from ..quantization import Floats, gaussians_from_activated, sh0_from_colors
from .binary_records import read_records
from .foreign import Warn
from .model_memory import check_model_memory

HEADER = struct.Struct("<BB2xIIIIH2x3fff")
"""Major and minor version; maximum and used number of sections; maximum and used number of Gaussians; compression
level; center of the scene; bounds of the SH coefficients at level 2, where 0 means -1.5 and 1.5."""

SECTION = struct.Struct("<IIIIfH2xIIIIH")
"""Used and maximum number of Gaussians; size and number of buckets; edge length of a bucket; bytes per bucket; range of
offsets; bytes of the section; number of full and of partially filled buckets; SH degree."""

HEADER_BYTES, SECTION_BYTES, BUCKET_BYTES = 4096, 1024, 12
LEVELS = (("<f4", "<f4", "<f4"), ("<u2", "<f2", "<f2"), ("<u2", "<f2", "u1"))
"""By compression level: types of positions, of scales and rotations, and of SH coefficients."""

RANGE, SH_BOUND = 32767, 1.5
DEGREE_MAX = 2


@dataclasses.dataclass(frozen=True)
class _Section:
    """A section: its offset in the file, and the fields of its header."""

    start: int
    count: int
    bucket_size: int
    n_buckets: int
    n_full: int
    n_partial: int
    edge: float
    offset_range: int
    degree: int
    record: np.dtype[np.void]

    @property
    def records_start(self) -> int:
        """Offset of the first record."""
        return self.start + 4 * self.n_partial + BUCKET_BYTES * self.n_buckets

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.records_start + self.count * self.record.itemsize


def read_ksplat(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads a ``.ksplat`` file. The SH degree of the model is the highest degree of its sections, 0 to 2.

    Args:
        path: Path of the file.
        warn: Called with notes about negative scales, which make Gaussians invalid, and about data after the last
            section.

    Raises:
        FileError: The file is damaged or truncated, or most scales are negative and so look like logarithms.
        UnsupportedError: The file has another version of the format, or a compression level or SH degree above 2.
        OSError: The file cannot be read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(HEADER.size)
        if size < HEADER_BYTES or len(content) < HEADER.size:
            raise FileError(f"{path}: expected a header of {HEADER_BYTES:,} bytes, found {size:,} bytes in all")
        major, minor, n_sections, _, count_max, count, level, *_, low, high = HEADER.unpack(content)
        if (major, minor) != (0, 1):
            raise UnsupportedError(f"{path}: expected .ksplat of version 0.1, found {major}.{minor}")
        if level >= len(LEVELS):
            raise UnsupportedError(f"{path}: expected a compression level from 0 to 2, found {level}")
        low, high = low or -SH_BOUND, high or SH_BOUND
        if not (math.isfinite(low) and math.isfinite(high)):
            raise FileError(f"{path}: the bounds of SH coefficients, {low} and {high}, are not finite; it is damaged")
        sections = _read_sections(str(path), file, size, n_sections, level)
        total = sum(section.count for section in sections)
        if total not in (count_max, count):
            raise FileError(f"{path}: expected {count:,} Gaussians, found {total:,} in its sections; it is damaged")
        degree = max((section.degree for section in sections), default=0)
        check_model_memory(str(path), total, degree)
        parts = [_read_section(str(path), file, section, level, (low, high)) for section in sections]
    if size > (end := sections[-1].end if sections else HEADER_BYTES):
        warn(f"{path}: ignored {size - end:,} bytes after the last section")
    empty = (np.zeros((0, *shape), np.float32) for shape in ((3,), (3,), (4,), (4,), (8, 3)))
    means, scales, quats, rgba, shN = (np.concatenate(values) for values in zip(empty, *parts))
    sh = np.concatenate([sh0_from_colors(rgba[:, None, :3]), shN[:, : (degree + 1) ** 2 - 1]], 1)
    flat = FLAT if level == 0 else math.log(np.float16(math.exp(FLAT)))
    return gaussians_from_activated(str(path), means, scales, quats, rgba[:, 3], sh, warn, flat)


def _read_sections(path: str, file: BinaryIO, size: int, n_sections: int, level: int) -> list[_Section]:
    """Reads the section headers. Raises FileError if the file is too small for the sections."""
    start = HEADER_BYTES + n_sections * SECTION_BYTES
    if start > size:
        raise FileError(f"{path}: its {n_sections:,} headers of sections exceed {size:,} bytes; it is damaged")
    sections: list[_Section] = []
    for i in range(n_sections):
        file.seek(HEADER_BYTES + i * SECTION_BYTES)
        _, count, bucket_size, n_buckets, edge, bucket_bytes, offset_range, _, n_full, n_partial, degree = (
            SECTION.unpack(file.read(SECTION.size))
        )
        where = f"{path}: section {i}"
        if degree > DEGREE_MAX:
            raise UnsupportedError(f"{where}: expected an SH degree from 0 to {DEGREE_MAX}, found {degree}")
        if n_buckets and bucket_bytes != BUCKET_BYTES:
            raise FileError(
                f"{where}: expected {BUCKET_BYTES:,} bytes for a bucket, found {bucket_bytes}; it is damaged"
            )
        if n_full + n_partial > n_buckets or not math.isfinite(edge):
            raise FileError(
                f"{where}: found {n_full:,} full and {n_partial:,} other buckets of {n_buckets:,}, whose edge is "
                f"{edge}; it is damaged"
            )
        mean_type, shape_type, sh_type = LEVELS[level]
        fields = [("means", mean_type, 3), ("scales", shape_type, 3), ("quats", shape_type, 4), ("rgba", "u1", 4)]
        record = np.dtype([*fields, ("shN", sh_type, 3 * ((degree + 1) ** 2 - 1))])
        section = _Section(
            start, count, bucket_size, n_buckets, n_full, n_partial, edge, offset_range or RANGE, degree, record
        )
        if section.end > size:
            raise FileError(
                f"{where}: expected {section.end - start:,} bytes from byte {start:,} on, found "
                f"{max(size - start, 0):,}; the file is cut short or damaged"
            )
        sections.append(section)
        start = section.end
    return sections


def _read_section(
    path: str, file: BinaryIO, section: _Section, level: int, bounds: tuple[float, float]
) -> tuple[Floats, ...]:
    """Returns means, scales, quats, RGBA in [0, 1] and SH coefficients [N, 8, 3] of a section's Gaussians."""
    file.seek(section.start)
    partial = np.fromfile(file, "<u4", section.n_partial)
    centers = np.fromfile(file, "<f4", 3 * section.n_buckets).reshape(-1, 3)
    file.seek(section.records_start)
    records = read_records(file, path, section.record, section.count)
    means: Floats = records["means"].astype(np.float32)
    if level > 0:
        lengths = np.concatenate([np.full(section.n_full, section.bucket_size, np.int64), partial.astype(np.int64)])
        buckets = np.searchsorted(lengths.cumsum(), np.arange(section.count), side="right")
        if section.count and buckets[-1] >= len(lengths):
            raise FileError(
                f"{path}: its buckets hold {int(lengths.sum()):,} Gaussians, expected {section.count:,}; it is damaged"
            )
        factor = section.edge / 2 / section.offset_range
        offsets = (records["means"].astype(np.float64) - section.offset_range) * factor
        with np.errstate(over="ignore", invalid="ignore"):
            means = (offsets + centers[buckets]).astype(np.float32)
    shN = records["shN"].astype(np.float32)
    if level == 2:
        shN = np.float32(bounds[0]) + shN / np.float32(255) * np.float32(bounds[1] - bounds[0])
    # Each degree is stored channel by channel.
    coefficients = np.zeros((section.count, (DEGREE_MAX + 1) ** 2 - 1, 3), np.float32)
    for degree in range(1, section.degree + 1):
        first, last = degree**2 - 1, (degree + 1) ** 2 - 1
        band = shN[:, 3 * first : 3 * last].reshape(section.count, 3, last - first)
        coefficients[:, first:last] = band.swapaxes(1, 2)
    scales, quats, rgba = (records[name].astype(np.float32) for name in ("scales", "quats", "rgba"))
    return means, scales, quats, rgba / np.float32(255), coefficients
