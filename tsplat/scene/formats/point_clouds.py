"""Point clouds: points with colors in PLY files."""

import math
import os
import warnings

import numpy as np
import torch
from torch import Tensor

from ...errors import FileError, UnsupportedError
from ...support.reading import open_file
from .foreign import Warn
from .ply_file import PlyFile

POINTS_MAX = 12_000_000
"""Maximum number of points: 0.4 GB, and more than training starts with unless it is told to."""


def read_point_cloud(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> tuple[Tensor, Tensor]:
    """Reads the positions [P, 3] fp64 and colors [P, 3] fp32 of a PLY's vertices, without those whose position is not
    finite.

    Colors are RGB in [0, 1], gray if the file has none. Of a file with more than :data:`POINTS_MAX` vertices, one of
    every k is read. `warn` is called with notes that count the points that are left out. Raises FileError for a file
    that is no PLY of points, is cut short, or has fewer than two points.
    """
    try:
        with open_file(path) as file:
            ply = PlyFile(file, str(path))
            types = dict(ply.elements["vertex"].properties) if "vertex" in ply.elements else {}
            if not {"x", "y", "z"} <= types.keys():
                raise FileError(f"{path}: not a PLY of points; expected vertices with x, y and z")
            ply.note_rest(warn)
            colored = {"red", "green", "blue"} <= types.keys()
            largest = 1.0 if colored and types["red"].startswith("f") else 255.0
            count = ply.elements["vertex"].count
            every = max(math.ceil(count / POINTS_MAX), 1)
            parts = [(np.zeros((0, 3)), np.zeros((0, 3), np.float32))]
            n_rows = n_invalid = 0
            for block in ply.blocks("vertex"):
                chosen = block[-n_rows % every :: every]
                n_rows += len(block)
                points = np.stack([chosen[name] for name in "xyz"], -1).astype(np.float64)
                colors = np.full(points.shape, 0.5)
                if colored:
                    colors = np.stack([chosen[name] for name in ("red", "green", "blue")], -1) / largest
                finite = np.isfinite(points).all(-1)
                n_invalid += int((~finite).sum())
                parts.append((points[finite], colors[finite].clip(0, 1).astype(np.float32)))
    except UnsupportedError as error:
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    points, colors = (np.concatenate(values) for values in zip(*parts))
    if len(points) < 2:
        raise FileError(f"{path}: expected at least two points with finite positions, found {len(points)}")
    if every > 1:
        warn(f"{path}: read one of every {every} of {count:,} points, as more than {POINTS_MAX:,} are not kept")
    if n_invalid:
        warn(f"{path}: skipped {n_invalid} of {len(points) + n_invalid} points whose position is not finite")
    return torch.from_numpy(points), torch.from_numpy(colors)
