"""Writing SPZ 3 and 4; :mod:`~tsplat.scene.formats.spz` describes and reads the format."""

from __future__ import annotations

import gzip
import math
import os

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...support.extras import require
from ...support.files import atomic_write
from ..gaussians import Gaussians
from ..morton import morton_order
from ..rotation import rotate_gaussians, sh_signs
from .quantization import Floats, levels, ordered_arrays, rotation_codes
from .spz import (
    ANTIALIASED,
    COLOR_SCALE,
    EXTENSIONS,
    FRACTION_MAX,
    HEADER,
    HEADER_4,
    MAGIC,
    STREAM,
    decode_quats,
)
from .spz_extensions import QUARTER_TURN, Axes, OrbitLimits, extension_records

GZIP_LEVEL = 6
"""Level 9 takes seven times as long for files that are 3 % smaller."""

ZSTD_LEVEL = 12

FRACTION = 12
"""Fractional bits of positions of a model whose largest coordinate is from 1 to 2,047."""

POSITION_MAX = 1 << 23
"""Positions are integers from -this to this - 1, divided by 2^(fractional bits)."""

DEGREES_MAX = {3: 3, 4: 4}
"""Version -> largest SH degree."""

ROTATION_MAX = 511
"""Largest level of the components of a rotation."""


def write_spz(
    path: str | os.PathLike[str],
    gaussians: Gaussians,
    *,
    version: int = 3,
    axes: str = "RUB",
    orbit: OrbitLimits | None = None,
) -> list[str]:
    """Writes SPZ atomically, in Morton order, rotated to the axes of the format.

    Largest errors, where values are not clamped:

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
        gaussians: Gaussians of SH degree 0 to 3; in version 4 also 4.
        version: 3 (gzip) or 4 (zstd).
        axes: Where x, y and z of the file point to: left or right, down or up, backward or forward (F), in one of the
            16 orders that SPZ_ADOBE_coordinate_system has. All readers know ``"RUB"``.
        orbit: Limits of a camera to write as SPZ_ADOBE_safe_orbit_camera.

    Returns:
        What is lost, as :func:`write_model` does.

    Raises:
        UnsupportedError: The SH degree is above that of the version.
        ArgumentError: A Gaussian is invalid, a coordinate is 2^23 or more in magnitude, or the version or the axes are
            others.
        MissingExtraError: Version 4, and zstandard is not installed.
        OSError: The file cannot be written.
    """
    if version not in DEGREES_MAX:
        raise ArgumentError(f"version: expected 3 or 4, found {version!r}")
    if version == 4:
        require("zstandard")
    extensions = extension_records(axes, orbit)
    signs = Axes.of(axes)
    if signs.turned:
        gaussians = rotate_gaussians(gaussians, (QUARTER_TURN[0], -QUARTER_TURN[1], 0.0, 0.0))
    arrays, (fraction, means) = ordered_arrays(gaussians, f"SPZ {version}", encode_means, DEGREES_MAX[version])
    flags = (ANTIALIASED if gaussians.antialiased else 0) | (EXTENSIONS if extensions else 0)
    fields = (MAGIC, version, len(gaussians), gaussians.sh_degree, fraction, flags)
    sections = _encode(arrays, means, signs)
    if version == 4:
        # Readers expect a stream for each section, and none of SH coefficients for degree 0.
        streams = sections if gaussians.sh_degree else sections[:-1]
        packed = [_zstd(stream) for stream in streams]
        table = b"".join(STREAM.pack(len(short), len(stream)) for short, stream in zip(packed, streams))
        header = HEADER_4.pack(*fields, len(streams), HEADER_4.size + len(extensions))
        content = b"".join([header, extensions, table, *packed])
    else:
        content = gzip.compress(b"".join([HEADER.pack(*fields, 0), *sections, extensions]), GZIP_LEVEL, mtime=0)
    with atomic_write(path) as file:
        file.write(content)
    return ["positions rounded to 24 bits, rotations to 10, other values to 8", *_clamped(gaussians)]


