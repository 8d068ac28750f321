"""Reads Niantic's SPZ: fixed-point Gaussians in sections, compressed with gzip (versions 2 and 3) or zstd (version 4).

The sections are positions (3 x 24 bits per Gaussian), opacities (1 byte), colors (3 bytes), log scales (3 bytes),
rotations, and SH coefficients above degree 0 (1 byte each, channels innermost). Rotations are 3 bytes xyz in version 2;
from version 3 on, they are a uint32 with the index of the largest component of xyzw and the others as a sign and 9
bits.

The axes of the format are x right, y up, z backward, unless an extension names others. The reader converts Gaussians to
x right, y down, z forward, as in PLY files, usually by a rotation by 180 degrees about x.
"""

import gzip
import io
import math
import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from ...config import SH_DEGREE_MAX
from ...errors import FileError, UnsupportedError
from ...support.extras import require
from ...support.reading import read_file
from ..gaussians import Gaussians
from ..quantization import Floats, gaussians_from_arrays, quats_from_smallest_three
from ..rotation import flip_axes, rotate_gaussians
from .foreign import Warn, note_ignored
from .model_memory import check_model_memory
from .spz_extensions import EXTENSIONS_MAX, QUARTER_TURN, RUB, Axes, parse_extensions

GZIP, MAGIC = b"\x1f\x8b", b"NGSP"
HEADER = struct.Struct("<4sIIBBBB")
HEADER_4 = struct.Struct("<4sIIBBBBI12x")
STREAM = struct.Struct("<QQ")
ANTIALIASED, EXTENSIONS, LEVELS = 0x01, 0x02, 0x80
"""Bits of the flags in the header. LEVELS (Spark) marks a tree of several levels of detail."""

FRACTION_MAX = 24
"""Maximum number of fractional bits of positions."""

GZIP_RATIO_MAX = 1032
"""Maximum compression ratio of gzip."""

ZSTD_RATIO_MAX = 1 << 15
"""Maximum compression ratio of zstd: blocks of 128 KiB in 4 bytes."""

PIECE = 1 << 22
"""Number of bytes that are decompressed at a time."""

COLOR_SCALE = 0.15


