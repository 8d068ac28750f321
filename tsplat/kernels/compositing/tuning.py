"""Tuning of compositing for a device: parts of tiles, chunks of lists, order of lists, compiler options of walks."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...config import FEATURES_MIN
from .. import launch
from ..launch import has_ptx, is_compiled_for_cpu

RESIDENT = 256
"""Number of one-warp programs that any GPU runs at once. The order of fewer programs does not matter."""

LENGTH_STEP = 64
"""Granularity of lengths when lists are ordered, so that neighbors of similar length stay together and share caches."""

LENGTH_STEPS_MAX = 2**15 - 1
"""Lists with more steps, of over two million entries, count as equally long."""

CPU_ROWS = 4
"""Pixel rows of a part on a CPU. Their state fits into registers."""

SEVERAL_TILES, MANY_TILES = 700, 2500
"""Numbers of tiles below which parts are eighths of a tile, and above which they are halves, on NVIDIA GPUs. Smaller
parts give more programs; larger parts share more of the work per Gaussian. On AMD GPUs, parts are whole tiles below
FEW_TILES and above MANY_TILES with at most FEATURES_HELD features, and otherwise halves."""

FEW_TILES = 256
"""Number of tiles below which chunks are shortest, and on AMD GPUs parts are whole tiles."""

CHUNKS = {FEW_TILES: 16, SEVERAL_TILES: 64, math.inf: 1024}
"""Number of tiles -> entries of a chunk on NVIDIA GPUs, for fewer tiles than the key. Few tiles do not fill a GPU;
chunks do, at the cost of a second walk over all chunks except the last."""

AMD_CHUNKS = {FEW_TILES: 192, SEVERAL_TILES: 384, math.inf: 1024}
"""The same for AMD GPUs: the shortest chunks with which a forward pass executes no more instructions than a walk of
whole lists of tiles."""

CPU_CHUNK = 2**30
"""Entries of a chunk on a CPU: lists are never cut."""

FEATURES_HELD = 6
"""Maximum number of features for which a thread holds the state of several pixels."""


class PartShape(NamedTuple):
    """Width and height of a part in pixels, and number of entries of a chunk."""

    width: int
    height: int
    chunk: int


def part_shape(tensor: Tensor, tile_size: int, n_tiles: int, n_features: int) -> PartShape:
    """Chooses the size of parts and chunks.

    Args:
        tensor: Any tensor on the device.
        n_tiles: Number of tiles of all images. Not that of a band: sums must not depend on bands.
    """
    vendor_name = launch.vendor(tensor)
    if is_compiled_for_cpu(tensor):
        return PartShape(tile_size, min(CPU_ROWS, tile_size), CPU_CHUNK)
    chunks = AMD_CHUNKS if vendor_name == "amd" else CHUNKS
    chunk = next(length for limit, length in chunks.items() if n_tiles < limit)
    if n_features > 2 * FEATURES_MIN:
        chunk *= 2  # each chunk stores the features of its pixels
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
    """Orders lists by descending length, so that a launch does not end with a long list.

    Lengths count in steps of ``LENGTH_STEP``; the sort is stable. Returns None if the order does not matter.

    Args:
        offsets: [lists + 1] integers, start of each list, and end of the last one.
    """
    if offsets.numel() - 1 <= RESIDENT:
        return None
    return order_by_length((offsets.diff() // LENGTH_STEP).clamp_max(LENGTH_STEPS_MAX).to(torch.int16))


def order_by_length(length_steps: Tensor) -> Tensor:
    """Orders lists by descending length in steps of ``LENGTH_STEP``, [lists] int16: a radix sort takes two passes."""
    return length_steps.sort(descending=True, stable=True).indices


def part_order(parts: int, isect_offsets: Tensor) -> Tensor | None:
    """Orders the lists of parts on a CPU, by descending length of the tile's list.

    The parts of a tile are consecutive, as they read the same Gaussians. Returns None if the order does not matter.

    Args:
        isect_offsets: [tiles + 1] int32, first intersection of each tile, then M.
    """
    n_tiles = isect_offsets.numel() - 1
    if parts * n_tiles <= RESIDENT:
        return None
    order = longest_first(isect_offsets)
    tiles = torch.arange(n_tiles, device=isect_offsets.device) if order is None else order
    firsts = torch.arange(0, parts * n_tiles, max(n_tiles, 1), device=isect_offsets.device)
    return (tiles[:, None] + firsts).flatten()


def walk_options(tensor: Tensor) -> dict[str, int | bool]:
    """Returns compiler options for kernels in which one warp walks the list of a part.

    Without contraction other than explicit fma, the forward and the backward pass round alike. The bound on registers
    keeps ptxas from spilling registers for a higher occupancy.
    """
    options: dict[str, int | bool] = {"num_warps": 1, "enable_fp_fusion": False}
    if has_ptx(tensor):
        options["maxnreg"] = 192
    return options


def walk_unroll(tensor: Tensor) -> int:
    """Returns the unroll factor of the loop over a list.

    Unrolling lets loads start earlier on NVIDIA GPUs, and avoids moves of records between registers on AMD GPUs.
    """
    return 1 if launch.vendor(tensor) == "none" else 4


def group_options(tensor: Tensor, shape: PartShape) -> dict[str, int | bool]:
    """Returns compiler options for kernels that walk the list of a part in groups, with matrices in registers.

    The number of warps is chosen such that the matrices fit. Pipelined loads would need more registers.
    """
    warps = max(shape.width * shape.height // 64, 1)
    options: dict[str, int | bool] = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}
    if has_ptx(tensor):
        options["maxnreg"] = 255
    return options
