"""Writes SOG 2; :mod:`~tsplat.scene.formats.sog` describes and reads the format."""

import contextlib
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...support.extras import require
from ...support.files import atomic_write, output_folder
from ..gaussians import Gaussians
from ..model_rows import MeanRounding, Rows, as_rows, morton_sorted
from ..quantization import (
    LOG_SCALE_MAX,
    Bytes,
    Floats,
    Rounding,
    check_degree,
    fractions_of,
    rotation_codes,
    signed_log,
    valid_bounds,
)
from .clustering import Clusters, cluster_values, nearest_values
from .image_sets import META, free_suffix, named_images, write_files
from .sog import LARGEST_IS_W, PALETTE_WIDTH, decode_means, decode_quats

EXACT_PALETTE = 1 << 14
"""SH coefficients are clustered if there are more than this number of different rows."""

PALETTE_MAX = 1 << 16
CODEBOOK = 256
WEIGHT_MIN = 1e-6
"""Minimum weight of an error, relative to the mean."""

EXACT_SQUARES_MAX = 1e15
"""Squares of larger values may overflow fp32."""

SAMPLE = 1 << 20
"""Maximum number of Gaussians from which codebooks and palettes are computed; of more, every k-th one is used."""

SUFFIX = ".sog"

IMAGES = ("means_l", "means_u", "scales", "quats", "sh0", "shN_centroids", "shN_labels")
"""Names of the images without the suffix ``.webp``."""


def write_sog(path: str | os.PathLike[str], gaussians: Gaussians | Rows) -> list[str]:
    """Writes PlayCanvas's SOG, version 2, in Morton order. The output is deterministic.

    Largest errors:

    - means: half a step of ``sign(x) log(1 + |x|)``, where a step is 1/65,535 of its range along the axis. The error of
      x is this value times ``1 + |x|``.
    - log scales and sh0: each value is replaced by the nearest entry of a codebook with 256 entries. Up to 256
      different values are exact; otherwise k-means chooses the entries, weighted by area and opacity squared, so that
      invisible outliers take no entries. Log scales are clamped to [-20, 20].
    - rotations: an angle of 0.0193 (1.1 degrees).
    - opacities: 1/510.
    - shN: a codebook of 256 entries as above. If there are more than 16,384 different rows of coefficients, each is
      replaced by one of up to 65,536 rows chosen by k-means; up to 65,536 rows with at most 256 different values are
      exact.

    Args:
        path: A name that ends in ``.sog`` for a ZIP archive; or for single files, a folder, which is created if it does
            not exist, or its ``meta.json``. If the folder already contains a model, the images get new names, such as
            ``means_l_2.webp``, until ``meta.json`` is replaced, so that it contains either the old or the new model at
            any time.
        gaussians: Gaussians of SH degree 0 to 3, or rows of a model that is larger than memory. If there are more than
            1,048,576, codebooks and palettes are computed from every k-th Gaussian.

    Returns:
        Losses as in :func:`write_model`, including the number of palette rows if SH coefficients are clustered.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        MissingExtraError: Pillow is not installed.
        FileError: The folder is not writable.
        OSError: A file cannot be written.
    """
    require("PIL")
    path = Path(path)
    is_archive = path.suffix.lower() == SUFFIX and not path.is_dir()
    folder = path.parent if is_archive or path.name == META else path
    lost: list[str] = []
    suffix = "" if is_archive else free_suffix(folder, (f"{name}.webp" for name in IMAGES))
    with sorted_files(as_rows(gaussians), folder if is_archive else folder.parent, lost, suffix) as files:
        if is_archive:
            with atomic_write(path) as file:
                write_archive(file, files)
        else:
            with output_folder(folder):
                write_files(folder, META, files, named_images(folder))
    return lost


@contextlib.contextmanager
def sorted_files(rows: Rows, folder: Path, lost: list[str], suffix: str = "") -> Iterator[Iterator[tuple[str, bytes]]]:
    """Yields :func:`sog_files` of rows in the Morton order of their rounded means; `folder` is for temporary files."""
    check_degree(rows.properties, "SOG")
    bounds = valid_bounds(rows)
    with morton_sorted(rows, mean_rounding(bounds), bounds, folder) as ordered:
        yield sog_files(ordered, bounds, lost, suffix)


