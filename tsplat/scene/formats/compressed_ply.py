"""Encodes and decodes PlayCanvas's compressed PLY (SuperSplat, splat-transform): 16 bytes per Gaussian, in chunks of
256.

- Element ``chunk``: bounds of the positions, log scales and, in newer files, colors of a chunk.
- Element ``vertex``: four uint32. packed_position and packed_scale have 11, 10 and 11 bits between the bounds;
  packed_rotation has 2 bits for the index of the largest component of wxyz and 10 bits for each other component;
  packed_color has 8 bits each for RGB between the bounds and for opacity.
- Element ``sh`` (optional): f_rest as one byte each, for values from -4 to 4.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from einops import rearrange
from numpy.typing import NDArray

from ...errors import FileError
from ..gaussians import Gaussians
from ..quantization import (
    LOG_SCALE_MAX,
    Floats,
    check_valid,
    fractions_of,
    gaussians_from_arrays,
    interpolate,
    levels,
    quats_from_smallest_three,
    rotation_codes,
    rounded,
    sh0_from_colors,
)
from ..sh_colors import sh0_to_colors
from .foreign import Warn, note_ignored
from .model_memory import check_model_memory
from .ply_file import PlyFile, Table, ply_header

CHUNK = 256
"""Gaussians per chunk."""

VECTOR_BITS = (11, 10, 11)
"""Bits of the components of positions and log scales."""

LARGEST = 2.0 ** np.array(VECTOR_BITS) - 1
"""Largest levels of the components of positions and log scales."""

AXES = ("x", "y", "z")
VERTEX = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
RANGES = (AXES, tuple(f"scale_{axis}" for axis in AXES), ("r", "g", "b"))
BOUNDS = ("min_", "max_")
SH_SIZES = (9, 24, 45)
"""Number of f_rest properties for SH degrees 1 to 3."""

SH_RANGE = 8.0
"""Width of the interval of f_rest values."""


def decode_compressed_ply(ply: PlyFile, antialiased: bool, warn: Warn) -> Gaussians:
    """Decodes the Gaussians of an open compressed PLY. `warn` is called with notes about ignored data."""
    sh_size = len(ply.elements["sh"].names) // 3 if "sh" in ply.elements else 0
    check_model_memory(ply.path, ply.elements["vertex"].count, math.isqrt(min(sh_size, 15) + 1) - 1)
    vertex = _table(ply, "vertex", VERTEX)
    colored = "min_r" in ply.elements["chunk"].names if "chunk" in ply.elements else False
    ranges = RANGES if colored else RANGES[:2]
    chunk = _table(ply, "chunk", _bound_names(ranges))
    if len(chunk) != math.ceil(len(vertex) / CHUNK):
        raise FileError(
            f"{ply.path}: expected {math.ceil(len(vertex) / CHUNK)} chunks for {len(vertex):,} Gaussians, "
            f"found {len(chunk)}; the file is damaged"
        )
    known = {"vertex": VERTEX, "chunk": _bound_names(RANGES)}
    for name, properties in known.items():
        names = (prop for prop in ply.elements[name].names if prop not in properties)
        note_ignored(ply.path, f"the properties of {name!r}:", names, warn)
    note_ignored(ply.path, "the elements", (name for name in ply.elements if name not in (*known, "sh")), warn)
    chunk_ids = np.arange(len(vertex)) // CHUNK

    def between(fractions: NDArray[np.float64], names: tuple[str, ...]) -> Floats:
        low, high = (np.stack([chunk[bound + name] for name in names], 1)[chunk_ids] for bound in BOUNDS)
        return interpolate(low, high, fractions).astype(np.float32)

    words = {name: vertex[name].astype(np.uint32) for name in VERTEX}
    with np.errstate(over="ignore", invalid="ignore"):
        means = between(_unpack(words["packed_position"], VECTOR_BITS), RANGES[0])
        log_scales = between(_unpack(words["packed_scale"], VECTOR_BITS), RANGES[1])
        rgba = _unpack(words["packed_color"], (8, 8, 8, 8))
        colors = between(rgba[:, :3], RANGES[2]) if colored else rgba[:, :3]
        sh0 = sh0_from_colors(colors)
    quats, shN = _decode_quats(words["packed_rotation"]), _decode_sh(ply, len(vertex))
    return gaussians_from_arrays(means, log_scales, quats, rgba[:, 3], sh0[:, None], shN, antialiased)


def encode_compressed_ply(gaussians: Gaussians, comments: Sequence[str]) -> bytes:
    """Encodes Gaussians of SH degree 0 to 3 in the order of :func:`encode_means`, with bounds of the colors.

    Raises ArgumentError if a Gaussian is invalid.
    """
    gaussians = gaussians.map(lambda tensor: tensor.detach().float().cpu())
    check_valid(gaussians)
    order, (mean_bounds, means) = encode_means(gaussians.means.numpy())
    tensors = {**gaussians.tensors(), "opacities": gaussians.opacities}
    arrays = {name: tensor.numpy()[order] for name, tensor in tensors.items()}
    colors = sh0_to_colors(arrays["sh0"][:, 0].astype(np.float64))
    log_scales = np.clip(arrays["log_scales"], -LOG_SCALE_MAX, LOG_SCALE_MAX)
    scale_bounds, scales = _normalize_chunks(log_scales)
    color_bounds, rgb = _normalize_chunks(colors, _stored_color)
    vertex = [
        means,
        rotation_codes(arrays["quats"], _encode_quats, _decode_quats),
        _pack(scales, VECTOR_BITS),
        _pack(np.concatenate([rgb, arrays["opacities"][:, None]], 1), (8, 8, 8, 8)),
    ]
    # Byte b represents b + 0.5, so that a coefficient of 0 is as far from 127 as from 128: always rounding it up would
    # brighten a model with many zeros. In the order of f_rest, [N, 3 (K - 1)].
    bytes_of_sh = levels((arrays["shN"].astype(np.float64) / SH_RANGE + 0.5) * 256 - 0.5)
    sh = rearrange(bytes_of_sh, "n k c -> n (c k)")
    n = len(gaussians)
    elements = {
        "chunk": (len(mean_bounds), [f"float {name}" for name in _bound_names(RANGES)]),
        "vertex": (n, [f"uint {name}" for name in VERTEX]),
        **({"sh": (n, [f"uchar f_rest_{i}" for i in range(sh.shape[1])])} if sh.shape[1] else {}),
    }
    chunk = np.concatenate([mean_bounds, scale_bounds, color_bounds], 1)
    body = chunk.astype("<f4").tobytes() + np.stack(vertex, 1).astype("<u4").tobytes() + sh.tobytes()
    return ply_header(comments, elements) + body


def encode_means(means: Floats) -> tuple[NDArray[np.int64], tuple[Floats, NDArray[np.uint32]]]:
    """Encodes means [N, 3] in an order with small chunks; if the format represents them exactly in their own order, it
    is kept.

    This keeps the chunks of a file that is read and written again. Returns the ids [N] in file order, the bounds of the
    chunks [chunks, 6], and the words [N].
    """
    if _encode_exact(means[:CHUNK]) and (encoded := _encode_exact(means)):
        return np.arange(len(means)), encoded
    order = _order_in_boxes(means)
    bounds, fractions = _normalize_chunks(means[order])
    return order, (bounds, _pack(fractions, VECTOR_BITS))


def position_error(means: Floats) -> float:
    """Returns the largest error of means [N, 3] when each is rounded to the nearest level of its chunk."""
    bounds, _ = encode_means(means)[1]
    return float((np.diff(bounds.reshape(-1, 2, 3), axis=1) / (2 * LARGEST)).max(initial=0))


def _order_in_boxes(means: Floats) -> NDArray[np.int64]:
    """Returns an order [N] of means in which chunks have small boxes, because the precision is a fraction of the box
    size.

    The means are recursively halved at a multiple of the chunk size, along the axis with the largest step, until the
    halves are chunks. In Morton order, chunks may cross jumps of the curve: their largest steps are 2 to 6 times as
    large.
    """
    order = np.arange(len(means))
    stack = [(0, len(means))]
    while stack:
        start, end = stack.pop()
        if end - start > CHUNK:
            part = means[order[start:end]]
            axis = int((np.ptp(part, 0) / LARGEST).argmax())
            middle = math.ceil((end - start) / CHUNK) // 2 * CHUNK
            order[start:end] = order[start:end][part[:, axis].argsort(kind="stable")]
            stack += [(start, start + middle), (start + middle, end)]
    return order


def _encode_exact(means: Floats) -> tuple[Floats, NDArray[np.uint32]] | None:
    """Encodes means in the given order as bounds and words; None if reading them would not return the same values."""
    bounds, fractions = _normalize_chunks(means)
    words = _pack(fractions, VECTOR_BITS)
    per_row = bounds[np.arange(len(means)) // CHUNK]
    stored = interpolate(per_row[:, :3], per_row[:, 3:], _unpack(words, VECTOR_BITS)).astype(np.float32)
    return (bounds, words) if np.array_equal(stored, means) else None


def _stored_color(bound: Floats) -> Floats:
    """Returns a bound of colors that is invariant under conversion to spherical harmonics and back."""
    return sh0_to_colors(sh0_from_colors(bound).astype(np.float64)).astype(np.float32)


def _encode_quats(others: NDArray[np.float64], largest: NDArray[np.intp]) -> NDArray[np.uint32]:
    words: NDArray[np.uint32] = largest.astype(np.uint32) << np.uint32(30)
    return words | _pack(others / math.sqrt(2) + 0.5, (10, 10, 10))


def _decode_quats(words: NDArray[np.uint32]) -> Floats:
    others = (_unpack(words & 0x3FFFFFFF, (10, 10, 10)) - 0.5) * math.sqrt(2)
    return quats_from_smallest_three(others, words >> 30)


def _normalize_chunks(
    values: NDArray[Any], stored: Callable[[Floats], Floats] | None = None
) -> tuple[Floats, NDArray[np.float64]]:
    """Returns the bounds of values [N, 3] in each chunk, [chunks, 6] (min, max), and the values as fractions between
    these bounds, [N, 3]. `stored` may change bounds by a rounding error."""
    count = len(values)
    n_chunks = math.ceil(count / CHUNK)
    # Pad the last chunk with its last value, which does not change its bounds.
    chunks = np.concatenate([values, np.repeat(values[-1:], n_chunks * CHUNK - count, 0)]).reshape(n_chunks, CHUNK, 3)
    low, high = (bound.astype(np.float32) + 0 for bound in (chunks.min(1), chunks.max(1)))  # no -0
    if stored is not None:
        low, high = stored(low), stored(high)
    fractions = fractions_of(low[:, None].astype(np.float64), high[:, None].astype(np.float64), chunks)
    return np.concatenate([low, high], 1), fractions.reshape(-1, 3)[:count]


def _pack(fractions: NDArray[Any], bits: tuple[int, ...]) -> NDArray[np.uint32]:
    """Packs values [N, len(bits)] in [0, 1] into bit fields, the highest first; the inverse of :func:`_unpack`."""
    words = np.zeros(len(fractions), np.uint32)
    largest = np.array([2**n - 1 for n in bits])
    columns = np.clip(rounded(fractions.astype(np.float64) * largest), 0, largest).astype(np.uint32).T
    for column, n in zip(columns, bits):
        words = words << n | column
    return words


def _bound_names(ranges: Iterable[Sequence[str]]) -> list[str]:
    """Returns the properties of a chunk with the bounds of these ranges."""
    return [bound + name for names in ranges for bound in BOUNDS for name in names]


def _table(ply: PlyFile, name: str, needed: Sequence[str]) -> Table:
    """Reads all records of an element; raises FileError if it lacks one of the properties `needed`."""
    element = ply.elements.get(name)
    missing = [prop for prop in needed if element is None or prop not in element.names]
    if element is None or missing:
        raise FileError(f"{ply.path}: not a compressed PLY; its element {name!r} lacks {', '.join(missing)}")
    blocks = list(ply.blocks(name))
    return np.concatenate(blocks) if blocks else np.zeros(0, [(prop, "f8") for prop in element.names])


def _unpack(words: NDArray[Any], bits: tuple[int, ...]) -> NDArray[np.float64]:
    """Splits words [N] into bit fields, the highest first, each scaled to [0, 1]. [N, len(bits)]"""
    shifts = [sum(bits[i + 1 :]) for i in range(len(bits))]
    return np.stack([((words >> shift) & (2**n - 1)) / (2**n - 1) for shift, n in zip(shifts, bits)], 1)


def _decode_sh(ply: PlyFile, count: int) -> Floats:
    """Decodes the SH coefficients above degree 0, [N, K - 1, 3]."""
    element = ply.elements.get("sh")
    if element is None or not element.names:
        return np.zeros((count, 0, 3), np.float32)
    size = len(element.names)
    names = [f"f_rest_{i}" for i in range(size)]
    if element.count != count or size not in SH_SIZES or set(names) != set(element.names):
        raise FileError(
            f"{ply.path}: element 'sh': expected {SH_SIZES} properties f_rest_0, f_rest_1, ... of {count:,} Gaussians, "
            f"found {size} properties of {element.count:,} Gaussians; the file is damaged"
        )
    rest = np.empty((count, size // 3, 3), np.float32)
    first = 0
    for block in ply.blocks("sh"):
        for i, name in enumerate(names):
            codes = block[name].astype(np.float64)
            fractions = np.where(codes == 0, 0, np.where(codes == 255, 1, (codes + 0.5) / 256))
            # [n, channels x coefficients] -> [n, coefficients, channels]
            rest[first : first + len(block), i % (size // 3), i // (size // 3)] = (fractions - 0.5) * SH_RANGE
        first += len(block)
    return rest
