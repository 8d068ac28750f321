"""Reads LCC of XGRIDS, versions 3 to 5. Data Organization Format originated from XGRIDS
(github.com/xgrids/LCCWhitepaper).

``NAME.lcc`` is JSON. ``index.bin`` has a record per grid cell: for each level of detail, finest first, the number of
Gaussians and their offset in ``data.bin``. There, a Gaussian has 32 bytes: its position, RGBA as bytes (opacity after
the sigmoid), scales after exp as 16-bit fractions between bounds in the JSON, the rotation as the three smallest
components of xyzw with 10 bits each, and an unused normal. ``shcoef.bin`` has 64 bytes per Gaussian: 15 SH coefficients
as fractions of 11, 10 and 11 bits, and 4 bytes of padding. ``environment.bin`` contains the data of both files for each
Gaussian of the surroundings, with separate bounds. x is right, y forward, z up.
"""

import itertools
import os
import warnings
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import FileError, UnsupportedError
from ...support.reading import open_file, read_file
from ..gaussians import Gaussians
from ..georeference import Georeference
from ..quantization import (
    Floats,
    gaussians_from_activated,
    interpolate,
    quats_from_smallest_three,
    sh0_from_colors,
)
from ..rotation import similarity, transform_gaussians, upright
from .binary_records import read_records
from .foreign import Warn
from .json_objects import JsonObject
from .model_memory import check_model_memory

META_MAX = 1 << 28
"""Maximum size of the JSON in bytes."""

SUFFIXES = (".lcc", ".lcc2")
UP = (0.0, 0.0, 1.0)
VERSIONS, ENCODING = ("3", "4", "5"), "COMPRESS"
RECORD = np.dtype(
    [("means", "<f4", 3), ("rgba", "u1", 4), ("scales", "<u2", 3), ("rotation", "<u4"), ("normal", "<u2", 3)]
)
WORDS, COEFFICIENTS = np.dtype([("sh", "<u4", 16)]), 15
SH_BITS = ((0, 2047), (11, 1023), (21, 2047))
"""First bit and maximum value of red, green and blue in a word of SH coefficients."""

CELL_BYTES = 4
"""Bytes of a record in ``index.bin`` before its levels."""

LEVEL = np.dtype([("count", "<u4"), ("offset", "<u8"), ("size", "<u4")])


