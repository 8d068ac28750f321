"""Point clouds: points with colors in PLY files."""

import os
import warnings

import numpy as np
import torch
from torch import Tensor

from ...errors import FileError, UnsupportedError
from ...support.reading import open_file
from .foreign import Warn
from .ply_file import PlyFile


def read_point_cloud(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> tuple[Tensor, Tensor]:
    """Reads the positions [P, 3] fp64 and colors [P, 3] fp32 of a PLY's vertices, without those whose position is not
    finite.

    Colors are RGB in [0, 1], gray if the file has none. `warn` is called with a note that counts the points that are
    left out. Raises FileError for a file that is no PLY of points, is cut short, or has fewer than two points.
    """
    try:
        with open_file(path) as file:
            ply = PlyFile(file, str(path))
            types = dict(ply.elements["vertex"].properties) if "vertex" in ply.elements else {}
            if not {"x", "y", "z"} <= types.keys():
                raise FileError(f"{path}: not a PLY of points; expected vertices with x, y and z")
            ply.note_rest(warn)
            colored = {"red", "green", "blue"} <= types.keys()
            names = ("x", "y", "z", *(("red", "green", "blue") if colored else ()))
            blocks = [np.stack([block[n] for n in names], -1).astype(np.float64) for block in ply.blocks("vertex")]
    except UnsupportedError as error:
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    values = torch.from_numpy(np.concatenate([np.zeros((0, len(names))), *blocks]))
    points, colors = values[:, :3].contiguous(), torch.full_like(values[:, :3], 0.5)
    if colored:
        colors = (values[:, 3:] / (1 if types["red"].startswith("f") else 255)).clamp(0, 1)
    finite = points.isfinite().all(-1)
    if finite.sum() < 2:
        raise FileError(f"{path}: expected at least two points with finite positions, found {int(finite.sum())}")
    if not finite.all():
        warn(f"{path}: skipped {int((~finite).sum())} of {len(points)} points whose position is not finite")
    return points[finite], colors[finite].float()
