"""Reads PlayCanvas's SOG, version 2: ``meta.json`` and lossless WebP images, in a folder or a ZIP archive ``.sog``.

The images have one pixel per Gaussian: positions with 16 bits in two images (sign(x) log(1 + |x|) between bounds),
scales and colors as indices into codebooks, opacity as a byte, rotations as their three smallest components with the
index of the largest one in the alpha channel, and SH coefficients above degree 0 as an index into a palette.
"""

import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FileError, UnsupportedError
from ...support.extras import require
from ...support.reading import check_possible, read_file
from ..gaussians import Gaussians
from ..quantization import Bytes, Floats, gaussians_from_arrays, interpolate, quats_from_smallest_three, signed_exp
from .foreign import Warn, note_ignored
from .image_sets import META, META_MAX, Load, archive_loader, decode_image
from .json_objects import JsonObject
from .model_memory import check_model_memory

LARGEST_IS_W = 252
"""Alpha of a rotation whose largest component is w. 253 to 255 denote x, y and z."""

PALETTE_WIDTH = 64
"""Number of palette entries side by side in the image of centroids."""

KNOWN = ("version", "count", "model", "antialias", "means", "scales", "quats", "sh0", "shN", "asset", "extras")
"""Known keys of ``meta.json``; asset and extras do not concern the Gaussians."""


def read_sog(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads a SOG dataset.

    Args:
        path: A ``.sog`` file, a folder with ``meta.json``, or the path of ``meta.json``.
        warn: Called with a note that lists unknown keys of ``meta.json``.

    Raises:
        FileError: A file or value is missing, damaged or inconsistent with the others.
        UnsupportedError: The version of the format is not supported.
        MissingExtraError: Pillow is not installed.
        OSError: A file cannot be read.
    """
    require("PIL")
    path = Path(path)
    check_possible(path)
    if path.name == META or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return _read(str(path), lambda name: read_file(folder / name, META_MAX if name == META else None), warn)
    return _read(str(path), archive_loader(path), warn)


def _read(path: str, load: Load, warn: Warn) -> Gaussians:
    meta = JsonObject.parse(path, load(META), META)
    version = meta.values.get("version")
    if version != 2:
        text = "none (a file from before version 2)" if version is None else repr(version)
        raise UnsupportedError(f"{path}: expected SOG version 2, found {text}; convert it with splat-transform")
    count = meta.count("count")
    note_ignored(path, "the parts", (name for name in meta.values if name not in KNOWN), warn)
    bands = meta.part("shN").values.get("bands")
    check_model_memory(path, count, bands if bands in (1, 2, 3) else 0)

    def pixels(name: str) -> Bytes:
        """Returns the first pixels of an image, [count, 4]."""
        flat = decode_image(path, name, load(name), count).reshape(-1, 4)
        if len(flat) < count:
            raise FileError(
                f"{path}: {name}: expected {count} pixels, one per Gaussian, found {len(flat)}; the file is damaged"
            )
        return flat[:count]

    part = meta.part("means")
    low, high = (pixels(name)[:, :3].astype(np.uint16) for name in part.files(2)[:2])
    means = decode_means(high << 8 | low, part.log_bounds())

    part = meta.part("scales")
    log_scales = _look_up(part, pixels(part.files(1)[0])[:, :3])
    part = meta.part("sh0")
    rgba = pixels(part.files(1)[0])
    sh0 = _look_up(part, rgba[:, :3])
    quats = _decode_quats(path, pixels(meta.part("quats").files(1)[0]))
    shN = np.zeros((count, 0, 3), np.float32)
    if meta.values.get("shN") is not None:
        part = meta.part("shN")
        centroids, labels = part.files(2)[:2]
        shN = _decode_sh(part, decode_image(path, centroids, load(centroids), count), pixels(labels))
    antialiased = meta.values.get("model") == "antialiased" or meta.values.get("antialias") is True
    gaussians = gaussians_from_arrays(means, log_scales, quats, rgba[:, 3] / 255, sh0[:, None], shN, antialiased)
    return gaussians.as_surfels() if meta.values.get("model") == "2dgs" else gaussians


def decode_means(words: NDArray[Any], bounds: NDArray[np.float64]) -> Floats:
    """Decodes positions [N, 3] between bounds [2, 3] of sign(x) log(1 + |x|)."""
    return signed_exp(interpolate(bounds[0], bounds[1], words / 65535)).astype(np.float32)


def _look_up(part: JsonObject, indices: NDArray[Any]) -> Floats:
    """Returns the entries of the codebook at `indices`, in the shape of `indices`."""
    codebook = part.floats("codebook").astype(np.float32)
    if indices.size and int(indices.max()) >= len(codebook):
        raise part.fail("codebook", f"a list of at least {int(indices.max()) + 1} numbers")
    return codebook[indices] if indices.size else np.zeros(indices.shape, np.float32)


def _decode_quats(path: str, pixels: Bytes) -> Floats:
    """Decodes rotations, [N, 4] wxyz."""
    if (pixels[:, 3] < LARGEST_IS_W).any():
        raise FileError(
            f"{path}: rotations: expected alpha of at least {LARGEST_IS_W}; the image is damaged or was saved lossily"
        )
    return decode_quats(pixels)


def decode_quats(codes: Bytes) -> Floats:
    """Decodes rotations [N, 4] wxyz from pixels [N, 4] with valid alpha."""
    return quats_from_smallest_three((codes[:, :3] / 255 * 2 - 1) / math.sqrt(2), codes[:, 3] - LARGEST_IS_W)


def _decode_sh(part: JsonObject, centroids: Bytes, pixels: Bytes) -> Floats:
    """Decodes the SH coefficients above degree 0, [N, K - 1, 3], from the palette and its indices."""
    bands = part.count("bands")
    if bands not in (1, 2, 3):
        raise part.fail("bands", "1, 2 or 3")
    size = (bands + 1) ** 2 - 1
    height, width, _ = centroids.shape
    if width != PALETTE_WIDTH * size:
        raise FileError(
            f"{part.path}: image of centroids: expected a width of {PALETTE_WIDTH * size} pixels for {bands} bands, "
            f"found {width}; the file is damaged"
        )
    labels = pixels[:, 0].astype(np.intp) + 256 * pixels[:, 1].astype(np.intp)
    n_entries = min(part.count("count"), height * PALETTE_WIDTH)
    if labels.size and int(labels.max()) >= n_entries:
        raise FileError(
            f"{part.path}: expected palette indices below {n_entries}, found {int(labels.max())}; the file is damaged"
        )
    palette = _look_up(part, centroids.reshape(-1, size, 4)[..., :3])
    return np.ascontiguousarray(palette[labels])
