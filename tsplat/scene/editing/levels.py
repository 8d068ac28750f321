"""Merges Gaussians block by block without rendering: levels of detail, and decimation of models larger than memory."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..gaussians import Gaussians
from ..model_rows import Rows, gather, morton_sorted
from ..quantization import LOG_SCALE_MAX
from .moments import merge_into_neighbors

LEVELS_MAX = 8
COARSEST = 1 << 14
"""Number of Gaussians at which a level is coarse enough to be the last one."""

BLOCK = 1 << 18
"""Number of consecutive Gaussians in Morton order that are merged at a time; an even number."""


def detail_levels(
    rows: Rows,
    bounds: NDArray[np.float32],
    folder: str | os.PathLike[str],
    n_levels: int | None,
    files: contextlib.ExitStack,
) -> list[Rows]:
    """Returns levels of detail, each in Morton order; the first and finest is the model itself.

    Each level has half of the Gaussians of the previous one (:func:`merge_rows`). 2D Gaussians have one level.

    Args:
        rows: Valid Gaussians in Morton order.
        bounds: Bounds of the means, [2, 3].
        folder: Folder for temporary files.
        n_levels: Number of levels, if there are enough Gaussians; None to continue until a level has at most 16,384
            Gaussians, up to 8 levels.
        files: Context that closes the temporary files.

    Raises:
        MissingExtraError: SciPy is not installed, and there are several levels.
    """
    levels = [rows]
    most = 1 if rows.properties.surfels else n_levels or LEVELS_MAX
    while len(levels) < most and len(levels[-1]) > (COARSEST if n_levels is None else 1):
        n = len(levels[-1]) - len(levels[-1]) // 2
        with merge_rows(levels[-1], n, folder) as merged:
            levels.append(files.enter_context(morton_sorted(merged, lambda means: means, bounds, folder)))
    return levels


def decimate_rows(rows: Rows, n: int, bounds: NDArray[np.float32], folder: str | os.PathLike[str]) -> Rows:
    """Reduces a model to `n` Gaussians, by rounds of :func:`merge_rows` that at most halve their number.

    The memory is constant except for 16 bytes per Gaussian. Unlike :func:`tsplat.scene.decimate_gaussians`, this does
    not render.

    Args:
        rows: Valid 3D Gaussians.
        n: Number of Gaussians to keep; if there are fewer, all are kept.
        bounds: Bounds of the means, [2, 3].
        folder: Folder for temporary files.

    Raises:
        MissingExtraError: SciPy, which finds neighbors, is not installed.
    """
    while len(rows) > n:
        with morton_sorted(rows, lambda means: means, bounds, folder) as ordered:
            merged = merge_rows(ordered, max(n, len(rows) - len(rows) // 2), folder)
        rows.close()
        rows = merged
    return rows


def merge_rows(rows: Rows, n: int, folder: str | os.PathLike[str]) -> Rows:
    """Merges Gaussians by their moments (:mod:`.moments`) until `n` remain, which must be at least half of them.

    Of every two consecutive Gaussians in Morton order, the one with less opacity times area is a candidate for merging
    into a neighbor, so that each region keeps its share. The weakest candidates are merged. Neighbors are searched in
    blocks of 262,144.
    """

    def merged() -> Iterator[Gaussians]:
        kept = 0
        for start, stop in rows.ranges(BLOCK):
            block = _merge_weakest(rows.read(start, stop), n * stop // len(rows) - kept)
            kept += len(block)
            yield block

    return gather(merged(), rows, folder)


@torch.no_grad()
def _merge_weakest(gaussians: Gaussians, n: int) -> Gaussians:
    """Merges Gaussians in Morton order into neighbors until `n` are left."""
    log_scales = gaussians.log_scales.clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX)  # finite covariances
    gaussians = dataclasses.replace(gaussians, log_scales=log_scales)
    if len(gaussians) <= n:
        return gaussians
    two_largest = log_scales.topk(2).values.sum(1)
    weights = (two_largest.double().exp() * gaussians.opacities.double()).float()
    couples = torch.arange(len(gaussians) // 2 * 2, device="cpu").reshape(-1, 2)
    weaker = couples.gather(1, weights[couples].argmin(1, keepdim=True))[:, 0]
    kept = torch.ones(len(gaussians), dtype=torch.bool, device="cpu")
    kept[weaker[weights[weaker].argsort(stable=True)[: len(gaussians) - n]]] = False
    return merge_into_neighbors(gaussians, kept, weights)
