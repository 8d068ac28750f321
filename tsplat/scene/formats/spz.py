"""SPZ files of Niantic: fixed-point Gaussians, section by section, compressed by gzip (versions 2, 3) or zstd (4).

Sections for N Gaussians: positions 3 x 24 bits, opacities a byte, colors 3 bytes, log scales 3 bytes, rotations (3
bytes xyz in version 2; from 3 on a uint32 with the index of the largest component of xyzw and the others as sign and 9
bits), and the coefficients of the degrees above 0, a byte each, channels innermost. The frame is x right, y up, z back;
what is read is turned by half a turn about x, to x right, y down, z forward as in PLY files.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import torch

from ...config import SH_DEGREE_MAX
from ...errors import FileError, UnsupportedError
from ...support.extras import require
from ..gaussians import Gaussians
from .quantization import Bytes, Floats, logits, whole_quaternions

GZIP, MAGIC = b"\x1f\x8b", b"NGSP"
HEADER = struct.Struct("<4sIIBBBB")
HEADER_4 = struct.Struct("<4sIIBBBBI12x")
STREAM = struct.Struct("<QQ")
ANTIALIASED = 1
"""The header's flag."""
FRACTION_MAX = 24
GZIP_RATIO = 1032
"""How much gzip can compress at most."""
PIECE = 1 << 22
COLOR_SCALE = 0.15


def read_spz(path: str | os.PathLike[str]) -> Gaussians:
    """Reads Gaussians of SPZ versions 2, 3 and 4, turned into the axes of PLY files; extensions are left aside.

    No more is decompressed than the header says there is.

    Raises:
        FileError: The file is not an SPZ, damaged or cut short.
        UnsupportedError: A version that is not implemented.
        MissingExtraError: zstandard is not installed, which version 4 needs.
        OSError: The file cannot be read.
    """
    name = str(path)
    with open(path, "rb") as file:
        content = file.read()
    if content[:2] == GZIP:
        return _read_gzip(name, content)
    if content[:4] != MAGIC or len(content) < HEADER.size:
        raise FileError(f"{name}: not an SPZ file (it begins neither as gzip nor with NGSP)")
    if struct.unpack_from("<I", content, 4)[0] == 4:
        return _read_zstd(name, content)
    return _read_sections(name, io.BytesIO(content), len(content))


def _read_gzip(path: str, content: bytes) -> Gaussians:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return _read_sections(path, file, len(content) * GZIP_RATIO)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileError(f"{path}: the gzip stream is damaged or cut short ({error})") from error


def _read_sections(path: str, file: io.BufferedIOBase, most: int) -> Gaussians:
    """Versions 2 and 3: a header of 16 bytes, and the sections one after the other."""
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise FileError(f"{path}: the file ends within its header")
    magic, version, count, degree, fraction, flags, _ = HEADER.unpack(header)
    if magic != MAGIC:
        raise FileError(f"{path}: not an SPZ file (what is compressed does not begin with NGSP)")
    if version not in (2, 3):
        raise UnsupportedError(f"{path}: found SPZ version {version} in gzip; 2 and 3 are implemented")
    sizes = _sizes(path, version, count, degree, fraction)
    if sum(sizes) > most:
        raise FileError(f"{path}: the header asks for {count} Gaussians, more than can be in the file; it is damaged")
    sections = []
    for size in sizes:
        section = _read_up_to(file, size)
        if len(section) < size:
            raise FileError(f"{path}: the file ends within the sections of its {count} Gaussians; it is cut short")
        sections.append(section)
    file.read(1)  # at the end gzip compares its checksum
    return _decode(sections, version, count, fraction, flags)


def _read_zstd(path: str, content: bytes) -> Gaussians:
    """Version 4: a header of 32 bytes, extensions, a table of sizes, and a zstd stream for each section."""
    require("zstandard")
    import zstandard

    if len(content) < HEADER_4.size:
        raise FileError(f"{path}: the file ends within its header")
    _, version, count, degree, fraction, flags, n_streams, place = HEADER_4.unpack_from(content)
    sizes = _sizes(path, version, count, degree, fraction)
    present = [i for i, size in enumerate(sizes) if size]
    start = place + n_streams * STREAM.size
    if place < HEADER_4.size or start > len(content):
        raise FileError(f"{path}: the file ends before its table of streams; it is damaged or cut short")
    table = [STREAM.unpack_from(content, place + i * STREAM.size) for i in range(n_streams)]
    table = [row for row in table if row[1]]
    if [row[1] for row in table] != [sizes[i] for i in present]:
        raise FileError(f"{path}: the sizes of its streams do not go with its {count} Gaussians; the file is damaged")
    sections = [b""] * len(sizes)
    for i, (packed, size) in zip(present, table):
        if packed > len(content) - start:
            raise FileError(f"{path}: the file ends within stream {i}; it is cut short")
        reader = zstandard.ZstdDecompressor().stream_reader(content[start : start + packed])
        try:
            sections[i] = _read_up_to(reader, size)
        except zstandard.ZstdError as error:
            raise FileError(f"{path}: the zstd stream {i} is damaged ({error})") from error
        if len(sections[i]) < size:
            raise FileError(f"{path}: stream {i} is shorter than its table says; the file is damaged")
        start += packed
    return _decode(sections, version, count, fraction, flags)


