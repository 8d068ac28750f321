"""Initial points for training instead of sparse points: from a point cloud file, or drawn at random."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import FileError
from ..cameras import Camera, centers
from ..extents import are_inliers, closest_point
from ..formats.point_clouds import read_point_cloud
from .colmap_model import COORDINATE_MAX
from .local_frame import move_points
from .views import Capture

N_RANDOM = 20_000
"""Default number of random points."""

BLENDER_HALF_SIZE, BLENDER_DISTANCE = 1.3, 4.0311289
"""The synthetic NeRF scenes lie in the box [-1.3, 1.3]^3, and all cameras have this distance from its center."""

Bounds = Callable[[Sequence[Camera]], tuple[Tensor, Tensor]]
"""Returns the corners [3] fp64 of the box for random points, given the cameras."""

DrawPoints = Callable[[Sequence[Camera]], Tensor]
"""Returns points [P, 3] fp64 in the frame of the given cameras."""


class InitialPoints(NamedTuple):
    """Initial points for training.

    Attributes:
        positions: [P, 3] fp64 in the frame of the files; or a function that draws them in the frame of given cameras.
        colors: [P, 3] RGB in [0, 1].
        notes: Notes about the points, one sentence each.
    """

    positions: Tensor | DrawPoints
    colors: Tensor
    notes: list[str]

    @property
    def are_random(self) -> bool:
        return callable(self.positions)


def read_points(path: Path) -> InitialPoints:
    """Reads the points of a PLY, LAS, LAZ or E57 file. Non-finite colors become gray."""
    notes: list[str] = []
    points, colors = read_point_cloud(path, warn=notes.append)
    far = (points.abs() > COORDINATE_MAX).any(-1)
    if far.any():
        raise FileError(
            f"{path}: expected positions of magnitude at most {COORDINATE_MAX:.0e}; {int(far.sum())} of {len(points)} "
            f"points are not (first: point {int(far.long().argmax())})"
        )
    return InitialPoints(points, colors.nan_to_num(0.5), notes)


def replace_points(capture: Capture, path: str | os.PathLike[str]) -> Capture:
    """Replaces the initial points of a capture by the points of a file.

    Args:
        capture: A capture returned by :func:`read_capture`, in any frame.
        path: PLY, LAS, LAZ or E57 file with points in the frame of the capture's files. They are moved to the frame of
            the capture in double precision.

    Raises:
        FileError: The file is missing, damaged, or has fewer than two points.
        MissingExtraError: A package that the format needs is not installed.
    """
    initial = read_points(Path(path))
    assert isinstance(initial.positions, Tensor)
    points = move_points(initial.positions, capture.world).float().to(capture.points.device)
    colors = initial.colors.to(capture.points.device)
    notes = (*capture.notes, *initial.notes, f"{path}: training starts from its {len(points):,} points")
    return dataclasses.replace(capture, points=points, colors=colors, notes=notes, random_points=False)


def random_points(bounds: Bounds, n: int, seed: int, reason: str) -> InitialPoints:
    """Returns n gray points drawn uniformly from the box that `bounds` returns, and a note with the reason."""

    def draw(cameras: Sequence[Camera]) -> Tensor:
        low, high = bounds(cameras)
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(n, 3, generator=generator, dtype=torch.float32, device="cpu").double() * (high - low) + low

    note = f"{reason}; training starts from {n} random points"
    return InitialPoints(draw, torch.full((n, 3), 0.5, dtype=torch.float32, device="cpu"), [note])


def blender_bounds(cameras: Sequence[Camera]) -> tuple[Tensor, Tensor]:
    """Returns the corners [3] of the box of a synthetic NeRF scene around the point that its cameras look at.

    Outlier cameras are ignored.
    """
    positions = torch.stack([camera.position for camera in cameras])
    axes = torch.stack([camera.viewmat[2, :3] for camera in cameras])
    if any(camera.is_panorama for camera in cameras):
        return bounds(cameras)
    close = are_inliers(positions)
    positions = positions[close]
    center = closest_point(positions, axes[close])
    if center is None:
        return bounds(cameras)
    distance = float((positions - center).norm(dim=-1).median())
    # Rounding to a power of two gives the published scenes exactly the published box.
    unit = 2.0 ** round(math.log2(distance / BLENDER_DISTANCE)) if distance > 0 else 1.0
    center = unit * (center / unit + 0.5).floor()
    return center - unit * BLENDER_HALF_SIZE, center + unit * BLENDER_HALF_SIZE


def bounds(cameras: Sequence[Camera]) -> tuple[Tensor, Tensor]:
    """Returns the corners [3] of a box around the cameras and one point in front of each camera, at a distance equal to
    the extent of the cameras.

    Panoramas look in all directions. Outlier cameras are ignored. If all cameras have the same position, the size is 1.
    """
    poses = torch.stack([camera.viewmat for camera in cameras])
    positions = centers(poses)
    close = are_inliers(positions)
    poses, positions = poses[close], positions[close]
    diameter = 2 * (positions - positions.mean(0)).norm(dim=-1).max()
    diameter = diameter if diameter > 1e-9 * positions.abs().max() else torch.ones_like(diameter)
    all_around = torch.tensor([camera.is_panorama for camera in cameras], dtype=torch.bool, device="cpu")[close]
    seen = [positions[all_around] - diameter, positions[all_around] + diameter]
    corners = torch.cat([positions, positions + diameter * poses[:, 2, :3], *seen])
    return corners.amin(0), corners.amax(0)
