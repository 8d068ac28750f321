"""Points that training starts from where a scene has no sparse points: those of a PLY, or random ones."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...errors import FileError
from ..cameras import centers
from ..formats.point_clouds import read_point_cloud
from .colmap_model import COORDINATE_MAX
from .views import View

N_RANDOM = 20_000
"""Default number of random points."""

Corners = tuple[float, float] | tuple[Tensor, Tensor]
"""Smallest and largest coordinates of a box, [3] or those of each axis."""


def read_points(path: Path, notes: list[str]) -> tuple[Tensor, Tensor]:
    """Reads the points of a PLY; colors that are not finite become gray. Adds to `notes`."""
    points, colors = read_point_cloud(path, warn=notes.append)
    far = (points.abs() > COORDINATE_MAX).any(-1)
    if far.any():
        raise FileError(
            f"{path}: expected positions of magnitude at most {COORDINATE_MAX:.0e}; {int(far.sum())} of {len(points)} "
            f"points are not (first: point {int(far.long().argmax())})"
        )
    return points, colors.nan_to_num(0.5)


def random_points(corners: Corners, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns n points [n, 3] that are uniform in a box, and their colors [n, 3], gray."""
    low, high = corners
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 3, generator=generator, dtype=torch.float32, device="cpu") * (high - low) + low
    return points, torch.full_like(points, 0.5)


def bounds(views: Sequence[View]) -> tuple[Tensor, Tensor]:
    """Returns the corners [3] of a box around cameras and the points ahead of them, as far as the cameras are apart."""
    poses = torch.stack([view.camera.viewmat for view in views])
    positions = centers(poses)
    diameter = (positions - positions.mean(0)).norm(dim=-1).max().clamp_min(1e-3) * 2
    corners = torch.cat([positions, positions + diameter * poses[:, 2, :3]]).float()
    return corners.amin(0), corners.amax(0)