def _read_up_to(file: BinaryIO | io.BufferedIOBase, size: int) -> bytes:
    """By pieces, so that room is made for what comes, not for what a header says."""
    pieces = []
    while size and (piece := file.read(min(size, PIECE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _sizes(path: str, version: int, count: int, degree: int, fraction: int) -> list[int]:
    """Bytes of positions, opacities, colors, scales, rotations and coefficients."""
    if degree > SH_DEGREE_MAX:
        raise UnsupportedError(f"{path}: found SH degree {degree}; degrees up to {SH_DEGREE_MAX} are implemented")
    if fraction > FRACTION_MAX:
        raise FileError(f"{path}: positions with {fraction} fractional bits of 24; the file is damaged")
    rotation = 3 if version == 2 else 4
    return [count * size for size in (9, 1, 3, 3, rotation, 3 * ((degree + 1) ** 2 - 1))]


def _decode(sections: Sequence[bytes], version: int, count: int, fraction: int, flags: int) -> Gaussians:
    positions, opacities, colors, scales, rotations, rest = (
        np.frombuffer(section, np.uint8).reshape(count, -1 if section else 0) for section in sections
    )
    axes = np.array([1, -1, -1], np.float32)
    words = np.zeros((count, 3, 4), np.uint8)
    words[..., 1:] = positions.reshape(count, 3, 3)
    # In the upper three bytes of an int32 the sign is where it belongs.
    means = (words.view("<i4")[..., 0] >> 8) * np.float32(2.0**-fraction)
    quats = (
        _quats_2(rotations) if version == 2 else _quats_3(np.ascontiguousarray(rotations).view("<u4").reshape(count))
    )
    quats[:, 2:] *= -1
    coefficients = (rest.reshape(count, -1 if rest.size else 0, 3).astype(np.float32) - 128) / 128
    coefficients *= _signs(math.isqrt(coefficients.shape[1] + 1) - 1)[:, None]
    return Gaussians(
        means=torch.from_numpy(means.astype(np.float32) * axes),
        log_scales=torch.from_numpy(scales.reshape(count, 3).astype(np.float32) / 16 - 10),
        quats=torch.from_numpy(quats),
        opacity_logits=torch.from_numpy(logits(opacities.reshape(count) / 255)),
        sh0=torch.from_numpy(((colors.reshape(count, 1, 3) / 255 - 0.5) / COLOR_SCALE).astype(np.float32)),
        shN=torch.from_numpy(coefficients),
        antialiased=bool(flags & ANTIALIASED),
    )


def _quats_2(rotations: Bytes) -> Floats:
    """[N, 4] wxyz from bytes of xyz, w being positive."""
    others = rotations.reshape(-1, 3).astype(np.float32) / 127.5 - 1
    return whole_quaternions(others, np.zeros(len(others), np.intp))


def _quats_3(words: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Floats:
    """[N, 4] wxyz from words: the largest of xyzw in the top two bits, the others as sign and nine bits."""
    fields = np.stack([words >> 20, words >> 10, words], 1) & 0x3FF
    sizes = (fields & 0x1FF) * (math.sqrt(0.5) / 0x1FF)
    xyzw = whole_quaternions(np.where(fields & 0x200, -sizes, sizes), words >> 30)
    return xyzw[:, [3, 0, 1, 2]]


def _signs(degree: int) -> Floats:
    """[K - 1] What half a turn about x does to each basis function above degree 0: y and z change sign."""
    return np.array(
        [
            (-1) ** (band - abs(order)) * (-1 if order < 0 else 1)
            for band in range(1, degree + 1)
            for order in range(-band, band + 1)
        ],
        np.float32,
    )
