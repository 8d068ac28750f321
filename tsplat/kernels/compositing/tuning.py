"""Divides the work of compositing among programs, by device: parts of tiles, chunks of lists, the order of lists, and
compiler options of walks."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...config import FEATURES_MIN
from .. import launch
from ..launch import has_ptx, is_compiled_for_cpu

RESIDENT = 256
"""Number of one-warp programs that any GPU runs at once; the order of fewer does not matter."""

LENGTH_STEP = 64
"""Granularity of lengths when lists are ordered: neighbors of similar length stay together and share caches."""

LENGTH_STEPS_MAX = 2**15 - 1
"""Longer lists, of over two million entries, count as equally long."""

CPU_ROWS = 4
"""Pixel rows of a part of a tile on a CPU: their state stays in registers."""

SEVERAL_TILES, MANY_TILES = 700, 2500
"""Numbers of tiles below which parts are eighths of a tile and above which they are halves, on NVIDIA GPUs. More parts
are more programs; larger parts share more of the work of a Gaussian. On AMD GPUs, parts are whole tiles below FEW_TILES
and above MANY_TILES, and otherwise halves."""

FEW_TILES = 256
"""Number of tiles below which chunks are shortest, and on AMD GPUs parts are whole tiles."""

CHUNKS = {FEW_TILES: 16, SEVERAL_TILES: 64, math.inf: 1024}
"""Entries of the chunks that long lists are cut into on GPUs, for numbers of tiles below the keys. Few tiles do not
fill a GPU, and chunks pay for that with a second walk over all but the last of them."""

AMD_CHUNKS = {FEW_TILES: 192, SEVERAL_TILES: 384, math.inf: 1024}
"""The same on AMD GPUs: the shortest with which a forward pass executes no more than a walk of whole lists of tiles."""

CPU_CHUNK = 2**30
"""A CPU needs no chunks."""

FEATURES_HELD = 6
"""Most features for which a thread holds the state of several pixels."""


class PartShape(NamedTuple):
    """Divides tiles and lists: width and height of a part in pixels, and entries of a chunk of a long list."""

    width: int
    height: int
    chunk: int


def part_shape(tensor: Tensor, tile_size: int, n_tiles: int, n_features: int) -> PartShape:
    """Returns how a tile is composited.

    Args:
        tensor: On the device.
        n_tiles: Number of tiles of all images. That of a band must not matter, or sums would depend on the bands.
    """
    vendor_name = launch.vendor(tensor)
    if is_compiled_for_cpu(tensor):
        return PartShape(tile_size, min(CPU_ROWS, tile_size), CPU_CHUNK)
    chunks = AMD_CHUNKS if vendor_name == "amd" else CHUNKS
    chunk = next(length for limit, length in chunks.items() if n_tiles < limit)
    if n_features > 2 * FEATURES_MIN:
        chunk *= 2  # each keeps the features of its pixels
    if n_features >= FEATURES_MIN:
        width, height = 8, 8
    elif vendor_name == "amd" and n_features <= FEATURES_HELD and not FEW_TILES <= n_tiles <= MANY_TILES:
        width, height = 16, 16
    elif vendor_name == "amd" or (n_tiles > MANY_TILES and n_features <= FEATURES_HELD):
        width, height = 16, 8
    elif n_tiles < SEVERAL_TILES or n_features > FEATURES_HELD:
        width, height = 8, 4
    else:
        width, height = 8, 8
    return PartShape(min(width, tile_size), min(height, tile_size), chunk)


def longest_first(offsets: Tensor) -> Tensor | None:
    """Orders lists by length, so that a launch does not end with a long list.

    Lengths count in steps of ``LENGTH_STEP``; among equals the order remains. Returns None if order does not matter.

    Args:
        offsets: [lists + 1] integers: where each list begins, and where the last one ends.
    """
    if offsets.numel() - 1 <= RESIDENT:
        return None
    return order_by_length((offsets.diff() // LENGTH_STEP).clamp_max(LENGTH_STEPS_MAX).to(torch.int16))


def order_by_length(length_steps: Tensor) -> Tensor:
    """Orders lists by lengths in steps of ``LENGTH_STEP``, [lists] int16, which a radix sort passes over twice."""
    return length_steps.sort(descending=True, stable=True).indices


def part_order(parts: int, isect_offsets: Tensor) -> Tensor | None:
    """Orders the lists of the parts of tiles on a CPU: those of the longest tile first.

    Parts of a tile follow each other, as they read the same Gaussians. Returns None for few lists, whose order does not
    matter.

    Args:
        isect_offsets: [tiles + 1] int32, first intersection of each tile, and M.
    """
    n_tiles = isect_offsets.numel() - 1
    if parts * n_tiles <= RESIDENT:
        return None
    order = longest_first(isect_offsets)
    tiles = torch.arange(n_tiles, device=isect_offsets.device) if order is None else order
    firsts = torch.arange(0, parts * n_tiles, max(n_tiles, 1), device=isect_offsets.device)
    return (tiles[:, None] + firsts).flatten()


def walk_options(tensor: Tensor) -> dict[str, int | bool]:
    """Returns compiler options for kernels in which one warp walks a part's list for many pixels.

    Without contraction beyond the explicit fma, forward and backward round alike. The bound on registers keeps ptxas
    from spilling in favor of occupancy.
    """
    options: dict[str, int | bool] = {"num_warps": 1, "enable_fp_fusion": False}
    if has_ptx(tensor):
        options["maxnreg"] = 192
    return options


def walk_unroll(tensor: Tensor) -> int:
    """Returns how often the loop over a list is unrolled.

    On NVIDIA GPUs, loads then come early enough; on AMD GPUs, loaded records need not be moved between registers.
    """
    return 1 if launch.vendor(tensor) == "none" else 4


def group_options(tensor: Tensor, shape: PartShape) -> dict[str, int | bool]:
    """Returns compiler options for kernels that walk a part's list in groups, whose weights are matrices in registers.

    There are as many warps as it takes for the matrices to fit. Pipelined loads would need more registers.
    """
    warps = max(shape.width * shape.height // 64, 1)
    options: dict[str, int | bool] = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}
    if has_ptx(tensor):
        options["maxnreg"] = 255
    return options
