"""Compressed PLY files of PlayCanvas (SuperSplat, splat-transform): 16 bytes a Gaussian, in chunks of 256.

An element ``chunk`` has bounds of positions, log scales and, in newer files, colors; an element ``vertex`` four
uint32: packed_position and packed_scale as 11, 10 and 11 bits between the bounds, packed_rotation as 2 bits for the
largest component of wxyz and 10 for each other, packed_color as RGB between the bounds and opacity, 8 bits each. An
element ``sh``, if any, has f_rest of one byte, from -4 to 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import FileError
from ..gaussians import Gaussians
from .ply_tables import PlyFile, Table
from .quantization import Floats, color_coefficients, logits, whole_quaternions

CHUNK = 256
AXES = ("x", "y", "z")
VERTEX = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
RANGES = (tuple(AXES), tuple(f"scale_{axis}" for axis in AXES), ("r", "g", "b"))
SH_SIZES = (9, 24, 45)
SH_RANGE = 8.0


def unpack(ply: PlyFile, antialiased: bool) -> Gaussians:
    """Reads the Gaussians of an open compressed PLY.

    Raises:
        FileError: Elements or properties are missing or do not go together, or the file is cut short.
    """
    vertex = _whole(ply, "vertex", VERTEX)
    bounds = ("min_", "max_")
    colored = "min_r" in ply.elements["chunk"].names if "chunk" in ply.elements else False
    ranges = RANGES if colored else RANGES[:2]
    chunk = _whole(ply, "chunk", [bound + name for names in ranges for bound in bounds for name in names])
    if len(chunk) != math.ceil(len(vertex) / CHUNK):
        raise FileError(
            f"{ply.path}: found {len(chunk)} chunks of {CHUNK} for {len(vertex)} Gaussians, "
            f"expected {math.ceil(len(vertex) / CHUNK)}; the file is damaged"
        )
    of = np.arange(len(vertex)) // CHUNK

    def between(parts: NDArray[np.float64], names: tuple[str, ...]) -> Floats:
        low, high = (np.stack([chunk[bound + name] for name in names], 1)[of] for bound in bounds)
        return (low * (1 - parts) + high * parts).astype(np.float32)

    words = {name: vertex[name].astype(np.uint32) for name in VERTEX}
    with np.errstate(over="ignore", invalid="ignore"):
        means = between(_parts(words["packed_position"], (11, 10, 11)), RANGES[0])
        log_scales = between(_parts(words["packed_scale"], (11, 10, 11)), RANGES[1])
        rgba = _parts(words["packed_color"], (8, 8, 8, 8))
        colors = between(rgba[:, :3], RANGES[2]) if colored else rgba[:, :3]
        sh0 = color_coefficients(colors)
    others = (_parts(words["packed_rotation"] & 0x3FFFFFFF, (10, 10, 10)) - 0.5) * math.sqrt(2)
    return Gaussians(
        means=torch.from_numpy(means),
        log_scales=torch.from_numpy(log_scales),
        quats=torch.from_numpy(whole_quaternions(others, words["packed_rotation"] >> 30)),
        opacity_logits=torch.from_numpy(logits(rgba[:, 3])),
        sh0=torch.from_numpy(sh0)[:, None],
        shN=torch.from_numpy(_rest(ply, len(vertex))),
        antialiased=antialiased,
    )


def _whole(ply: PlyFile, name: str, needed: tuple[str, ...] | list[str]) -> Table:
    element = ply.elements.get(name)
    missing = [prop for prop in needed if element is None or prop not in element.names]
    if element is None or missing:
        raise FileError(f"{ply.path}: not a compressed PLY, its element {name!r} lacks {', '.join(missing)}")
    blocks = list(ply.blocks(name))
    return np.concatenate(blocks) if blocks else np.zeros(0, [(prop, "f8") for prop in element.names])


def _parts(words: NDArray[Any], bits: tuple[int, ...]) -> NDArray[np.float64]:
    """[N, len(bits)] Fields of words, the highest first, each from 0 to 1."""
    shifts = [sum(bits[i + 1 :]) for i in range(len(bits))]
    return np.stack([((words >> shift) & (2**n - 1)) / (2**n - 1) for shift, n in zip(shifts, bits)], 1)


def _rest(ply: PlyFile, count: int) -> Floats:
    """[N, K - 1, 3] coefficients of the degrees above 0."""
    if "sh" not in ply.elements:
        return np.zeros((count, 0, 3), np.float32)
    element = ply.elements["sh"]
    size = len(element.names)
    names = [f"f_rest_{i}" for i in range(size)]
    if element.count != count or size not in SH_SIZES or set(names) != set(element.names):
        raise FileError(
            f"{ply.path}: element 'sh' has {size} properties for {element.count} Gaussians; "
            f"expected f_rest_0 up to {SH_SIZES} of them for {count}"
        )
    rest = np.empty((count, size // 3, 3), np.float32)
    first = 0
    for block in ply.blocks("sh"):
        for i, name in enumerate(names):
            steps = block[name].astype(np.float64)
            parts = np.where(steps == 0, 0, np.where(steps == 255, 1, (steps + 0.5) / 256))
            # [n, channels x coefficients] -> [n, coefficients, channels]
            rest[first : first + len(block), i % (size // 3), i // (size // 3)] = (parts - 0.5) * SH_RANGE
        first += len(block)
    return rest