def sog_content(gaussians: Gaussians) -> tuple[bytes, list[str]]:
    """Returns the content of the archive that :func:`write_sog` writes, and the losses; raises the same errors."""
    require("PIL")
    lost: list[str] = []
    content = io.BytesIO()
    with sorted_files(as_rows(gaussians), Path(), lost) as files:
        write_archive(content, files)
    return content.getvalue(), lost


def write_archive(file: BinaryIO, files: Iterable[tuple[str, bytes]]) -> None:
    """Writes a ZIP archive without dates from files that are already compressed."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name), content)


def sog_files(rows: Rows, bounds: Floats, lost: list[str], suffix: str = "") -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of a dataset's files one by one, ``meta.json`` last.

    Args:
        rows: Valid Gaussians in file order.
        bounds: Bounds of the means, [2, 3].
        lost: List to which losses are appended.
        suffix: Appended to the names of :data:`IMAGES`.
    """
    files = {name: f"{name}{suffix}.webp" for name in IMAGES}
    lost.append("positions rounded to 16 bits, other values to 8")
    meta: dict[str, Any] = {"version": 2, "count": rows.count}
    if rows.properties.antialiased or rows.properties.surfels:
        meta["model"] = "2dgs" if rows.properties.surfels else "antialiased"

    log_bounds = _log_bounds(bounds)
    names = [files["means_l"], files["means_u"]]
    yield names[0], _webp(_image(rows, 3, lambda g: _words(g.means.numpy(), bounds)[0] & 255))
    yield names[1], _webp(_image(rows, 3, lambda g: _words(g.means.numpy(), bounds)[0] >> 8))
    meta["means"] = {"mins": log_bounds[0].tolist(), "maxs": log_bounds[1].tolist(), "files": names}

    sample = rows.sample(SAMPLE)
    weights = _error_weights(_log_scales(sample), sample.opacities.numpy())
    entries = _codebook(rows, _log_scales, _log_scales(sample), weights)
    yield files["scales"], _webp(_image(rows, 3, lambda g: nearest_values(entries, _log_scales(g))))
    meta["scales"] = {"codebook": _padded(entries), "files": [files["scales"]]}

    yield files["quats"], _webp(_image(rows, 4, lambda g: rotation_codes(g.quats.numpy(), _encode_quats, decode_quats)))
    meta["quats"] = {"files": [files["quats"]]}

    colors = _codebook(rows, _sh0, _sh0(sample), np.broadcast_to(weights.max(1, keepdims=True), weights.shape))
    rounding = Rounding()

    def color(g: Gaussians) -> NDArray[Any]:
        opacities = rounding.levels(g.opacities.numpy() * 255.0)
        return np.concatenate([nearest_values(colors, _sh0(g)), opacities[:, None]], 1)

    yield files["sh0"], _webp(_image(rows, 4, color))
    meta["sh0"] = {"codebook": _padded(colors), "files": [files["sh0"]]}

    if rows.properties.sh_degree:
        entries, indices, labels, is_exact = _palette(rows, sample)
        del sample, weights
        if not is_exact:
            lost.append(f"SH coefficients quantized to a palette of {len(indices):,}")
        names = [files["shN_centroids"], files["shN_labels"]]
        yield names[0], _webp(_palette_image(indices))
        label_bytes = np.zeros((rows.count, 3), np.uint8)
        label_bytes[:, 0], label_bytes[:, 1] = labels & 255, labels >> 8
        yield names[1], _webp(_as_image(label_bytes))
        meta["shN"] = {
            "count": len(indices), "bands": rows.properties.sh_degree, "codebook": _padded(entries), "files": names
        }  # fmt: skip
    yield META, json.dumps(meta, allow_nan=False).encode()


def _log_scales(gaussians: Gaussians) -> Floats:
    return gaussians.log_scales.clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX).numpy()


def _sh0(gaussians: Gaussians) -> Floats:
    return gaussians.sh0[:, 0].numpy()


