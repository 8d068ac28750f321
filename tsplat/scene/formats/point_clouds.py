"""Reads point clouds with colors: PLY files, and files of scanners."""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import FileError, UnsupportedError
from ...support.progress import reporter
from ...support.reading import open_file
from .foreign import Warn
from .ply_file import PlyFile
from .scan_files import SUFFIXES, Blocks, PointBlocks, open_scan

POINTS_MAX = 12_000_000
"""Maximum number of points that are read; they take 0.4 GB."""

CLOUD_SUFFIXES = (".ply", *SUFFIXES)
"""Suffixes of supported point clouds."""


def read_point_cloud(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> tuple[Tensor, Tensor]:
    """Reads the positions [P, 3] fp64 and colors [P, 3] fp32 of a PLY, LAS, LAZ or E57 file.

    Points with non-finite positions are skipped. Colors are RGB in [0, 1], gray if the file has none. If a file has
    more than :data:`POINTS_MAX` points, every k-th point is read. `warn` is called with the number of points that are
    left out. Raises FileError if the file is truncated or has fewer than two points, and MissingExtraError for LAS, LAZ
    and E57 if the extra ``points`` is not installed.
    """
    is_scan = Path(path).suffix.lower() in SUFFIXES
    try:
        with open_scan(path) if is_scan else _open_ply(path, warn) as (count, blocks, largest):
            every = max(math.ceil(count / POINTS_MAX), 1)
            n_max = 0.0
            parts = [(np.zeros((0, 3)), np.zeros((0, 3), np.float32))]
            n_invalid = n_read = 0
            report = reporter("points")
            for points, values in blocks(every):
                finite = np.isfinite(points).all(-1)
                n_invalid += int((~finite).sum())
                colors = np.full(points.shape, np.nan, np.float32) if values is None else values
                n_max = max(n_max, float(colors.max(initial=0.0)))
                n_read += every * len(points)
                report(min(n_read, count), count)
                parts.append((points[finite], colors[finite].astype(np.float32)))
    except UnsupportedError as error:
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    points, colors = (np.concatenate(values) for values in zip(*parts))
    colors /= np.float32(largest or (255.0 if n_max <= 255 else 65535.0))
    np.nan_to_num(colors, copy=False, nan=0.5).clip(0, 1, out=colors)
    if len(points) < 2:
        raise FileError(f"{path}: expected at least two points with finite positions, found {len(points)}")
    if every > 1:
        warn(f"{path}: read one of every {every} of {count:,} points, as more than {POINTS_MAX:,} are not kept")
    if n_invalid:
        warn(f"{path}: skipped {n_invalid:,} of {len(points) + n_invalid:,} points whose position is not finite")
    return torch.from_numpy(points), torch.from_numpy(colors)


@contextlib.contextmanager
def _open_ply(path: str | os.PathLike[str], warn: Warn) -> Iterator[PointBlocks]:
    """Opens the vertices of a PLY as blocks of points."""
    with open_file(path) as file:
        ply = PlyFile(file, str(path))
        types = dict(ply.elements["vertex"].properties) if "vertex" in ply.elements else {}
        if not {"x", "y", "z"} <= types.keys():
            raise FileError(f"{path}: not a PLY of points; expected vertices with x, y and z")
        ply.note_rest(warn)
        names = ("red", "green", "blue")
        colored = {*names} <= types.keys()

        def blocks(every: int) -> Blocks:
            n = 0
            for block in ply.blocks("vertex"):
                chosen = block[-n % every :: every]
                n += len(block)
                points = np.stack([chosen[name] for name in "xyz"], -1).astype(np.float64)
                yield points, np.stack([chosen[name] for name in names], -1) if colored else None

        is_float = colored and types["red"].startswith("f")
        yield PointBlocks(ply.elements["vertex"].count, blocks, 1.0 if is_float else 255.0)
