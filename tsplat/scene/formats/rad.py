"""Reads ``.rad`` files of Spark (sparkjsdev/spark), version 1.

A JSON header contains the number of Gaussians and the locations of their chunks of up to 65,536: after the header, or
in files beside it. A chunk has a JSON header that lists the properties, followed by one column per property: component
by component for all Gaussians, compressed with deflate. In a tree of levels of detail, inner nodes are Gaussians with a
nonzero number of children; the leaves are the model.
"""

import dataclasses
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import FileError, UnsupportedError
from ...support.reading import open_file
from ..gaussians import Gaussians
from ..quantization import Floats, gaussians_from_activated, sh0_from_colors
from .foreign import Warn
from .json_objects import JsonObject
from .model_memory import check_model_memory
from .streaming.streamed_sog import check_names

MAGIC, CHUNK_MAGIC = b"RAD0", b"RADC"
VERSION = 1
HEADER_MAX = 1 << 28
"""Maximum size of a header in bytes."""

DEGREE_MAX = 3
SH_NAMES = ("sh1", "sh2", "sh3")
SIZES = {
    **{"f32": 4, "f32_lebytes": 4, "f16": 2, "f16_lebytes": 2, "ln_f16": 2, "r8": 1, "r8_delta": 1, "s8": 1},
    **{"s8_delta": 1, "ln_0r8": 1, "oct88r8": 1, "u16": 2, "u32": 4},
}
"""Encoding -> bytes per component. ``oct88r8`` has three bytes per rotation."""

FLOATS = ("f32", "f16")
SH_ENCODINGS = (*FLOATS, "r8", "r8_delta", "s8", "s8_delta")
ENCODINGS: dict[str, tuple[int, tuple[str, ...]]] = {
    "center": (3, (*FLOATS, "f32_lebytes", "f16_lebytes")),
    "alpha": (1, (*FLOATS, "r8")),
    "rgb": (3, (*FLOATS, "r8", "r8_delta")),
    "scales": (3, ("f32", "ln_0r8", "ln_f16")),
    "orientation": (3, (*FLOATS, "oct88r8")),
    **{name + end: (size, SH_ENCODINGS) for name, size in zip(SH_NAMES, (9, 15, 21)) for end in ("", "_code")},
    "sh_label": (1, ("u16", "u32")),
    "child_count": (1, ("u16",)),
    "child_start": (1, ("u32",)),
}
"""Property -> number of components, and allowed encodings."""

REQUIRED = ("center", "alpha", "rgb", "scales", "orientation")

Columns = dict[str, NDArray[Any]]
"""Property -> values [N, components]."""


@dataclasses.dataclass
class _File:
    """Data that all chunks share: the path, the SH degree, whether there is a tree, and the palette of SH coefficients.

    `palette` contains the rows [K, components] of each degree after the chunk that stores them has been read.
    """

    path: str
    degree: int
    has_tree: bool
    n_codes: int
    palette: Columns = dataclasses.field(default_factory=dict)


