"""Points with colors in PLY files."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from ...errors import FileError, UnsupportedError
from .ply_tables import PlyFile


def read_points(path: str | os.PathLike[str]) -> tuple[Tensor, Tensor]:
    """Reads the vertices' places and colors, text or binary; those without a finite place are left out.

    Returns:
        Points [P, 3]; and their RGB in [0, 1], [P, 3], gray where the file has none.

    Raises:
        FileError: The file is missing, not a PLY of points, shorter than its header says, or has fewer than two points.
    """
    try:
        with open(path, "rb") as file:
            ply = PlyFile(file, str(path))
            kinds = dict(ply.elements["vertex"].properties) if "vertex" in ply.elements else {}
            if not {"x", "y", "z"} <= kinds.keys():
                raise FileError(f"{path}: not a PLY of points, it has no vertices with x, y and z")
            colored = {"red", "green", "blue"} <= kinds.keys()
            names = ("x", "y", "z", *(("red", "green", "blue") if colored else ()))
            blocks = [np.stack([block[n] for n in names], -1).astype(np.float32) for block in ply.blocks("vertex")]
    except UnsupportedError as error:
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    values = torch.from_numpy(np.concatenate([np.zeros((0, len(names)), np.float32), *blocks]))
    points, colors = values[:, :3].contiguous(), torch.full_like(values[:, :3], 0.5)
    if colored:
        colors = (values[:, 3:] / (1 if kinds["red"].startswith("f") else 255)).clamp(0, 1)
    sound = points.isfinite().all(-1)
    if sound.sum() < 2:
        raise FileError(f"{path}: expected at least two points, found {int(sound.sum())} with finite places")
    return points[sound], colors[sound]