def read_lcc(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads the finest level of detail of an LCC dataset, and its surroundings, converted to the axes of PLY files.

    Args:
        path: ``NAME.lcc``; the other files are beside it.
        warn: Called with notes about coarser levels, surroundings, and Gaussians with negative scales.

    Raises:
        FileError: A file is damaged, truncated, or inconsistent with the others.
        UnsupportedError: The version or encoding is not supported, or the dataset shifts or scales coordinates.
        OSError: A file is missing or cannot be read.
    """
    path = Path(path)
    meta = read_meta(path)
    version, encoding = meta.text("version"), meta.values.get("encoding", ENCODING)
    kind = meta.values.get("fileType")  # missing in version 3
    if version.partition(".")[0] not in VERSIONS:
        raise UnsupportedError(f"{path}: expected LCC of version 3 to 5, found {version[:20]!a}")
    if encoding != ENCODING:
        raise UnsupportedError(f"{path}: expected the encoding {ENCODING}, found {str(encoding)[:20]!a}")
    if kind not in ("Portable", "Quality", None):
        raise UnsupportedError(f"{path}: expected the fileType Portable or Quality, found {str(kind)[:20]!a}")
    coefficients = _beside(path, "shcoef.bin")
    has_sh = kind == "Quality" or (kind is None and coefficients.is_file())
    n_levels, ranges = _read_index(path, meta, has_sh)
    if n_levels > 1:
        warn(f"{path}: read the finest of {n_levels} levels of detail")
    surroundings = _beside(path, "environment.bin")
    both = np.dtype([*RECORD.descr, *(WORDS.descr if has_sh else [])])
    n_around, rest = divmod(surroundings.stat().st_size if surroundings.is_file() else 0, both.itemsize)
    if rest:
        raise FileError(
            f"{surroundings}: expected records of {both.itemsize:,} bytes, found {rest} more; it is damaged"
        )
    check_model_memory(str(path), sum(count for count, _ in ranges) + n_around, 3 if has_sh else 0)
    records = _read_rows(_beside(path, "data.bin"), RECORD, ranges)
    words = _read_rows(coefficients, WORDS, [(count, 2 * start) for count, start in ranges]) if has_sh else None
    parts = [_decode(meta, records, words, "scale", "shcoef")]
    if n_around:
        warn(f"{path}: {n_around:,} Gaussians are the surroundings in {surroundings.name}")
        around = _read_rows(surroundings, both, [(n_around, 0)])
        parts.append(_decode(meta, around, around if has_sh else None, "envscale", "envshcoef"))
    means, scales, quats, rgba, shN = (np.concatenate(values) for values in zip(*parts))
    sh = np.concatenate([sh0_from_colors(rgba[:, None, :3]), shN], 1)
    gaussians = gaussians_from_activated(str(path), means, scales, quats, rgba[:, 3], sh, warn)
    return transform_gaussians(gaussians, upright(UP))


def find_index(path: Path) -> Path | None:
    """Returns the JSON file of LCC or LCC2: the path itself, or the only one in a folder; None for other models."""
    found = [entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES] if path.is_dir() else [path]
    return found[0] if len(found) == 1 and found[0].suffix.lower() in SUFFIXES else None


def read_meta(path: Path) -> JsonObject:
    """Reads the JSON of LCC or LCC2. Raises UnsupportedError if it shifts or scales coordinates."""
    meta = JsonObject.parse(str(path), read_file(path, META_MAX), path.name)
    for name, expected in (("shift", 0), ("scale", 1)):
        if name in meta.values and (found := meta.floats(name, 3).tolist()) != [expected] * 3:
            raise UnsupportedError(f"{path}: expected a {name} of {expected} along all axes, found {found}")
    return meta


def read_offset(path: Path) -> Georeference | None:
    """Returns the georeference that the offset of LCC or LCC2 defines; None without an offset."""
    meta = read_meta(path)
    if "offset" not in meta.values or not (offset := meta.floats("offset", 3)).any():
        return None
    epsg = meta.count("epsg", 0)
    return Georeference(upright(UP) @ similarity(translation=(-offset).tolist()), f"EPSG:{epsg}" if epsg else None)


def _beside(path: Path, name: str) -> Path:
    """Returns the path of a file of the dataset; its name may begin with a capital letter."""
    capital = path.with_name(name.capitalize())
    return capital if capital.is_file() else path.with_name(name)


def _read_index(path: Path, meta: JsonObject, has_sh: bool) -> tuple[int, list[tuple[int, int]]]:
    """Returns the number of levels, and for the finest level the number of Gaussians and first byte of each cell.

    Raises FileError unless all Gaussians of all levels have their own bytes in ``data.bin`` and ``shcoef.bin``.
    """
    n_levels = meta.count("totalLevel")
    index, record_bytes = _beside(path, "index.bin"), CELL_BYTES + LEVEL.itemsize * n_levels
    content = read_file(index)
    stated = meta.count("indexDataSize", record_bytes)
    if n_levels == 0 or stated != record_bytes or len(content) % record_bytes:
        raise FileError(
            f"{index}: expected records of {record_bytes:,} bytes for {n_levels:,} levels of detail, found "
            f"{len(content):,} bytes in all, and an indexDataSize of {stated:,}; it or {path.name} is damaged"
        )
    available = _beside(path, "data.bin").stat().st_size
    if has_sh:
        available = min(available, _beside(path, "shcoef.bin").stat().st_size // 2)
    starts = range(CELL_BYTES, len(content), record_bytes)
    cells = [np.frombuffer(content, LEVEL, n_levels, start).tolist() for start in starts]
    end = 0
    for count, offset, size in sorted(itertools.chain(*cells), key=itemgetter(1)):
        if size != RECORD.itemsize * count or (count and not end <= offset <= available - size):
            raise FileError(
                f"{index}: expected {RECORD.itemsize:,} bytes for each of {count:,} Gaussians from byte {offset:,} on, "
                f"after others up to {end:,}, found {size:,} of {available:,} in {path.with_name('data.bin')}; a file "
                "is cut short or damaged"
            )
        end = offset + size if count else end
    total, counts = sum(levels[0][0] for levels in cells), meta.values.get("splats", [None])
    if end < available and (not isinstance(counts, list) or counts[:1] != [total]):
        raise FileError(
            f"{index}: names {end:,} of {available:,} bytes of {path.with_name('data.bin')}, {total:,} Gaussians of "
            f"the finest level, not as many as {path.name}; it is cut short or damaged"
        )
    return n_levels, [(count, offset) for (count, offset, _), *_ in cells]


def _read_rows(path: Path, record: np.dtype[np.void], ranges: list[tuple[int, int]]) -> NDArray[np.void]:
    """Reads the records of a file in ranges, each given by a count and a first byte."""
    parts = [np.zeros(0, record)]
    with open_file(path) as file:
        for count, start in ranges:
            file.seek(start)
            parts.append(read_records(file, path, record, count))
    return np.concatenate(parts)


def _decode(
    meta: JsonObject, records: NDArray[np.void], words: NDArray[np.void] | None, scale: str, shcoef: str
) -> tuple[Floats, ...]:
    """Returns means, scales, quats, RGBA in [0, 1] and SH coefficients [N, 0 or 15, 3].

    `scale` and `shcoef` name the attributes of the JSON that contain bounds; see :func:`_bounds`.
    """
    low, high = _bounds(meta, scale)
    scales = interpolate(low, high, records["scales"] / np.float64(65535))
    codes = records["rotation"][:, None]
    others = (codes >> np.array([0, 10, 20], np.uint32) & 1023) / 1023 * 2**0.5 - 0.5**0.5
    quats = quats_from_smallest_three(others, codes[:, 0] >> 30)[:, [3, 0, 1, 2]]
    coefficients = np.zeros((len(records), 0, 3), np.float32)
    if words is not None:
        low, high = _bounds(meta, shcoef).astype(np.float32)
        parts = [(words["sh"][:, :COEFFICIENTS] >> shift & most).astype(np.float32) / most for shift, most in SH_BITS]
        coefficients = interpolate(low, high, np.stack(parts, -1))
    rgba = records["rgba"].astype(np.float32) / np.float32(255)
    return records["means"], scales.astype(np.float32), quats, rgba, coefficients


def _bounds(meta: JsonObject, name: str) -> NDArray[np.float64]:
    """Returns the bounds [2, 3] of an attribute; if the bounds of surroundings are missing, those of the main model."""
    attributes = {str(one.values.get("name")): one for one in meta.parts("attributes")}
    found = attributes.get(name, attributes.get(name.removeprefix("env")))
    if found is None:
        raise meta.fail("attributes", f"a list with the bounds of {name}")
    return np.stack([found.floats("min", 3), found.floats("max", 3)])
