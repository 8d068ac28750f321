"""Reads and writes folders of gsplat's ``PngCompression``: parameters as PNG images of n x n pixels, one pixel per
Gaussian.

- ``meta.json``: the shape and dtype of each parameter, and the bounds between which it is quantized.
- ``means_l.png``, ``means_u.png``: lower and upper bytes of sign(x) log(1 + |x|) in 16 bits.
- ``scales.png``, ``quats.png``, ``opacities.png``, ``sh0.png``: 8 bits per channel.
- ``shN.npz``: ``centroids`` [K, D] of at most 65,536 clusters, 6 bits each as uint8, and ``labels`` [N] uint16.
- ``NAME.npz`` for any other parameter, with the unchanged array ``arr``.
"""

import contextlib
import io
import math
import os
import tokenize
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...config import QUAT_NORM_MIN
from ...errors import ArgumentError, FileError, ShapeError
from ...support.extras import require
from ...support.files import atomic_write, staged_folder, write_json
from ...support.reading import allow_overwrite, check_memory, read_file
from ..gaussians import GSPLAT_NAMES, Gaussians
from ..quantization import fractions_of, interpolate, rounded, signed_exp, signed_log
from .clustering import Clusters
from .foreign import Warn, note_ignored
from .image_sets import (
    META,
    META_MAX,
    ZIP_ERRORS,
    Load,
    archive_loader,
    decode_image,
    read_meta,
)
from .json_objects import JsonObject, is_file_name

PARAMETERS = {gsplat_name: name for name, gsplat_name in GSPLAT_NAMES.items()}
"""gsplat's name -> field of :class:`Gaussians`."""

MEANS = "means"
CLUSTERED = "shN"
BYTES = ("scales", "quats", "opacities", "sh0")
"""Parameters with 8 bits per channel."""

N_CLUSTERS = 1 << 16
CLUSTER_BITS = 6
CHANNELS = {1: [0], 2: [0, 3], 3: [0, 1, 2], 4: [0, 1, 2, 3]}
"""Number of channels -> their indices in the decoded RGBA image."""

