"""Writes SPZ 3 and 4; :mod:`~tsplat.scene.formats.spz` describes and reads the format."""

import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...support.extras import require
from ...support.files import atomic_write
from ..gaussians import Gaussians
from ..model_rows import MeanRounding, Rows, as_rows, morton_sorted
from ..quantization import Bytes, Floats, Rounding, check_degree, rotation_codes, valid_bounds
from ..rotation import sh_signs
from .spz import ANTIALIASED, COLOR_SCALE, FRACTION_MAX, HEADER, HEADER_4, MAGIC, STREAM, decode_quats
from .spz_extensions import RUB

GZIP_LEVEL = 6
"""Compression level. Level 9 takes seven times as long for files that are 3 % smaller."""

ZSTD_LEVEL = 12

FRACTION = 12
"""Number of fractional bits of positions if the largest coordinate is from 1 to 2,047."""

POSITION_MAX = 1 << 23
"""Positions are integers from -POSITION_MAX to POSITION_MAX - 1, divided by 2^(fractional bits)."""

DEGREES_MAX = {3: 3, 4: 4}
"""Version -> maximum SH degree."""

CLAMPED = ("log scales outside [-10, 5.94]", "colors outside [-0.44, 1.44]", "SH coefficients outside [-1, 1]")

SIGNS = RUB[:3]
"""Signs of x, y and z that convert the axes of a PLY to right, up, backward."""

ROTATION_MAX = 511
"""Largest level of the components of a rotation."""


