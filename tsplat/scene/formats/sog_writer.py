"""Writing SOG 2; :mod:`~tsplat.scene.formats.sog` describes and reads the format."""

import io
import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...support.extras import require
from ...support.files import atomic_write, output_folder
from ..gaussians import Gaussians
from ..morton import morton_order
from .clustering import cluster, cluster_values
from .image_sets import META
from .quantization import LOG_SCALE_MAX, Bytes, Floats, levels, ordered_arrays, rotation_codes
from .sog import LARGEST_IS_W, PALETTE_WIDTH, decode_means, decode_quats

EXACT_PALETTE = 1 << 14
"""SH coefficients are clustered if there are more different rows than this."""

PALETTE_MAX = 1 << 16
CODEBOOK = 256
SHOWN_MIN = 1e-6
"""Least weight of an error, in proportion to the mean."""

EXACT_SQUARES_MAX = 1e15
"""Squares of larger values may overflow fp32."""

SUFFIX = ".sog"

Words = tuple[NDArray[np.uint16], NDArray[np.float64]]
"""Means in 16 bits between bounds [N, 3], and the bounds of their logarithms [2, 3]."""

EncodeMeans = Callable[[Floats], tuple[NDArray[np.int64], Words]]


def write_sog(path: str | os.PathLike[str], gaussians: Gaussians) -> list[str]:
    """Writes PlayCanvas's SOG, version 2, in Morton order. The result is the same in every run.

    Largest errors:

    - means: half of a step of ``sign(x) log(1 + |x|)``, whose steps are 1/65,535 of its range along the axis. The error
      of x is this times ``1 + |x|``.
    - log scales and sh0: each value is replaced by the nearest entry of a codebook of 256. Up to 256 different values
      are exact; otherwise k-means chooses, weighted by the area and opacity that a Gaussian shows, so that outliers
      that nobody sees take no entries. Log scales are clamped to [-20, 20].
    - rotations: an angle of 0.0193 (1.1 degrees).
    - opacities: 1/510.
    - shN: codebook of 256 as above. If there are more than 16,384 different rows of coefficients, each is replaced by
      one of up to 65,536 rows, which k-means chooses; up to 65,536 rows of no more than 256 different values are exact.

    Args:
        path: A name that ends in ``.sog`` for a ZIP archive; a folder, which is created if it does not exist, or its
            ``meta.json``, for single files.
        gaussians: Gaussians of SH degree 0 to 3.

    Returns:
        What is lost, as :func:`write_model` does, with the number of rows of coefficients if they are clustered.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        MissingExtraError: Pillow is not installed.
        FileError: The folder is not writable.
        OSError: A file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() == SUFFIX and not path.is_dir():
        content, lost = sog_content(gaussians)
        with atomic_write(path) as file:
            file.write(content)
        return lost
    require("PIL")
    files, lost = sog_files(gaussians)
    with output_folder(path.parent if path.name == META else path) as folder:
        write_files(folder, files)
    return lost


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Writes the files of a dataset. A folder with ``meta.json``, which is written last, is complete."""
    (folder / META).unlink(missing_ok=True)
    for name, content in files.items():
        with atomic_write(folder / name) as file:
            file.write(content)


def sog_content(gaussians: Gaussians) -> tuple[bytes, list[str]]:
    """Returns the content of the archive that :func:`write_sog` writes, and what is lost; raises the same errors."""
    require("PIL")
    files, lost = sog_files(gaussians)
    return _archive(files), lost