DTYPES = ("float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
VALUE_BYTES_MAX, NPY_HEADER_MAX = 8, 1 << 16
SIZE_MAX = 1 << 48
"""Maximum number of values of a parameter."""

Array = NDArray[Any]


def write_png_images(folder: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Writes parameters [N, ...] before activation like gsplat's ``PngCompression``; N is a square number.

    The files of a folder are replaced together: if one cannot be written, all old files are restored. ``meta.json`` is
    removed first and written last, so that a folder with ``meta.json`` is complete.
    """
    require("PIL")
    side = _check_tensors(tensors)
    if "quats" in tensors and (n_zero := int((tensors["quats"].float().norm(dim=1) < QUAT_NORM_MIN).sum())):
        warnings.warn(
            f"{folder}: {n_zero} quaternions of zeros are rounded to rotations, which are rendered", stacklevel=2
        )
    files: dict[str, bytes] = {}
    meta: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        meta[name] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        if not tensor.numel():
            continue
        if name == CLUSTERED:
            files[f"{name}.npz"], bounds = _encode_clusters(tensor)
            meta[name] |= bounds
        elif name == MEANS or name in BYTES:
            images, bounds = _encode_images(name, _to_numpy(tensor).reshape(side, side, -1))
            files |= images
            meta[name] |= bounds
        else:
            files[f"{name}.npz"] = _npz(arr=_to_numpy(tensor))
    with staged_folder(folder, lambda path, _: _named_files(path), META) as path:
        for name, content in files.items():
            with atomic_write(path / name) as file:
                file.write(content)
        write_json(path / META, meta)


def _named_files(folder: Path) -> set[str]:
    """Returns the file names in the ``meta.json`` of a folder; an empty set if it cannot be read."""
    with contextlib.suppress(FileError, OSError), allow_overwrite():
        meta = read_meta(folder)
        parameters = [name for name in meta.values if is_file_name(name) and _is_parameter(meta, name)]
        return {f"{name}{end}" for name in parameters for end in ("_l.png", "_u.png", ".png", ".npz")}
    return set()


def is_png_folder(folder: Path) -> bool:
    """Returns whether a folder contains the images of :func:`write_png_images`; the ``meta.json`` of SOG is different.

    Raises:
        FileError, OSError: ``meta.json`` cannot be read.
    """
    return _is_parameter(read_meta(folder), MEANS)


def _is_parameter(meta: JsonObject, name: str) -> bool:
    """Returns whether ``meta.json`` describes a parameter like :func:`write_png_images`; SOG lists files instead."""
    values = meta.part(name).values
    return "shape" in values and "files" not in values


def read_png_images(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Reads the parameters that :func:`write_png_images` or gsplat's ``PngCompression`` wrote, on the CPU."""
    require("PIL")
    path = Path(folder)

    def load(name: str) -> bytes:
        try:
            return read_file(path / name, META_MAX if name == META else None)
        except OSError as error:
            raise FileError(f"{path}: cannot read {name} ({error.strerror})") from error

    meta = JsonObject.parse(str(path), load(META), META)
    tensors: dict[str, Tensor] = {}
    needed = sum(VALUE_BYTES_MAX * math.prod(_shape(meta.part(name))) for name in meta.values)
    check_memory(f"{path}: the parameters in {META}", needed)
    for name in meta.values:
        if not is_file_name(name):
            raise FileError(f"{path}: {META}: {name!r} is not the name of a file")
        part = meta.part(name)
        shape, dtype = _shape(part), _dtype(part)
        if math.prod(shape) == 0:
            tensors[name] = torch.zeros(shape, dtype=dtype, device="cpu")
            continue
        if name == CLUSTERED:
            array = _decode_clusters(part, path / f"{name}.npz", shape)
        elif name == MEANS or name in BYTES:
            array = _decode_images(part, name, load, shape)
        else:
            (array,) = _load_arrays(path / f"{name}.npz", math.prod(shape), "arr")
        if array.size != math.prod(shape):
            raise part.fail("shape", f"that of {array.size} values")
        tensors[name] = torch.from_numpy(array.reshape(shape)).to(dtype)
    counts = {len(tensor) for tensor in tensors.values()}
    if len(counts) > 1:
        raise FileError(f"{path}: {META}: expected one number of Gaussians, found {sorted(counts)}")
    return tensors


def read_png_model(folder: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads the Gaussians in a folder written by gsplat's ``PngCompression``; calls `warn` with ignored parameters."""
    tensors = read_png_images(folder)
    missing = [name for name in PARAMETERS if name not in tensors]
    if missing:
        raise FileError(f"{folder}: {META}: expected {', '.join(PARAMETERS)}; {', '.join(missing)} is missing")
    note_ignored(folder, "the parameters", (name for name in tensors if name not in PARAMETERS), warn)
    fields = {field: tensors[name].float() for name, field in PARAMETERS.items()}
    fields["opacity_logits"] = fields["opacity_logits"].flatten()
    try:
        return Gaussians(**fields, antialiased=False, surfels=False)
    except ArgumentError as error:
        raise FileError(f"{folder}: {error}") from error


def _check_tensors(tensors: Mapping[str, Tensor]) -> int:
    """Checks names, shapes and values. Returns the number of pixels along an edge."""
    if MEANS not in tensors or tensors[MEANS].dim() != 2 or tensors[MEANS].shape[1] != 3:
        raise ShapeError(f"{MEANS}: expected [N, 3], found {list(tensors[MEANS].shape) if MEANS in tensors else None}")
    n = len(tensors[MEANS])
    side = math.isqrt(n)
    if side**2 != n:
        raise ShapeError(f"{MEANS}: expected a square number of Gaussians, found {n}")
    for name, tensor in tensors.items():
        if not is_file_name(name):
            raise ArgumentError(f"tensors: {name!r} is not the name of a file")
        if tensor.dim() == 0 or len(tensor) != n:
            raise ShapeError(f"{name}: expected [N, ...] as {MEANS}, here [{n}, ...], found {list(tensor.shape)}")
        if name in BYTES and n and tensor.numel() // n not in CHANNELS:
            raise ShapeError(f"{name}: expected 1 to {max(CHANNELS)} channels, found {list(tensor.shape)}")
        if name in (MEANS, CLUSTERED, *BYTES) and not tensor.isfinite().all():
            n_invalid = int((~tensor.reshape(n, -1).isfinite()).any(1).sum())
            raise ArgumentError(f"{name}: {n_invalid:,} of {n:,} Gaussians are not finite; remove them")
    return side


def _to_numpy(tensor: Tensor) -> Array:
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def _quantize(values: Array, low: Array, high: Array, bits: int) -> Array:
    """Scales values between their bounds to integers. Constant values become 0."""
    return rounded(fractions_of(low, high, values) * (2**bits - 1))


def _encode_images(name: str, pixels: Array) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Encodes pixels [H, W, channels] as one or two PNG files. Returns them by name, and their bounds."""
    values = pixels.astype(np.float64)
    if name == MEANS:
        values = signed_log(values)
    low, high = values.min((0, 1)), values.max((0, 1))
    bounds = {"mins": low.tolist(), "maxs": high.tolist()}
    if name != MEANS:
        return {f"{name}.png": _png(_quantize(values, low, high, 8))}, bounds
    words = _quantize(values, low, high, 16).astype(np.uint16)
    return {f"{name}_l.png": _png(words & 255), f"{name}_u.png": _png(words >> 8)}, bounds


def _decode_images(part: JsonObject, name: str, load: Load, shape: list[int]) -> Array:
    """Decodes the values of a parameter, [N, channels]."""
    n = shape[0]
    n_channels = math.prod(shape[1:])
    if n_channels not in CHANNELS or (name == MEANS and n_channels != 3):
        raise part.fail("shape", f"that of 1 to {max(CHANNELS)} channels")
    low, high = part.log_bounds() if name == MEANS else (part.floats(bound, n_channels) for bound in ("mins", "maxs"))

    def levels(file_name: str) -> Array:
        pixels = decode_image(part.path, file_name, load(file_name), n).reshape(-1, 4)
        if len(pixels) != n:
            raise FileError(f"{part.path}: {file_name}: expected {n} pixels, found {len(pixels)}; it is damaged")
        return pixels[:, CHANNELS[n_channels]]

    if name != MEANS:
        return interpolate(low, high, levels(f"{name}.png") / 255)
    words = levels(f"{name}_u.png").astype(np.uint16) << 8 | levels(f"{name}_l.png")
    return signed_exp(interpolate(low, high, words / 65535))


def _png(levels: Array) -> bytes:
    """Encodes levels from 0 to 255, [H, W, channels], as a PNG."""
    from PIL import Image

    file = io.BytesIO()
    pixels = levels.astype(np.uint8)
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _encode_clusters(tensor: Tensor) -> tuple[bytes, dict[str, Any]]:
    """Encodes SH coefficients [N, K, 3] by clusters. Returns the file and the bounds of the centroids."""
    rows = tensor.reshape(len(tensor), -1)
    rows = rows if rows.dtype == torch.float64 else rows.float()
    candidates, nearest = torch.unique(rows, dim=0, return_inverse=True)
    if len(candidates) > N_CLUSTERS:
        clusters = Clusters.fit(rows, N_CLUSTERS)
        candidates, nearest = clusters.centroids, clusters.nearest(rows)
    used, labels = torch.unique(nearest, return_inverse=True)
    centroids = candidates[used].double().cpu().numpy()
    low, high = centroids.min(), centroids.max()
    levels = _quantize(centroids, low, high, CLUSTER_BITS).astype(np.uint8)
    # Compare levels, because different centroids may have become equal.
    levels, indices = np.unique(levels, axis=0, return_inverse=True)
    content = _npz(centroids=levels, labels=indices.reshape(-1)[labels.cpu().numpy()].astype(np.uint16))
    return content, {"mins": float(low), "maxs": float(high), "quantization": CLUSTER_BITS}


def _decode_clusters(part: JsonObject, path: Path, shape: list[int]) -> Array:
    """Decodes SH coefficients, [N, K * 3]."""
    low, high, bits = part.number("mins"), part.number("maxs"), part.count("quantization")
    if not 1 <= bits <= 16:
        raise part.fail("quantization", "1 to 16 bits")
    columns = math.prod(shape[1:])
    levels, labels = _load_arrays(path, max(N_CLUSTERS * columns, shape[0]), "centroids", "labels")
    if levels.ndim != 2 or levels.shape[1] != columns or labels.shape != (shape[0],) or labels.dtype.kind not in "iu":
        raise FileError(
            f"{path}: expected centroids [?, {columns}] and integer labels [{shape[0]}], found "
            f"{list(levels.shape)} and {labels.dtype} {list(labels.shape)}; it is damaged"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= len(levels):
        raise FileError(f"{path}: expected labels from 0 to {len(levels) - 1}; it is damaged")
    return np.take(interpolate(low, high, levels / (2**bits - 1)), labels, 0)


def _npz(**arrays: Array) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _load_arrays(path: Path, size_max: int, *names: str) -> list[Array]:
    """Reads arrays with at most `size_max` numbers from an NPZ file."""
    try:
        load = archive_loader(path, VALUE_BYTES_MAX * size_max + NPY_HEADER_MAX)
    except OSError as error:
        raise FileError(f"{path}: cannot read the file ({error.strerror})") from error
    return [_decode_array(path, name, load(f"{name}.npy")) for name in names]


def _decode_array(path: Path, name: str, content: bytes) -> Array:
    """Decodes an array of numbers in an NPZ file."""
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (*ZIP_ERRORS, MemoryError, SyntaxError, TypeError, tokenize.TokenError) as error:
        raise FileError(f"{path}: {name} is damaged ({error})") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.itemsize > VALUE_BYTES_MAX:
        raise FileError(f"{path}: {name}: expected an array of numbers; it is damaged")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))


def _shape(part: JsonObject) -> list[int]:
    value = part.values.get("shape")
    sizes = value if isinstance(value, list) else []
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise part.fail("shape", "a list of nonnegative integers")
    if math.prod(max(size, 1) for size in sizes) > SIZE_MAX:
        raise part.fail("shape", f"that of at most {SIZE_MAX} values")
    return sizes


def _dtype(part: JsonObject) -> torch.dtype:
    value = part.values.get("dtype")
    if value not in DTYPES:
        raise part.fail("dtype", f"one of {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, value)
    return dtype
