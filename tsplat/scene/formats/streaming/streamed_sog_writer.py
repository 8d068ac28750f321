"""Writing Streamed SOG; :mod:`~tsplat.scene.formats.streaming.streamed_sog` describes and reads the format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from .... import quat_scale_to_covar_preci
from ....support.extras import require
from ....support.files import atomic_write, output_folder
from ...editing.levels import detail_levels
from ...gaussians import Gaussians
from ...morton import morton_order
from ..image_sets import META
from ..quantization import LOG_SCALE_MAX, check_degree, check_valid
from ..sog_writer import in_order, sog_files, write_files
from .streamed_sog import LOD_META, VERSION

LEAF_MAX = 512 << 10
"""Gaussians of a leaf, all levels together; a file takes leaves until it has more."""

PALETTES = "SH coefficients quantized to a palette in each file"

WIDTH_MAX, LEAF_MIN = 16.0, 1 << 10
"""Leaves are at most as wide as this, in world units, unless they have fewer Gaussians than this."""


def write_streamed_sog(path: str | os.PathLike[str], gaussians: Gaussians, *, n_levels: int | None = None) -> list[str]:
    """Writes PlayCanvas's Streamed SOG, version 1: a folder with levels of detail, each with half of the Gaussians.

    Leaves of a k-d tree over the centers of all levels have at most 524,288 Gaussians and a width of 16. Each has a box
    around the ellipsoids of one standard deviation. Errors are those of :func:`write_sog`; the bounds of positions are
    those of a file, so that positions of a large model are more precise.

    Args:
        path: A folder, which is created if it does not exist, or ``lod-meta.json`` in it. It is written last: a folder
            with it is complete.
        gaussians: Gaussians of SH degree 0 to 3.
        n_levels: Number of levels; None for as many as leave at most 16,384 Gaussians in the coarsest, up to 8. 2D
            Gaussians have one.

    Returns:
        What is lost, as :func:`write_model` does.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        MissingExtraError: Pillow is not installed, or SciPy, which several levels need.
        FileError: The folder is not writable.
        OSError: A file cannot be written.
    """
    require("PIL")
    check_degree(gaussians, "Streamed SOG")
    check_valid(gaussians)
    path = Path(path)
    levels = detail_levels(gaussians.map(lambda tensor: tensor.detach().float().cpu()), n_levels)
    files = Datasets(levels)
    tree = files.add(torch.arange(sum(map(len, levels))))
    meta: dict[str, Any] = {
        "version": VERSION,
        "asset": {"generator": "tsplat"},
        "count": len(files.centers),
        "counts": [len(level) for level in levels],
        "lodLevels": len(levels),
        "filenames": [f"{name}/{META}" for name in files.rows],
        "tree": tree,
    }
    lost: dict[str, None] = {}
    with output_folder(path.parent if path.name == LOD_META else path) as folder:
        (folder / LOD_META).unlink(missing_ok=True)
        for name, ids in files.rows.items():
            content, losses = sog_files(files.select(torch.cat(ids)), in_order)
            lost |= dict.fromkeys(PALETTES if loss.startswith("SH") else loss for loss in losses)
            with output_folder(folder / name) as inner:
                write_files(inner, content)
        with atomic_write(folder / LOD_META) as file:
            file.write(json.dumps(meta, allow_nan=False).encode())
    return list(lost)


class Datasets:
    """Which Gaussians each dataset gets.

    Attributes:
        levels: The levels of detail. Ids count the Gaussians of all of them.
        centers: Their means, [N, 3] fp64.
        rows: Name of a dataset -> ids of its Gaussians, leaf by leaf.
    """

    def __init__(self, levels: list[Gaussians]) -> None:
        self.levels = levels
        self.starts = torch.tensor([0, *(len(level) for level in levels)]).cumsum(0)
        self.centers = torch.cat([level.means for level in levels]).double()
        self.reach = torch.cat([_reach(level) for level in levels]).double()
        self.rows: dict[str, list[torch.Tensor]] = {}
        self._newest: dict[int, int] = {}

    def select(self, ids: torch.Tensor) -> Gaussians:
        """Returns Gaussians of one level by their ids."""
        level = int(torch.searchsorted(self.starts, ids[:1], right=True)) - 1 if len(ids) else 0
        return self.levels[level].map(lambda tensor: tensor[ids - self.starts[level]])

    def add(self, ids: torch.Tensor) -> dict[str, Any]:
        """Adds Gaussians, and returns their node of the tree."""
        centers = self.centers[ids]
        sizes = centers.amax(0) - centers.amin(0) if len(ids) else torch.zeros(3)
        axis = int(sizes.argmax())
        if len(ids) > LEAF_MAX or (float(sizes[axis]) > WIDTH_MAX and len(ids) > LEAF_MIN):
            halves = ids[centers[:, axis].argsort(stable=True)].tensor_split(2)
            children = [self.add(half) for half in halves]
            low, high = (torch.tensor([child["bound"][end] for child in children]) for end in ("min", "max"))
            return {"bound": _bound(low.amin(0), high.amax(0)), "children": children}
        lods = {}
        for level in range(len(self.levels)):
            chosen = ids[(ids >= self.starts[level]) & (ids < self.starts[level + 1])]
            if len(chosen) or not len(self.centers):
                lods[str(level)] = self._place(level, chosen[morton_order(self.centers[chosen])])
        low, high = centers - self.reach[ids], centers + self.reach[ids]
        ends = (low.amin(0), high.amax(0)) if len(ids) else (torch.zeros(3), torch.zeros(3))
        return {"bound": _bound(*ends), "lods": lods}

    def _place(self, level: int, ids: torch.Tensor) -> dict[str, int]:
        """Appends the Gaussians of a leaf to the newest dataset of their level, and returns their place."""
        name = f"{level}_{self._newest.get(level, 0)}"
        parts = self.rows.setdefault(name, [])
        offset = sum(map(len, parts))
        parts.append(ids)
        if offset + len(ids) > LEAF_MAX:
            self._newest[level] = self._newest.get(level, 0) + 1
        return {"file": list(self.rows).index(name), "offset": offset, "count": len(ids)}


def _reach(gaussians: Gaussians) -> torch.Tensor:
    """Returns half of the sizes [N, 3] of boxes around ellipsoids of one standard deviation."""
    scales = gaussians.log_scales.clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX).exp()
    covars, _ = quat_scale_to_covar_preci(gaussians.quats, scales, True, False, False)
    assert covars is not None
    return covars.diagonal(dim1=1, dim2=2).nan_to_num(0).clamp_min(0).sqrt()


def _bound(low: torch.Tensor, high: torch.Tensor) -> dict[str, list[float]]:
    """Returns a box as in ``lod-meta.json``, with the digits of float32."""
    return {name: [float(f"{value:.7g}") for value in end.tolist()] for name, end in (("min", low), ("max", high))}