def _archive(files: dict[str, bytes]) -> bytes:
    """Returns a ZIP archive of files that are compressed already. It has no dates."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def sog_files(gaussians: Gaussians, encode: EncodeMeans | None = None) -> tuple[dict[str, bytes], list[str]]:
    """Encodes the files of the dataset by name, ``meta.json`` last, and describes what is lost.

    Args:
        gaussians: The Gaussians.
        encode: :func:`encode_means`, which is used for None, or :func:`in_order`.
    """
    arrays, (words, bounds) = ordered_arrays(gaussians, "SOG", encode or encode_means)
    lost = ["positions rounded to 16 bits, other values to 8"]
    count = len(gaussians)
    files: dict[str, bytes] = {}
    meta: dict[str, Any] = {"version": 2, "count": count}
    if gaussians.antialiased or gaussians.surfels:
        meta["model"] = "2dgs" if gaussians.surfels else "antialiased"

    files["means_l.webp"] = _webp(_image(words & 255))
    files["means_u.webp"] = _webp(_image(words >> 8))
    meta["means"] = {"mins": bounds[0].tolist(), "maxs": bounds[1].tolist(), "files": list(files)}

    log_scales = np.clip(arrays["log_scales"], -LOG_SCALE_MAX, LOG_SCALE_MAX)
    shown = _shown(log_scales, arrays["opacities"])
    codebook, indices = _codebook(log_scales, shown)
    files["scales.webp"] = _webp(_image(indices))
    meta["scales"] = {"codebook": codebook, "files": ["scales.webp"]}

    files["quats.webp"] = _webp(_image(rotation_codes(arrays["quats"], _encode_quats, decode_quats)))
    meta["quats"] = {"files": ["quats.webp"]}

    sh0 = arrays["sh0"][:, 0]
    codebook, indices = _codebook(sh0, np.broadcast_to(shown.max(1, keepdims=True), sh0.shape))
    files["sh0.webp"] = _webp(_image(np.concatenate([indices, levels(arrays["opacities"] * 255.0)[:, None]], 1)))
    meta["sh0"] = {"codebook": codebook, "files": ["sh0.webp"]}

    if gaussians.sh_degree:
        codebook, indices, labels, is_exact = _palette(arrays["shN"])
        if not is_exact:
            lost.append(f"SH coefficients quantized to a palette of {len(indices):,}")
        files["shN_centroids.webp"] = _webp(_palette_image(indices))
        files["shN_labels.webp"] = _webp(_image(np.stack([labels & 255, labels >> 8, np.zeros_like(labels)], 1)))
        names = ["shN_centroids.webp", "shN_labels.webp"]
        meta["shN"] = {"count": len(indices), "bands": gaussians.sh_degree, "codebook": codebook, "files": names}
    files[META] = json.dumps(meta, allow_nan=False).encode()
    return files, lost


def _encode_quats(others: NDArray[np.float64], largest: NDArray[np.intp]) -> Bytes:
    codes = [np.rint((others / math.sqrt(2) + 0.5) * 255), largest[:, None] + LARGEST_IS_W]
    return np.concatenate(codes, 1).astype(np.uint8)


def encode_means(means: Floats) -> tuple[NDArray[np.int64], Words]:
    """Encodes means [N, 3] in Morton order after rounding: a file that is written again keeps its order.

    Returns their ids [N] in the order of the file; 16 bits between bounds, [N, 3], and the bounds of the logarithms,
    [2, 3].
    """
    ids, (words, bounds) = in_order(means)
    if not len(means):
        return ids, (words, bounds)
    order = morton_order(torch.from_numpy(decode_means(words, bounds))).numpy()
    return order, (words[order], bounds)


def in_order(means: Floats) -> tuple[NDArray[np.int64], Words]:
    """Encodes means as :func:`encode_means` does, in the order that they have."""
    logs = np.copysign(np.log1p(np.abs(means, dtype=np.float64)), means)
    if not len(logs):
        return np.zeros(0, np.int64), (np.zeros((0, 3), np.uint16), np.zeros((2, 3)))
    # Not rounded to float32, which would move the bounds of a file that is written again.
    bounds = np.stack([logs.min(0), logs.max(0)]) + 0  # no -0
    size = bounds[1] - bounds[0]
    fractions = (logs - bounds[0]) / np.where(size > 0, size, 1)
    words = np.clip(np.rint(fractions * 65535), 0, 65535).astype(np.uint16)
    return np.arange(len(means)), (words, bounds)


def _shown(log_scales: Floats, opacities: Floats) -> NDArray[np.float64]:
    """Weights of squared errors by what they change in images: the area that each axis spans with the largest of the
    others, times opacity^2. [N, 3]"""
    logs = log_scales.astype(np.float64)
    largest = np.stack([np.delete(logs, axis, 1).max(1) for axis in range(3)], 1)
    areas: NDArray[np.float64] = np.exp(logs + largest) * np.square(opacities.reshape(-1, 1).astype(np.float64))
    least = SHOWN_MIN * areas.mean() + np.finfo(np.float32).tiny if len(areas) else 0
    return np.maximum(areas, least, out=areas)


def _codebook(values: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[list[float], Bytes]:
    """Returns a codebook of 256 entries and the index of the nearest entry of each value, in the shape of `values`."""
    entries, indices = cluster_values(values, CODEBOOK, weights)
    used, indices = np.unique(indices, return_inverse=True)
    entries, indices = entries[used], indices.reshape(values.shape)
    padded = np.concatenate([entries, np.full(CODEBOOK - len(entries), entries[-1] if len(entries) else 0)])
    short = [float(str(value)) for value in padded.astype(np.float32)]  # with as few digits as they need
    return short, indices.astype(np.uint8)


def _palette(shN: Floats) -> tuple[list[float], Bytes, NDArray[np.int64], bool]:
    """Chooses a palette of the SH coefficients [N, K - 1, 3] and its codebook.

    Returns the codebook; the palette as indices into it, [entries, K - 1, 3], in the order in which Gaussians use it;
    the entry of each Gaussian, [N]; and whether the palette has every row.
    """
    count, *shape = shN.shape
    if not count:
        return [0.0] * CODEBOOK, np.zeros((1, *shape), np.uint8), np.zeros(0, np.int64), True
    rows = np.ascontiguousarray(shN.reshape(count, -1))
    _, firsts, labels = np.unique(_as_keys(rows), return_index=True, return_inverse=True)
    palette = rows[firsts]
    n_entries = _n_clusters(rows, len(firsts))
    if n_entries is not None:
        tensor = torch.from_numpy(rows)
        if float(tensor.abs().max()) > EXACT_SQUARES_MAX:
            tensor = tensor.double()
        centroids, clusters = cluster(tensor, n_entries)
        palette, labels = centroids.float().numpy(), clusters.numpy()
    used, labels = np.unique(labels, return_inverse=True)
    codebook, indices = _codebook(palette[used])
    # By their indices, because different rows may have become equal.
    indices = indices[labels.reshape(-1)]
    _, firsts, labels = np.unique(_as_keys(indices), return_index=True, return_inverse=True)
    order = firsts.argsort()
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return codebook, indices[firsts[order]].reshape(-1, *shape), places[labels.reshape(-1)], n_entries is None


def _n_clusters(rows: Floats, n_distinct: int) -> int | None:
    """Returns the number of clusters for rows, some of which are equal; None if the palette has all of them exactly."""
    exact = n_distinct <= PALETTE_MAX and (n_distinct <= EXACT_PALETTE or len(np.unique(rows)) <= CODEBOOK)
    return None if exact else min(1 << n_distinct.bit_length() - 1, PALETTE_MAX)


def _as_keys(rows: NDArray[Any]) -> NDArray[Any]:
    """Returns one key for each row of [N, D]; keys are equal where rows are."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]


def _palette_image(indices: Bytes) -> Bytes:
    """Arranges palette entries [entries, K - 1, 3], 64 side by side. [H, 64 (K - 1), 3]"""
    entries, size, _ = indices.shape
    height = math.ceil(entries / PALETTE_WIDTH)
    image = np.zeros((height * PALETTE_WIDTH, size, 3), np.uint8)
    image[:entries] = indices
    return image.reshape(height, PALETTE_WIDTH * size, 3)


def _image(values: NDArray[Any]) -> Bytes:
    """Arranges values from 0 to 255, [N, channels], as an image whose sides are multiples of 4. [H, W, channels]"""
    count, channels = values.shape
    width = max(math.ceil(math.sqrt(count) / 4), 1) * 4
    height = max(math.ceil(count / width / 4), 1) * 4
    image = np.zeros((height * width, channels), np.uint8)
    image[:count] = values
    return image.reshape(height, width, channels)


def _webp(image: Bytes) -> bytes:
    """Encodes an image [H, W, 3 or 4] as lossless WebP; colors of transparent pixels are kept."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "WEBP", lossless=True, exact=True, quality=80, method=4)
    return file.getvalue()