def _clamped(gaussians: Gaussians) -> list[str]:
    """Describes the values of Gaussians that SPZ clamps, such as "SH coefficients outside [-1, 1]"."""
    read_scales = gaussians.log_scales[:, : gaussians.n_scales]
    ranges = {
        "log scales outside [-10, 5.94]": (read_scales, -10 - 1 / 32, 5.9375 + 1 / 32),
        "colors outside [-0.44, 1.44]": (gaussians.sh0, -0.5 / COLOR_SCALE, 0.5 / COLOR_SCALE),
        "SH coefficients outside [-1, 1]": (gaussians.shN, -1.0, 1.0),
    }
    return [phrase for phrase, (values, low, high) in ranges.items() if bool(((values < low) | (values > high)).any())]


def _zstd(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(content)


def _fractional_bits(means: Floats) -> int:
    """Returns the fractional bits of positions: 12, fewer for large models and more for small ones.

    Raises:
        ArgumentError: A coordinate is 2^23 or more in magnitude.
    """
    largest = float(np.abs(means).max(initial=0))
    for _ in range(2):
        exponent = math.frexp(largest)[1]  # largest < 2^exponent
        fraction = min(23 - exponent, FRACTION - min(exponent, 0), FRACTION_MAX)
        # If rounding reaches 2^exponent, the bits are those of the rounded value, as when the file is written again.
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


def encode_means(means: Floats) -> tuple[NDArray[np.int64], tuple[int, NDArray[np.int32]]]:
    """Encodes means [N, 3] in Morton order after rounding: a file that is written again keeps its order.

    Returns:
        Their ids [N] in the order of the file; the number of fractional bits, and fixed-point numbers, [N, 3].
    """
    fraction = _fractional_bits(means)
    fixed = _fixed_point(means, fraction)
    order = morton_order(torch.from_numpy(fixed * 2.0**-fraction)).numpy()
    return order, (fraction, fixed[order])


def _encode(arrays: dict[str, Floats], means: NDArray[np.int32], axes: Axes) -> list[bytes]:
    """Encodes the sections: positions, opacities, colors, log scales, rotations, SH coefficients above degree 0."""
    count = len(means)
    fixed = means * np.array(axes[:3], "<i4")
    signs = sh_signs(math.isqrt(arrays["shN"].shape[1] + 1) - 1, axes[:3]).numpy()[:, None]
    return [
        fixed.view(np.uint8).reshape(count, 3, 4)[..., :3].tobytes(),
        levels(arrays["opacities"] * 255.0).tobytes(),
        levels((arrays["sh0"] * COLOR_SCALE + 0.5) * 255).tobytes(),
        levels((arrays["log_scales"] + 10) * 16).tobytes(),
        _encode_quats(arrays["quats"], axes).tobytes(),
        levels(arrays["shN"] * signs * 128 + 128).tobytes(),
    ]


def _encode_quats(quats: Floats, axes: Axes) -> NDArray[np.uint32]:
    """Encodes rotations [N, 4] wxyz; see ``decode_quats`` of the reader."""
    signs = np.array(axes[:3], np.float64)
    xyzw = quats[:, [1, 2, 3, 0]] * [*signs * signs.prod(), 1]
    # Zero stands for no rotation.
    xyzw[~xyzw.any(1), 3] = 1
    return rotation_codes(xyzw, _encode_smallest_three, lambda words: decode_quats(words)[:, [1, 2, 3, 0]])


def _encode_smallest_three(others: NDArray[np.float64], largest: NDArray[np.intp]) -> NDArray[np.uint32]:
    sizes = np.minimum(np.rint(np.abs(others) * (math.sqrt(2) * ROTATION_MAX)), ROTATION_MAX).astype("<u4")
    fields = sizes | (others < 0).astype("<u4") << 9
    words: NDArray[np.uint32] = largest.astype("<u4") << 30 | fields[:, 0] << 20 | fields[:, 1] << 10 | fields[:, 2]
    return words