def read_spz(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads SPZ versions 2, 3 and 4, converted to the axes of PLY files.

    It decompresses at most as much data as the header announces, plus 1 MiB of extensions.

    Args:
        path: Path of the file.
        warn: Called with notes about ignored flags, extensions and data.

    Raises:
        FileError: The file is not an SPZ file, is damaged, or is truncated.
        UnsupportedError: The version is not supported, or the file has levels of detail.
        MissingExtraError: The file has version 4, and zstandard is not installed.
        OSError: The file cannot be read.
    """
    name = str(path)
    content = read_file(path)
    if content[:2] == GZIP:
        return _read_gzip(name, content, warn)
    if content[:4] != MAGIC or len(content) < HEADER.size:
        raise FileError(f"{name}: not an SPZ file; expected gzip data or NGSP at its beginning")
    if struct.unpack_from("<I", content, 4)[0] == 4:
        return _read_zstd(name, content, warn)
    return _read_sections(name, io.BytesIO(content), len(content), warn)


def _read_gzip(path: str, content: bytes, warn: Warn) -> Gaussians:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return _read_sections(path, file, len(content) * GZIP_RATIO_MAX, warn)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileError(f"{path}: the gzip stream is damaged or cut short ({error})") from error


def _read_sections(path: str, file: io.BufferedIOBase, max_bytes: int, warn: Warn) -> Gaussians:
    """Reads versions 2 and 3: a header of 16 bytes, the sections, and extensions.

    Args:
        path: Path of the file, for messages.
        file: Decompressed data.
        max_bytes: Upper bound of the size of the data.
        warn: As for :func:`read_spz`.
    """
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise FileError(f"{path}: the file ends within its header")
    magic, version, count, degree, fraction, flags, _ = HEADER.unpack(header)
    if magic != MAGIC:
        raise FileError(f"{path}: not an SPZ file; expected NGSP at the beginning of the compressed data")
    if version not in (2, 3):
        raise UnsupportedError(f"{path}: expected SPZ version 2 or 3 in gzip, found version {version}")
    _check_flags(path, flags, warn)
    sizes = _sizes(path, version, count, degree, fraction)
    if sum(sizes) > max_bytes:
        raise FileError(f"{path}: the header announces {count:,} Gaussians, more than the file can hold; it is damaged")
    check_model_memory(path, count, degree)
    sections = []
    for size in sizes:
        section = _read_up_to(file, size)
        if len(section) < size:
            raise FileError(
                f"{path}: expected {count:,} Gaussians, but the file ends within the sections; it is cut short"
            )
        sections.append(section)
    rest = _read_up_to(file, EXTENSIONS_MAX + 1)  # at the end, gzip verifies its checksum
    if len(rest) > EXTENSIONS_MAX:
        raise FileError(f"{path}: expected {count:,} Gaussians, but more data follows them; the file is damaged")
    axes = parse_extensions(path, rest, warn) if flags & EXTENSIONS else RUB
    if rest and not flags & EXTENSIONS:
        warn(f"{path}: ignored {len(rest):,} bytes after the Gaussians")
    return _decode(sections, version, count, degree, fraction, flags, axes)


def _read_zstd(path: str, content: bytes, warn: Warn) -> Gaussians:
    """Reads version 4: a header of 32 bytes, extensions, a table of sizes, and one zstd stream per section."""
    require("zstandard")
    import zstandard

    if len(content) < HEADER_4.size:
        raise FileError(f"{path}: the file ends within its header")
    _, version, count, degree, fraction, flags, n_streams, table_start = HEADER_4.unpack_from(content)
    _check_flags(path, flags, warn)
    sizes = _sizes(path, version, count, degree, fraction)
    present = [i for i, size in enumerate(sizes) if size]
    start = table_start + n_streams * STREAM.size
    if table_start < HEADER_4.size or start > len(content):
        raise FileError(f"{path}: the file ends within its table of streams; it is damaged or cut short")
    records = content[HEADER_4.size : table_start] if flags & EXTENSIONS else b""
    axes = parse_extensions(path, records, warn)
    table = [STREAM.unpack_from(content, table_start + i * STREAM.size) for i in range(n_streams)]
    table = [(packed, size) for packed, size in table if size]
    if [size for _, size in table] != [sizes[i] for i in present]:
        raise FileError(f"{path}: the sizes of the streams do not match {count:,} Gaussians; the file is damaged")
    check_model_memory(path, count, degree)
    sections = [b""] * len(sizes)
    for i, (packed, size) in zip(present, table):
        if packed > len(content) - start:
            raise FileError(f"{path}: the file ends within stream {i}; it is cut short")
        if size > packed * ZSTD_RATIO_MAX:
            raise FileError(f"{path}: stream {i} cannot hold {size:,} bytes; the file is damaged")
        reader = zstandard.ZstdDecompressor().stream_reader(content[start : start + packed])
        try:
            sections[i] = _read_up_to(reader, size)
            longer = bool(reader.read(1))  # at the end, zstd verifies its checksum
        except zstandard.ZstdError as error:
            raise FileError(f"{path}: the zstd stream {i} is damaged ({error})") from error
        if len(sections[i]) < size or longer:
            word = "longer" if longer else "shorter"
            raise FileError(f"{path}: stream {i} is {word} than its size in the table; the file is damaged")
        start += packed
    return _decode(sections, version, count, degree, fraction, flags, axes)


def _check_flags(path: str, flags: int, warn: Warn) -> None:
    """Raises :class:`UnsupportedError` for levels of detail, and calls `warn` with unknown flags."""
    if flags & LEVELS:
        raise UnsupportedError(
            f"{path}: levels of detail (Spark's flag 0x80) are not implemented; export it without them"
        )
    unknown = flags & ~(ANTIALIASED | EXTENSIONS)
    note_ignored(path, "the flags", [f"{1 << i:#04x}" for i in range(8) if unknown >> i & 1], warn)


def _read_up_to(file: BinaryIO | io.BufferedIOBase, size: int) -> bytes:
    """Reads at most `size` bytes in pieces, so that memory is allocated only for data that exists."""
    pieces = []
    while size and (piece := file.read(min(size, PIECE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _sizes(path: str, version: int, count: int, degree: int, fraction: int) -> list[int]:
    """Returns the sizes in bytes of positions, opacities, colors, scales, rotations and SH coefficients."""
    if degree > SH_DEGREE_MAX:
        raise UnsupportedError(f"{path}: expected an SH degree of at most {SH_DEGREE_MAX}, found SH degree {degree}")
    if fraction > FRACTION_MAX:
        raise FileError(
            f"{path}: positions: expected at most {FRACTION_MAX} fractional bits, found {fraction}; the file is damaged"
        )
    rotation = 3 if version == 2 else 4
    return [count * size for size in (9, 1, 3, 3, rotation, 3 * ((degree + 1) ** 2 - 1))]


def _decode(
    sections: Sequence[bytes], version: int, count: int, degree: int, fraction: int, flags: int, axes: Axes
) -> Gaussians:
    """Decodes the sections, and converts the Gaussians to the axes of PLY files."""
    bytes_of = [np.frombuffer(section, np.uint8).reshape(count, -1 if section else 0) for section in sections]
    positions, opacities, colors, scales, rotations, rest = bytes_of
    words = np.zeros((count, 3, 4), np.uint8)
    words[..., 1:] = positions.reshape(count, 3, 3)
    # 24-bit integers in the upper three bytes of an int32 keep their sign.
    means = (words.view("<i4")[..., 0] >> 8) * np.float32(2.0**-fraction)
    if version == 2:  # xyz as bytes; w is positive and omitted
        others = rotations.reshape(count, 3).astype(np.float32) / 127.5 - 1
        quats = quats_from_smallest_three(others, np.zeros(count, np.intp))
    else:
        quats = decode_quats(np.ascontiguousarray(rotations).view("<u4").reshape(count))
    coefficients = (rest.reshape(count, (degree + 1) ** 2 - 1, 3).astype(np.float32) - 128) / 128
    log_scales = scales.reshape(count, 3).astype(np.float32) / 16 - 10
    sh0 = (colors.reshape(count, 1, 3) / 255 - 0.5) / COLOR_SCALE
    alphas, antialiased = opacities.reshape(count) / 255, bool(flags & ANTIALIASED)
    gaussians = gaussians_from_arrays(means, log_scales, quats, alphas, sh0, coefficients, antialiased)
    gaussians = flip_axes(gaussians.as_surfels_if_flat(-10.0), axes[:3])
    return rotate_gaussians(gaussians, QUARTER_TURN) if axes.turned else gaussians


def decode_quats(words: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Floats:
    """Decodes rotations of version 3: index of the largest of xyzw in the top two bits. [N, 4] wxyz"""
    fields = np.stack([words >> 20, words >> 10, words], 1) & 0x3FF
    sizes = (fields & 0x1FF) * (math.sqrt(0.5) / 0x1FF)
    xyzw = quats_from_smallest_three(np.where(fields & 0x200, -sizes, sizes), words >> 30)
    return xyzw[:, [3, 0, 1, 2]]