def _encode_quats(others: NDArray[np.float64], largest: NDArray[np.intp]) -> Bytes:
    codes = [np.rint((others / math.sqrt(2) + 0.5) * 255), largest[:, None] + LARGEST_IS_W]
    return np.concatenate(codes, 1).astype(np.uint8)


def mean_rounding(bounds: Floats) -> MeanRounding:
    """Returns the function that rounds means as SOG stores them, given their bounds [2, 3]."""
    return lambda means: decode_means(*_words(means, bounds))


def position_error(bounds: Floats) -> float:
    """Returns the largest error of means with bounds [2, 3]."""
    low, high = _log_bounds(bounds)
    return float(((high - low) / (2 * 65535) * (1 + np.abs(bounds).max(0))).max())


def _log_bounds(bounds: Floats) -> NDArray[np.float64]:
    """Returns the logarithms of bounds, not rounded to float32, so that reading and writing a file again keeps them."""
    return signed_log(bounds) + 0  # no -0


def _words(means: Floats, bounds: Floats) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """Encodes means [N, 3] with 16 bits between bounds; also returns the logarithms [2, 3] of the bounds."""
    low, high = log_bounds = _log_bounds(bounds)
    fractions = fractions_of(low, high, signed_log(means))
    return np.clip(np.rint(fractions * 65535), 0, 65535).astype(np.uint16), log_bounds


def _error_weights(log_scales: Floats, opacities: Floats) -> NDArray[np.float64]:
    """Returns weights [N, 3] of squared errors by their effect on images: the area that each axis spans with the
    largest other axis, times the squared opacity."""
    logs = log_scales.astype(np.float64)
    largest = np.stack([np.delete(logs, axis, 1).max(1) for axis in range(3)], 1)
    weights: NDArray[np.float64] = np.exp(logs + largest) * np.square(opacities.reshape(-1, 1).astype(np.float64))
    smallest = WEIGHT_MIN * weights.mean() + np.finfo(np.float32).tiny if len(weights) else 0
    return np.maximum(weights, smallest, out=weights)


def _codebook(rows: Rows, values: Callable[[Gaussians], Floats], sample: Floats, weights: NDArray[Any]) -> Floats:
    """Returns up to 256 ascending codebook entries for values of the rows: all different values if there are at most
    256, otherwise entries computed from a sample."""
    if len(sample) < rows.count:
        distinct = np.zeros(0, np.float32)
        for chunk in rows.chunks():
            distinct = np.union1d(distinct, values(chunk))
            if len(distinct) > CODEBOOK:
                break
        else:
            return distinct
    return _entries(sample, weights)


def _entries(values: Floats, weights: NDArray[Any] | None = None) -> Floats:
    """Returns up to 256 ascending codebook entries for values; each is the nearest entry of some value."""
    entries, indices = cluster_values(values, CODEBOOK, weights)
    return entries[np.unique(indices)]


def _padded(entries: Floats) -> list[float]:
    """Pads entries to a codebook of 256, with the minimum number of digits that identifies a float32."""
    padded = np.concatenate([entries, np.full(CODEBOOK - len(entries), entries[-1] if len(entries) else 0)])
    return [float(str(value)) for value in padded.astype(np.float32)]


