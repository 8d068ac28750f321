"""The cameras of a run's photographs, and framing by these cameras."""

import contextlib
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..precision import fp32, fp64
from ..scene.cameras import Camera
from ..scene.extents import common_point
from ..scene.gaussians import Gaussians
from ..scene.option_types import Color
from ..support.reading import read_json
from .framing import visible_mass, weighted_quantile
from .run_files import CAMERAS, CONFIG, METRICS, is_of_run
from .trajectories import read_cameras

FOV = 50.0
"""Vertical field of view in degrees if no camera defines one."""

UP_MIN = 0.1
"""Minimum length of the mean of the cameras' up vectors for which it is used."""


def find_run(model: str | os.PathLike[str]) -> Path | None:
    """Returns the folder of the run that a model belongs to; None if there is none, or if it has no cameras."""
    path = _find_file(model, CAMERAS)
    return None if path is None else path.parent


def find_cameras(model: str | os.PathLike[str]) -> list[Camera]:
    """Reads the cameras of the run that a model belongs to; empty if there is no run, or it has no cameras."""
    path = _find_file(model, CAMERAS)
    return [] if path is None else read_cameras(path)


def find_background(model: str | os.PathLike[str]) -> Color | None:
    """Returns the background color that the run of a model was trained with; None if it is not known."""
    path = _find_file(model, CONFIG) or _find_file(model, METRICS)
    if path is not None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
            r, g, b = (float(value) for value in read_json(path)["background"])
            return (r, g, b) if all(0 <= channel <= 1 for channel in (r, g, b)) else None
    return None


def _find_file(model: str | os.PathLike[str], name: str) -> Path | None:
    """Returns the path of the file `name` in the run that a model belongs to; None if there is none."""
    path = Path(model).absolute()
    for folder in (path, *path.parents[:2]):
        if is_of_run(folder) and (folder / name).is_file():
            return folder / name
    return None


def mean_up(cameras: Sequence[Camera]) -> list[float] | None:
    """Returns the mean of the cameras' up vectors [3], normalized; None if they have no common direction."""
    up = -torch.stack([camera.viewmat[1, :3].double() for camera in cameras]).mean(0)
    return (up / up.norm()).tolist() if up.norm() > UP_MIN else None


def vertical_fov(cameras: Sequence[Camera]) -> float:
    """Returns the median vertical field of view in degrees; the default `FOV` if all are panoramas."""
    slopes = [camera.height / (2 * float(camera.K[1, 1])) for camera in cameras if not camera.is_panorama]
    return math.degrees(2 * math.atan(statistics.median_high(slopes))) if slopes else FOV


def complete_framing(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    fov: float | None = None,
    eye: Sequence[float] | None = None,
    target: Sequence[float] | None = None,
    up: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Completes `fov`, `eye`, `target` and `up` by the cameras of a run; None if these do not define them."""
    training = [camera for camera in cameras if not camera.is_test]
    if training:
        up = mean_up(training) if up is None else up
        fov = vertical_fov(training) if fov is None else fov
        if up is not None and (eye is None or target is None):
            position, center = frame_by_cameras(gaussians, training, up)
            target = center.tolist() if target is None else target
            if eye is None:
                # The direction and distance do not depend on the target.
                eye = (position - center + fp32(target)).tolist()
    return dict(fov=FOV if fov is None else fov, eye=eye, target=target, up=up)


def frame_by_cameras(gaussians: Gaussians, cameras: Sequence[Camera], up: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Places a camera like those of a run, which looks at the same point.

    Returns the camera position and the point that the cameras look at, [3] fp64 each, world frame. The position is at
    the median distance, in the direction of the camera that is closest to the median elevation and distance. Raises
    ArgumentError if no Gaussian is visible.
    """
    positions = torch.stack([camera.position for camera in cameras])
    axes = torch.stack([camera.viewmat[2, :3].double() for camera in cameras])
    axes = axes / axes.norm(dim=-1, keepdim=True)
    # Panoramas look everywhere.
    center = None if any(camera.is_panorama for camera in cameras) else common_point(positions, axes)
    if center is None:
        center = _visible_point(gaussians, positions, axes)
    offsets = positions - center
    distances = offsets.norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
    direction = fp64(up)
    elevations = offsets @ (direction / direction.norm()) / distances
    deviation = (elevations - elevations.median()).abs() + (distances / distances.median()).log().abs()
    best = int(deviation.argmin())
    return center + offsets[best] * (distances.median() / distances[best]), center


def _visible_point(gaussians: Gaussians, positions: Tensor, axes: Tensor) -> Tensor:
    """Returns the point ahead of the most central camera, at the median depth of the visible Gaussians."""
    means, weights = visible_mass(gaussians)
    middle = int((positions - positions.median(0).values).norm(dim=-1).argmin())
    depths = (means - positions[middle]) @ axes[middle]
    in_front = depths > 0
    if not in_front.any():
        return positions[middle] + axes[middle]
    return positions[middle] + weighted_quantile(depths[in_front], weights[in_front], 0.5) * axes[middle]
