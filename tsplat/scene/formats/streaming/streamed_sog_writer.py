"""Writes Streamed SOG; :mod:`~tsplat.scene.formats.streaming.streamed_sog` describes and reads the format."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....functional.projection import quat_scale_to_covar_preci
from ....support.extras import require
from ....support.files import output_folder
from ...editing.levels import detail_levels
from ...gaussians import Gaussians
from ...model_rows import RangeOfRows, Rows, as_rows, codes_of, morton_sorted
from ...morton import BITS
from ...quantization import LOG_SCALE_MAX, Floats, check_degree, valid_bounds
from ..image_sets import META, free_suffix, write_files
from ..sog_writer import sog_files
from .streamed_sog import LOD_META, VERSION, named_files

LEAF_MAX = 512 << 10
"""Maximum number of Gaussians of a leaf in all levels; a file takes leaves until it has more."""

PALETTES = "SH coefficients quantized to a palette in each file"

WIDTH_PARTS, LEAF_MIN = 8, 1 << 10
"""Leaves with at least LEAF_MIN Gaussians are at most as wide as the model divided by WIDTH_PARTS."""

SAMPLE, WIDTH_QUANTILES = 1 << 16, (0.05, 0.95)
"""Number of centers from which the width of the model is estimated, and the quantiles that bound it."""


def write_streamed_sog(
    path: str | os.PathLike[str], gaussians: Gaussians | Rows, *, n_levels: int | None = None
) -> list[str]:
    """Writes PlayCanvas's Streamed SOG, version 1: a folder with levels of detail, each with half of the Gaussians.

    The leaves of the tree are cells of the Morton curve. They have at most 524,288 Gaussians in all levels, and are at
    most an eighth as wide as most of the model. The box of a leaf contains the ellipsoids of one standard deviation.
    Errors are those of :func:`write_sog`; the bounds of positions apply to each file, so that positions of a large
    model are more precise.

    Args:
        path: A folder, which is created if it does not exist, or ``lod-meta.json`` in it. This file is written last, so
            a folder with it is complete. If it already exists, the datasets get new names, such as ``0_0_2``, until it
            is replaced, so that the folder contains either the old or the new model at any time.
        gaussians: Gaussians of SH degree 0 to 3, or rows of a model that is larger than memory.
        n_levels: Number of levels; None to continue until the coarsest has at most 16,384 Gaussians, up to 8 levels. 2D
            Gaussians have one level.

    Returns:
        Losses as in :func:`write_model`.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        MissingExtraError: Pillow is not installed, or SciPy is not installed and there are several levels.
        FileError: The folder is not writable.
        OSError: A file cannot be written.
    """
    require("PIL")
    rows = as_rows(gaussians)
    check_degree(rows.properties, "Streamed SOG")
    bounds = valid_bounds(rows)
    path = Path(path)
    lost: dict[str, None] = {}
    with output_folder(path.parent if path.name == LOD_META else path) as folder, contextlib.ExitStack() as files:
        ordered = files.enter_context(morton_sorted(rows, lambda means: means, bounds, folder))
        levels = detail_levels(ordered, bounds, folder, n_levels, files)
        datasets = Datasets(levels, bounds)
        suffix = free_suffix(folder, datasets.ranges)
        meta: dict[str, Any] = {
            "version": VERSION,
            "asset": {"generator": "tsplat"},
            "count": sum(map(len, levels)),
            "counts": [len(level) for level in levels],
            "lodLevels": len(levels),
            "filenames": [f"{name}{suffix}/{META}" for name in datasets.ranges],
            "tree": datasets.tree,
        }

        def encoded() -> Iterator[tuple[str, bytes]]:
            for name, (level, start, stop) in datasets.ranges.items():
                part, losses = RangeOfRows(levels[level], start, stop), list[str]()
                for file, content in sog_files(part, valid_bounds(part), losses):
                    yield f"{name}{suffix}/{file}", content
                lost.update(dict.fromkeys(PALETTES if loss.startswith("SH") else loss for loss in losses))
            yield LOD_META, json.dumps(meta, allow_nan=False).encode()

        write_files(folder, LOD_META, encoded(), named_files(folder))
    return list(lost)


class Datasets:
    """Assigns the rows of each level to datasets, and builds the tree.

    Nodes are cells of the Morton curve, which is halved bit by bit, so that a node is one range of rows in each level.

    Attributes:
        ranges: Name of a dataset -> its level, and the start and end of its rows; a dataset contains whole leaves.
        tree: The tree of ``lod-meta.json``.
    """

    def __init__(self, levels: list[Rows], bounds: Floats) -> None:
        self.ranges: dict[str, tuple[int, int, int]] = {}
        self._levels = levels
        self._codes = [codes_of(level, lambda means: means, bounds) for level in levels]
        self._size = float((bounds[1].astype(np.float64) - bounds[0]).max())
        means = levels[0].sample(SAMPLE).means.double().numpy()
        self._width_max = 0.0
        if len(means):
            self._width_max = float(np.diff(np.quantile(means, WIDTH_QUANTILES, 0), axis=0).max()) / WIDTH_PARTS
        self._newest: dict[int, int] = {}
        self.tree = self._add([(0, len(level)) for level in levels], 3 * BITS, 0)

    def _add(self, ranges: list[tuple[int, int]], bits: int, code: int) -> dict[str, Any]:
        """Adds a range of rows in each level, and returns its node. Their codes equal `code` except for the lowest
        `bits` bits."""
        count = sum(stop - start for start, stop in ranges)
        if count > LEAF_MAX or (self._width(bits) > self._width_max and count > LEAF_MIN):
            while bits:
                bits -= 1
                middle = code | 1 << bits
                cuts = [a + int(np.searchsorted(codes[a:b], middle)) for codes, (a, b) in zip(self._codes, ranges)]
                if all(cut == stop for cut, (_, stop) in zip(cuts, ranges)):
                    continue
                if any(cut > start for cut, (start, _) in zip(cuts, ranges)):
                    break
                code = middle
            else:  # all codes are equal
                cuts = [(start + stop) // 2 for start, stop in ranges]
            lower = self._add([(start, cut) for cut, (start, _) in zip(cuts, ranges)], bits, code)
            upper = self._add([(cut, stop) for cut, (_, stop) in zip(cuts, ranges)], bits, code | 1 << bits)
            ends = [[child["bound"][end] for child in (lower, upper)] for end in ("min", "max")]
            return {"bound": _bound(np.min(ends[0], 0), np.max(ends[1], 0)), "children": [lower, upper]}
        lods = {}
        low, high = np.full(3, np.inf), np.full(3, -np.inf)
        for level, (start, stop) in enumerate(ranges):
            if stop > start:
                part = self._levels[level].read(start, stop)
                means, half_sizes = part.means.double().numpy(), _half_sizes(part).double().numpy()
                low, high = np.minimum(low, (means - half_sizes).min(0)), np.maximum(high, (means + half_sizes).max(0))
            if stop > start or not len(self._levels[0]):
                lods[str(level)] = self._append(level, start, stop)
        return {"bound": _bound(low, high) if count else _bound(np.zeros(3), np.zeros(3)), "lods": lods}

    def _width(self, bits: int) -> float:
        """Returns the largest width in world units of a cell whose codes differ only in the lowest `bits` bits."""
        return self._size * 2.0 ** (-(-bits // 3) - BITS)

    def _append(self, level: int, start: int, stop: int) -> dict[str, int]:
        """Appends the rows of a leaf to the newest dataset of their level, and returns the entry for ``lods``."""
        name = f"{level}_{self._newest.get(level, 0)}"
        _, first, _ = self.ranges.get(name, (level, start, start))
        self.ranges[name] = level, first, stop
        if stop - first > LEAF_MAX:
            self._newest[level] = self._newest.get(level, 0) + 1
        return {"file": list(self.ranges).index(name), "offset": start - first, "count": stop - start}


def _half_sizes(gaussians: Gaussians) -> torch.Tensor:
    """Returns half of the side lengths [N, 3] of the boxes around ellipsoids of one standard deviation."""
    scales = gaussians.log_scales.clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX).exp()
    covars, _ = quat_scale_to_covar_preci(gaussians.quats, scales, True, False, False)
    assert covars is not None
    return covars.diagonal(dim1=1, dim2=2).nan_to_num(0).clamp_min(0).sqrt()


def _bound(low: NDArray[Any], high: NDArray[Any]) -> dict[str, list[float]]:
    """Returns a box in the form of ``lod-meta.json``, with the digits of float32."""
    return {name: [float(f"{value:.7g}") for value in end.tolist()] for name, end in (("min", low), ("max", high))}