def _palette(rows: Rows, sample: Gaussians) -> tuple[Floats, Bytes, NDArray[np.int32], bool]:
    """Chooses a palette of SH coefficients [N, K - 1, 3] and its codebook.

    Returns the codebook; the palette as indices into it, [entries, K - 1, 3], in the order of first use; the palette
    entry of each Gaussian, [N]; and whether the palette contains every row exactly.
    """
    shape = rows.properties.shapes["shN"]
    if not rows.count:
        return np.zeros(1, np.float32), np.zeros((1, *shape), np.uint8), np.zeros(0, np.int32), True
    distinct = _distinct(rows)
    n_entries = _n_clusters(distinct)
    clusters: Clusters | None = None
    if n_entries is None:
        assert distinct is not None
        palette = distinct
    else:
        tensor = sample.shN.flatten(1)
        if float(tensor.abs().max()) > EXACT_SQUARES_MAX:
            tensor = tensor.double()
        clusters = Clusters.fit(tensor, n_entries)
        palette = clusters.centroids.float().numpy()
    labels = np.empty(rows.count, np.int32)
    for start, stop in rows.ranges():
        coefficients = rows.columns(("shN",), start, stop)["shN"].flatten(1)
        if clusters is None:
            keys = np.concatenate([_as_keys(palette), _as_keys(coefficients.numpy())])
            labels[start:stop] = np.unique(keys, return_inverse=True)[1][len(palette) :]
        else:
            labels[start:stop] = clusters.nearest(coefficients.to(clusters.centroids)).numpy()
    used = np.flatnonzero(np.bincount(labels, minlength=len(palette)))
    entries = _entries(palette[used])
    # Compare indices, because different rows may have become equal.
    indices = nearest_values(entries, palette[used]).astype(np.uint8)
    _, firsts, merged = np.unique(_as_keys(indices), return_index=True, return_inverse=True)
    merged_labels = np.zeros(len(palette), np.int32)
    merged_labels[used] = merged.reshape(-1)
    labels = merged_labels[labels]
    # Sort by the first Gaussian that uses each entry.
    first_rows = np.full(len(firsts), rows.count)
    np.minimum.at(first_rows, labels, np.arange(rows.count))
    order = first_rows.argsort()
    ranks = order.argsort().astype(np.int32)
    return entries, indices[firsts[order]].reshape(-1, *shape), ranks[labels], clusters is None


def _distinct(rows: Rows) -> Floats | None:
    """Returns the different rows of SH coefficients, sorted by their bytes; None if there are too many for a
    palette."""
    distinct: NDArray[Any] | None = None
    for start, stop in rows.ranges():
        keys = _as_keys(rows.columns(("shN",), start, stop)["shN"].flatten(1).numpy())
        distinct = np.unique(keys if distinct is None else np.concatenate([distinct, np.unique(keys)]))
        if len(distinct) > PALETTE_MAX:
            return None
    assert distinct is not None
    return distinct.view(np.float32).reshape(len(distinct), -1)


def _n_clusters(distinct: Floats | None) -> int | None:
    """Returns the number of clusters for the different rows; None if the palette can contain all of them exactly."""
    if distinct is None:
        return PALETTE_MAX
    if len(distinct) <= EXACT_PALETTE or len(np.unique(distinct)) <= CODEBOOK:
        return None
    return int(1 << len(distinct).bit_length() - 1)


def _as_keys(rows: NDArray[Any]) -> NDArray[Any]:
    """Returns a key for each row of an array [N, D]; equal rows have equal keys."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]


def _palette_image(indices: Bytes) -> Bytes:
    """Arranges palette entries [entries, K - 1, 3], 64 side by side. [H, 64 (K - 1), 3]"""
    entries, size, _ = indices.shape
    height = math.ceil(entries / PALETTE_WIDTH)
    padded = np.pad(indices, ((0, height * PALETTE_WIDTH - entries), (0, 0), (0, 0)))
    return padded.reshape(height, PALETTE_WIDTH * size, 3)


def _image(rows: Rows, channels: int, encode: Callable[[Gaussians], NDArray[Any]]) -> Bytes:
    """Encodes rows as values from 0 to 255, and arranges them as an image [H, W, channels]."""
    values = np.empty((rows.count, channels), np.uint8)
    for start, stop in rows.ranges():
        values[start:stop] = encode(rows.read(start, stop))
    return _as_image(values)


def _as_image(values: Bytes) -> Bytes:
    """Arranges values [N, channels] as an image [H, W, channels] whose sides are multiples of 4."""
    count, channels = values.shape
    width = max(math.ceil(math.sqrt(count) / 4), 1) * 4
    height = max(math.ceil(count / width / 4), 1) * 4
    return np.pad(values, ((0, height * width - count), (0, 0))).reshape(height, width, channels)


def _webp(image: Bytes) -> bytes:
    """Encodes an image [H, W, 3 or 4] as lossless WebP; colors of transparent pixels are kept."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "WEBP", lossless=True, exact=True, quality=80, method=4)
    return file.getvalue()