def read_rad(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads a ``.rad`` file, or the leaves of its levels of detail, without converting axes.

    Args:
        path: Path of the file; its chunks may be in files beside it.
        warn: Called with notes about coarser levels, and about data after the last chunk.

    Raises:
        FileError: The file is damaged or truncated, or the file of a chunk is missing.
        UnsupportedError: The version, a property or an encoding is not supported.
        OSError: The file cannot be read.
    """
    path = Path(path)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if (magic := file.read(4)) == CHUNK_MAGIC:
            raise FileError(f"{path}: a chunk of a .rad file; open the .rad file beside it")
        if magic != MAGIC:
            raise FileError(f"{path}: expected {MAGIC.decode()} at its start, found {magic!a}; not a .rad file")
        header = _read_header(str(path), file, size, "header")
        if (version := header.count("version")) != VERSION:
            raise UnsupportedError(f"{path}: expected RAD of version {VERSION}, found {version}")
        if (kind := header.text("type")) != "gsplat":
            raise UnsupportedError(f"{path}: expected RAD of the type gsplat, found {kind[:20]!a}")
        count, degree = header.count("count"), header.count("maxSh", 0)
        if degree > DEGREE_MAX:
            raise UnsupportedError(f"{path}: expected an SH degree from 0 to {DEGREE_MAX}, found {degree}")
        check_model_memory(str(path), count, degree)
        common = _File(str(path), degree, header.values.get("lodTree") is True, header.count("shCodeCount", 0))
        start = file.tell()
        chunks = header.parts("chunks")
        check_names(path, [chunk.text("filename") for chunk in chunks if chunk.values.get("filename") is not None])
        parts: list[tuple[Floats, ...]] = []
        n_read, end = 0, start
        for chunk in chunks:
            if chunk.values.get("filename") is None:
                file.seek(start + min(chunk.count("offset"), size))
                columns = _read_chunk(common, file, size, n_read, count, len(parts))
                end = max(end, file.tell())
            else:
                columns = _read_chunk_file(common, path.parent / chunk.text("filename"), n_read, count, len(parts))
            n_read += len(columns["center"])
            parts.append(_finish(common, columns))
    if n_read != count:
        raise FileError(f"{path}: expected {count:,} Gaussians, found {n_read:,} in its chunks; it is damaged")
    if size > end:
        warn(f"{path}: ignored {size - end:,} bytes after the last chunk")
    shapes = ((3,), (3,), (4,), (), ((degree + 1) ** 2, 3))
    empty = [np.zeros((0, *shape), np.float32) for shape in shapes]
    means, scales, quats, opacities, sh = (np.concatenate(values) for values in zip(empty, *parts))
    if common.has_tree:
        warn(f"{path}: read the finest level of detail, {len(means):,} of {count:,} Gaussians")
    return gaussians_from_activated(str(path), means, scales, quats, opacities, sh, warn)


def _read_header(path: str, file: BinaryIO, size: int, name: str) -> JsonObject:
    """Reads a length and that many bytes of JSON, and skips to the next multiple of 8 bytes."""
    content = file.read(4)
    length = struct.unpack("<I", content)[0] if len(content) == 4 else 0
    if not 0 < length <= min(HEADER_MAX, size - file.tell()):
        raise FileError(f"{path}: its {name} says that it has {length:,} bytes; the file is cut short or damaged")
    header = JsonObject.parse(path, file.read(length), name)
    file.seek(-length % 8, os.SEEK_CUR)
    return header


def _read_chunk_file(common: _File, path: Path, n_read: int, count: int, index: int) -> Columns:
    """Reads a chunk from a file beside the ``.rad`` file."""
    if not os.path.isfile(path):  # also if the name is too long for a file
        raise FileError(f"{common.path}: its file {path.name[:60]!a} is missing, or its name is damaged")
    with open_file(path) as file:
        return _read_chunk(common, file, os.fstat(file.fileno()).st_size, n_read, count, index)


def _read_chunk(common: _File, file: BinaryIO, size: int, n_read: int, count: int, index: int) -> Columns:
    """Reads the properties of the chunk at the current position of a file of `size` bytes.

    `n_read` of `count` Gaussians have been read before. Returns the values of each property, moves to the end of the
    chunk, and stores palettes of SH coefficients in `common`.
    """
    path, name = common.path, f"chunk {index}"
    if (magic := file.read(4)) != CHUNK_MAGIC:
        raise FileError(f"{path}: {name}: expected {CHUNK_MAGIC.decode()}, found {magic!a}; it is cut short or damaged")
    header = _read_header(path, file, size, f"header of {name}")
    if (version := header.count("version")) != VERSION:
        raise UnsupportedError(f"{path}: {name}: expected version {VERSION}, found {version}")
    base, n = header.count("base"), header.count("count")
    if base != n_read or n > count - base:
        raise FileError(f"{path}: {name}: {n:,} Gaussians from {base:,} on do not follow {n_read:,} of {count:,}")
    content = file.read(8)
    payload = struct.unpack("<Q", content)[0] if len(content) == 8 else size
    start = file.tell()
    if payload > size - start:
        raise FileError(f"{path}: {name}: expected {payload:,} bytes, found {size - start:,}; it is cut short")
    columns: Columns = {}
    for entry in header.parts("properties"):
        property_ = entry.text("property")
        if property_ not in ENCODINGS:
            raise UnsupportedError(f"{path}: {name}: expected {', '.join(ENCODINGS)}, found {property_[:40]!a}")
        if property_ in columns:
            raise FileError(f"{path}: {name}: has {property_} twice; it is damaged")
        offset, length = entry.count("offset"), entry.count("bytes")
        if offset + length > payload:
            raise FileError(f"{path}: {name}: {property_} ends after the chunk; it is damaged")
        file.seek(start + offset)
        rows = (common.n_codes or n) if property_.endswith("_code") else n
        columns[property_] = _decode(entry, file.read(length), rows, f"{path}: {name}: {property_}")
    if missing := [required for required in REQUIRED if required not in columns]:
        raise FileError(f"{path}: {name}: has no {missing[0]}; it is damaged")
    for degree_name in SH_NAMES:
        if (code := f"{degree_name}_code") in columns:
            common.palette[degree_name] = columns[code]
    file.seek(start + payload)
    return columns


def _decode(entry: JsonObject, content: bytes, rows: int, where: str) -> NDArray[Any]:
    """Returns the values [rows, components] of a property."""
    size, allowed = ENCODINGS[entry.text("property")]
    encoding = entry.text("encoding")
    if encoding not in allowed:
        raise UnsupportedError(f"{where}: expected an encoding of {', '.join(allowed)}, found {encoding[:20]!a}")
    n_bytes = rows * size * SIZES[encoding]
    compression = entry.values.get("compression")
    if compression is not None:
        if compression != "gz":
            raise UnsupportedError(f"{where}: expected the compression gz, found {str(compression)[:20]!a}")
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = inflate.decompress(content, n_bytes + 1)
        except zlib.error as error:
            raise FileError(f"{where}: cannot be decompressed ({error}); it is damaged") from error
    if len(content) != n_bytes:
        found = f"{len(content):,}" if len(content) < n_bytes else "more"
        raise FileError(f"{where}: expected {n_bytes:,} bytes for {rows:,} rows, found {found}; it is damaged")
    if encoding == "oct88r8":
        return np.frombuffer(content, np.uint8).reshape(rows, 3)
    if encoding.endswith("_lebytes"):
        # The first bytes of all values are stored first, then the second bytes, and so on.
        planes = np.frombuffer(content, np.uint8).reshape(SIZES[encoding], size * rows)
        content, encoding = planes.T.tobytes(), encoding.removesuffix("_lebytes")
    types = {"f32": "<f4", "f16": "<f2", "ln_f16": "<f2", "u16": "<u2", "u32": "<u4", "s8": "i1"}
    values: NDArray[Any] = np.frombuffer(content, types.get(encoding, "u1")).reshape(size, rows).T
    if encoding.endswith("_delta"):
        values = np.cumsum(values, 0, dtype=np.uint8)  # modulo 256
        values = values.view(np.int8) if encoding == "s8_delta" else values
    if encoding in ("u16", "u32"):
        return values
    floats = values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if encoding.startswith("s8"):
            return floats / np.float32(127) * np.float32(entry.number("max"))
        if encoding == "ln_f16":
            return np.exp(floats)
        if encoding in ("r8", "r8_delta", "ln_0r8"):
            low, high = np.float32(entry.number("min")), np.float32(entry.number("max"))
            if encoding == "ln_0r8":  # 0 represents a scale of zero
                return np.where(values == 0, np.float32(0), np.exp(low + (floats - 1) / np.float32(254) * (high - low)))
            return low + floats / np.float32(255) * (high - low)
    return floats


def _finish(common: _File, columns: Columns) -> tuple[Floats, ...]:
    """Returns means, scales, quats wxyz, opacities and SH coefficients [N, K, 3] of a chunk, without inner nodes."""
    if common.has_tree:
        if "child_count" not in columns:
            raise FileError(f"{common.path}: has levels of detail, and a chunk without child_count; it is damaged")
        is_leaf = columns["child_count"][:, 0] == 0
        n = len(is_leaf)
        columns = {name: values[is_leaf] if len(values) == n and not name.endswith("_code") else values
                   for name, values in columns.items()}  # fmt: skip
    colors = sh0_from_colors(columns["rgb"][:, None, :])
    opacities = columns["alpha"][:, 0].clip(max=1)  # inner nodes have up to 2
    bands = [_band(common, columns, name) for name in SH_NAMES[: common.degree]]
    return (
        columns["center"],
        columns["scales"],
        _rotations(columns["orientation"]),
        opacities,
        np.concatenate([colors, *bands], 1),
    )


def _band(common: _File, columns: Columns, name: str) -> Floats:
    """Returns the SH coefficients [N, 2 degree + 1, 3] of a degree, from the chunk itself or by its palette labels."""
    if name in columns:
        values = columns[name]
    elif name in common.palette and "sh_label" in columns:
        labels, palette = columns["sh_label"][:, 0], common.palette[name]
        if len(labels) and int(labels.max()) >= len(palette):
            raise FileError(f"{common.path}: sh_label: {labels.max()} of a palette of {len(palette):,} rows; damaged")
        values = palette[labels]
    else:
        raise FileError(f"{common.path}: a chunk has no {name}; it is damaged")
    return values.reshape(len(values), -1, 3)


def _rotations(values: NDArray[Any]) -> Floats:
    """Returns quaternions [N, 4] wxyz from their x, y and z, or from three bytes with an octahedral axis and an
    angle."""
    if values.dtype != np.uint8:
        xyz = values.astype(np.float64)
        w = np.sqrt((1 - np.square(xyz).sum(1, keepdims=True)).clip(0))
        return np.concatenate([w, xyz], 1).astype(np.float32)
    x, y = (values[:, :2].astype(np.float64) / 255 * 2 - 1).T
    z = 1 - abs(x) - abs(y)
    folded = (-z).clip(0)
    axis = np.stack([x - np.copysign(folded, x), y - np.copysign(folded, y), z], 1)
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    half = values[:, 2:].astype(np.float64) / 255 * np.pi / 2
    return np.concatenate([np.cos(half), axis * np.sin(half)], 1).astype(np.float32)
