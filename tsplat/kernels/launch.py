"""What every launcher needs: the right device, a grid that fits, and the row of a pair."""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

GRID_LIMIT = 2**31 - 1

RESIDENT = 256
"""Programs of one warp that any GPU runs at once; of so few, none comes last."""

GRAIN = 64
"""Pairs by which lists must differ to be put in order. Neighbors share Gaussians and caches, and stay together."""


def guard(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's device current, as Triton launches on the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def programs(n_items: int, block: int) -> int:
    """Number of programs of a one-dimensional grid with `block` items each."""
    n: int = triton.cdiv(n_items, block)
    if n > GRID_LIMIT:
        raise ValueError(
            f"{n_items} items in blocks of {block} need {n} programs, more than a launch can have ({GRID_LIMIT})"
        )
    return n


def tile_counts(width: int, height: int, tile_size: int) -> tuple[int, int]:
    """Tiles in a row of an image, and in all of it."""
    tile_width = triton.cdiv(width, tile_size)
    return tile_width, tile_width * triton.cdiv(height, tile_size)


def longest_first(isect_offsets: Tensor) -> Tensor | None:
    """Tiles of a range in order of their lists' lengths, longest first, so that a launch does not end with a long one.

    Lengths count in steps of `GRAIN`, and among equals the order of tiles remains. None where it does not matter.

    Args:
        isect_offsets: [tiles + 1] int64, where each tile's pairs begin, and their number.
    """
    if isect_offsets.numel() - 1 <= RESIDENT:
        return None
    # Radix sort takes two passes over 16 bits; all lists of over two million pairs are equally long.
    grains = (isect_offsets.diff() // GRAIN).clamp_max(2**15 - 1).to(torch.int16)
    return grains.sort(descending=True, stable=True).indices


def rows_by_pair(row_ids: Tensor, n_pairs: int) -> Tensor:
    """Inverse of the packed rows' ids: the row of each (image, Gaussian) pair, -1 where it has none. [n_pairs] int32"""
    row_of = torch.full((n_pairs,), -1, dtype=torch.int32, device=row_ids.device)
    row_of[row_ids] = torch.arange(row_ids.numel(), dtype=torch.int32, device=row_ids.device)
    return row_of


def vendor(tensor: Tensor) -> str:
    """Who made the device that kernels on this tensor run on: "nvidia", "amd", or "none" for the interpreter."""
    if not tensor.is_cuda:
        return "none"
    return "nvidia" if torch.version.hip is None else "amd"


def approximate(tensor: Tensor) -> bool:
    """Whether kernels on this tensor may use NVIDIA's approximate fp32 instructions."""
    return vendor(tensor) == "nvidia" and tensor.dtype == torch.float32


def walk_options(tensor: Tensor) -> dict[str, int | bool]:
    """Compiler options of kernels in which one warp walks a list for many pixels.

    Without contraction beyond the explicit fma, forward and backward round alike. The bound on registers keeps ptxas
    from spilling for an occupancy that it takes to be better.
    """
    options: dict[str, int | bool] = {"num_warps": 1, "enable_fp_fusion": False}
    if vendor(tensor) == "nvidia":
        options["maxnreg"] = 192
    return options


def group_options(tensor: Tensor, tile_size: int) -> dict[str, int | bool]:
    """Compiler options of kernels that walk a list in groups, whose weights are matrices in registers.

    As many warps as it takes for them to fit; loads ahead of time would need registers that there are not.
    """
    warps = {4: 1, 8: 2, 16: 8 if vendor(tensor) == "amd" else 4}[tile_size]
    return {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}