def write_spz(path: str | os.PathLike[str], gaussians: Gaussians | Rows, *, version: int = 3) -> list[str]:
    """Writes SPZ atomically, in Morton order, rotated to the axes of the format.

    Largest errors of values that are not clamped:

    - means: 2^-13 world units. If the largest coordinate is 2,048 or more, errors are larger: 2^-24 of the next power
      of two. If it is below 0.5, they are smaller: 2^-13 of the next power of two, but not below 2^-25.
    - log scales: 1/32; clamped to [-10, 5.9375].
    - rotations: an angle of 0.0048 (0.27 degrees).
    - opacities: 1/510.
    - sh0: 1/76.5, which is 0.0037 of a color in [0, 1]; clamped to [-10/3, 10/3].
    - shN: 1/256, and 1/128 for values near 1 or -1, to which they are clamped. All 8 bits are used; Niantic's encoder
      rounds to 5 bits for degree 1 and 4 bits above.

    Args:
        path: File to write.
        gaussians: Gaussians of SH degree 0 to 3, or 0 to 4 in version 4; or rows of a model that is larger than memory.
        version: 3 (gzip) or 4 (zstd).

    Returns:
        Losses as in :func:`write_model`.

    Raises:
        UnsupportedError: The version does not support the SH degree.
        ArgumentError: A Gaussian is invalid, a coordinate is 2^23 or more in magnitude, or the version is neither 3 nor
            4.
        MissingExtraError: The version is 4, and zstandard is not installed.
        OSError: The file cannot be written.
    """
    if version not in DEGREES_MAX:
        raise ArgumentError(f"version: expected 3 or 4, found {version!r}")
    if version == 4:
        require("zstandard")
    rows = as_rows(gaussians)
    check_degree(rows.properties, f"SPZ {version}", DEGREES_MAX[version])
    bounds = valid_bounds(rows)
    fraction = _fractional_bits(bounds)
    flags = ANTIALIASED if rows.properties.antialiased else 0
    fields = (MAGIC, version, rows.count, rows.properties.sh_degree, fraction, flags)
    sections = _sections(fraction, rows.properties.sh_degree)
    lost: dict[str, None] = {}
    with morton_sorted(rows, mean_rounding(bounds), bounds, Path(path).parent) as ordered, atomic_write(path) as file:
        if version == 4:
            # Readers expect one stream per section.
            file.write(HEADER_4.pack(*fields, len(sections), HEADER_4.size))
            table = file.tell()
            file.write(bytes(len(sections) * STREAM.size))
            sizes = [_zstd(file, _encode(ordered, section), rows.count * section.size) for section in sections]
            file.seek(table)
            file.write(b"".join(STREAM.pack(*both) for both in sizes))
        else:
            packer = zlib.compressobj(GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
            file.write(packer.compress(HEADER.pack(*fields, 0)))
            for section in sections:
                for part in _encode(ordered, section):
                    file.write(packer.compress(part))
            file.write(packer.flush())
        for chunk in rows.chunks():
            lost |= dict.fromkeys(_clamped(chunk))
    names = [name for name in CLAMPED if name in lost]
    return ["positions rounded to 24 bits, rotations to 10, other values to 8", *names]


def _clamped(gaussians: Gaussians) -> list[str]:
    """Describes the values of Gaussians that SPZ clamps, such as "SH coefficients outside [-1, 1]"."""
    read_scales = gaussians.log_scales[:, : gaussians.n_scales]
    ranges = [
        (read_scales, -10 - 1 / 32, 5.9375 + 1 / 32),
        (gaussians.sh0, -0.5 / COLOR_SCALE, 0.5 / COLOR_SCALE),
        (gaussians.shN, -1.0, 1.0),
    ]
    are_clamped = [bool(((values < low) | (values > high)).any()) for values, low, high in ranges]
    return [name for name, is_clamped in zip(CLAMPED, are_clamped) if is_clamped]


def _zstd(file: BinaryIO, content: Iterable[bytes], size: int) -> tuple[int, int]:
    """Writes a compressed stream of content with a known size; returns the compressed size and `size`."""
    import zstandard

    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj(size=size)
    start = file.tell()
    for part in content:
        file.write(packer.compress(part))
    file.write(packer.flush())
    return file.tell() - start, size


def _fractional_bits(means: Floats) -> int:
    """Returns the number of fractional bits of positions: 12, fewer for large models and more for small ones.

    Raises:
        ArgumentError: A coordinate is 2^23 or more in magnitude.
    """
    largest = float(np.abs(means).max(initial=0))
    for _ in range(2):
        exponent = math.frexp(largest)[1]  # largest < 2^exponent
        fraction = min(23 - exponent, FRACTION - min(exponent, 0), FRACTION_MAX)
        # If rounding reaches 2^exponent, the bits follow from the rounded value, as when the file is written again.
        largest = min(round(largest * 2.0**fraction), POSITION_MAX - 1) / 2.0**fraction
    if fraction < 0:
        raise ArgumentError(
            f"gaussians: expected coordinates below {POSITION_MAX:,} in magnitude for SPZ, found {largest:g}; scale "
            "the model down, or remove distant Gaussians"
        )
    return fraction


def _fixed_point(means: Floats, fraction: int) -> NDArray[np.int32]:
    rounded: NDArray[np.int32] = np.rint(means.astype(np.float64) * 2.0**fraction).astype("<i4")
    return np.clip(rounded, 1 - POSITION_MAX, POSITION_MAX - 1)


def mean_rounding(bounds: Floats) -> MeanRounding:
    """Returns the function that rounds means as SPZ stores them, given their bounds [2, 3]."""
    fraction = _fractional_bits(bounds)
    return lambda means: _fixed_point(means, fraction) * 2.0**-fraction


def position_error(bounds: Floats) -> float:
    """Returns the largest error of means with bounds [2, 3]."""
    return 2.0 ** -(_fractional_bits(bounds) + 1)


class _Section(NamedTuple):
    """A section of the file: the parameter, the bytes per Gaussian, and the function that encodes rows of it."""

    name: str
    size: int
    encode: Callable[[Floats], NDArray[Any]]


def _sections(fraction: int, degree: int) -> list[_Section]:
    """Returns the sections for positions, opacities, colors, log scales, rotations and, above degree 0, SH
    coefficients."""
    flips = np.array(SIGNS, "<i4")
    signs = sh_signs(degree, SIGNS).numpy()[:, None]
    opacity, color, scale, sh = (Rounding().levels for _ in range(4))

    def position(means: Floats) -> Bytes:
        fixed: NDArray[np.int32] = _fixed_point(means, fraction) * flips
        return fixed.view(np.uint8).reshape(len(means), 3, 4)[..., :3]

    sections = [
        _Section("means", 9, position),
        _Section("opacity_logits", 1, lambda logits: opacity(torch.from_numpy(logits).sigmoid().numpy() * 255.0)),
        _Section("sh0", 3, lambda sh0: color((sh0 * COLOR_SCALE + 0.5) * 255)),
        _Section("log_scales", 3, lambda log_scales: scale((log_scales + 10) * 16)),
        _Section("quats", 4, _encode_quats),
        _Section("shN", 3 * len(signs), lambda shN: sh(shN * signs * 128 + 128)),
    ]
    return sections if degree else sections[:-1]


def _encode(rows: Rows, section: _Section) -> Iterator[bytes]:
    """Yields the encoded bytes of a section, range by range."""
    for start, stop in rows.ranges():
        yield section.encode(rows.columns((section.name,), start, stop)[section.name].numpy()).tobytes()


def _encode_quats(quats: Floats) -> NDArray[np.uint32]:
    """Encodes rotations [N, 4] wxyz; see ``decode_quats`` of the reader."""
    signs = np.array(SIGNS, np.float64)
    xyzw = quats[:, [1, 2, 3, 0]] * [*signs * signs.prod(), 1]
    # A zero quaternion becomes the identity.
    xyzw[~xyzw.any(1), 3] = 1
    return rotation_codes(xyzw, _encode_smallest_three, lambda words: decode_quats(words)[:, [1, 2, 3, 0]])


def _encode_smallest_three(others: NDArray[np.float64], largest: NDArray[np.intp]) -> NDArray[np.uint32]:
    sizes = np.minimum(np.rint(np.abs(others) * (math.sqrt(2) * ROTATION_MAX)), ROTATION_MAX).astype("<u4")
    fields = sizes | (others < 0).astype("<u4") << 9
    words: NDArray[np.uint32] = largest.astype("<u4") << 30 | fields[:, 0] << 20 | fields[:, 1] << 10 | fields[:, 2]
    return words
