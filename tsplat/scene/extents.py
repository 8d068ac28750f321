"""Estimates the scale of a scene, robust to a few wrong poses: camera extent, median depth and near plane."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..precision import identity
from .cameras import Camera, centers, project_points

FAR = 5.0
"""A camera is an outlier if its distance from the median position exceeds this factor times the third quartile of the
distances."""

CAMERAS_MIN = 5
"""Minimum number of cameras for the detection of outliers."""

EXTENT_FACTOR = 1.1
"""Ratio of the extent to the largest distance of a camera from the mean position, as in 3D Gaussian Splatting."""

EXTENT_MIN = 0.01
"""Minimum extent in median depths, for photographs that were all taken from one position."""

NEAR = 1 / 400
"""Distance of the near plane in median depths; this gives 0.01 for the synthetic NeRF scenes."""

CAMERAS_MAX, POINTS_MAX = 64, 4096
"""Number of cameras and points from which the median depth is estimated."""

SHOWN_POINTS, SHOWN_SPREAD = 8, 0.01
"""A camera shows a scene if its image contains at least this number of points, and their interquartile range is at
least this fraction of the width or height of the image."""

SHOWN_MAX = 65536
"""Number of points that are used to decide whether a camera shows a scene."""

FAR_ORIGIN = 256.0
"""Distance from the origin, in extents, beyond which single precision shifts images by about a hundredth of a pixel."""

CONVERGENCE_MIN = 0.02
"""Minimum for the smallest eigenvalue of the mean projection perpendicular to the optical axes, so that their common
point is well defined; it is about 0.5 for axes in all directions, and 0 for parallel axes."""

IN_FRONT_MIN = 0.8
"""Minimum share of cameras that face the common point of their axes."""


def are_inliers(positions: Tensor) -> Tensor:
    """Returns a mask [C] bool of the camera positions [C, 3] that are no outliers."""
    distances = (positions - positions.median(0).values).norm(dim=-1)
    typical = distances.sort().values[3 * (len(distances) - 1) // 4]
    if len(distances) < CAMERAS_MIN or not typical > 0:
        return torch.ones_like(distances, dtype=torch.bool)
    close: Tensor = distances <= FAR * typical
    return close


def center_and_extent(positions: Tensor) -> tuple[Tensor, float]:
    """Returns the mean [3] and the extent of camera positions [C, 3], without outliers."""
    positions = positions.double()
    close = positions[are_inliers(positions)]
    # Relative to one position, because sums of large coordinates are inexact.
    offsets = close - close[0]
    middle = offsets.mean(0)
    return close[0] + middle, EXTENT_FACTOR * float((offsets - middle).norm(dim=-1).max())


def origin_and_unit(center: Tensor, extent: float) -> tuple[tuple[float, float, float], float, bool]:
    """Returns the origin and the unit of a local frame for positions with a center [3] fp64 and an extent.

    The unit is the power of two closest to the extent, the origin is the multiple of the unit closest to the center.
    The third value says whether the center is too far from zero for single precision.
    """
    unit = 2.0 ** round(math.log2(extent)) if extent > 0 else 1.0
    x, y, z = (unit * math.floor(value / unit + 0.5) for value in center.tolist())
    return (x, y, z), unit, max(map(abs, (x, y, z))) > FAR_ORIGIN * unit


def far_origin(positions: Tensor) -> tuple[float, float, float] | None:
    """Returns an origin near positions [P, 3] if single precision cannot represent them accurately; otherwise None.

    Non-finite positions are ignored. If all positions coincide, the result is None.
    """
    positions = positions[positions.isfinite().all(-1)]
    if not len(positions):
        return None
    center, extent = center_and_extent(positions)
    origin, _, is_far = origin_and_unit(center, extent)
    return origin if is_far and extent > 0 else None


def rounding_at(origin: Sequence[float]) -> float:
    """Returns the largest rounding error of coordinates around an origin in single precision."""
    return float(np.spacing(np.float32(max(map(abs, origin))))) / 2


def shows_points(camera: Camera, points: Tensor) -> bool:
    """Returns whether the points [P, 3] cover more than a spot of a camera's image; also true if there are too few
    points.

    Aerial photographs are far from a scene but show it. Photographs with wrong poses rarely show it.
    """
    points = points.detach()[:: 1 + len(points) // SHOWN_MAX]
    if len(points) < SHOWN_POINTS:
        return True
    u, v, _, inside = project_points(camera, points)
    if int(inside.sum()) < SHOWN_POINTS:
        return False
    # Quartiles, because a few points may be outliers.
    middle = [coordinates[inside].quantile(coordinates.new_tensor([0.25, 0.75])).diff() for coordinates in (u, v)]
    return max(float(middle[0]) / camera.width, float(middle[1]) / camera.height) >= SHOWN_SPREAD


def median_depth(cameras: Sequence[Camera], points: Tensor) -> float:
    """Returns the median depth of points [P, 3] in the images of cameras, or if none are visible their median distance;
    0 if it is unknown."""
    cameras = cameras[:: 1 + len(cameras) // CAMERAS_MAX]
    points = points.detach()[:: 1 + len(points) // POINTS_MAX]
    points = points[points.isfinite().all(-1)]
    visible = []
    for camera in cameras:
        *_, depths, inside = project_points(camera, points)
        visible.append(depths[inside])
    depths = torch.cat(visible) if visible else points.new_zeros(0)
    if not len(depths) and len(points) and cameras:
        positions = torch.stack([camera.position for camera in cameras]).to(points)
        depths = torch.cdist(positions, points).flatten()
    depth = float(depths.median()) if len(depths) else 0.0
    return depth if math.isfinite(depth) else 0.0


def scene_scale(positions: Tensor, depth: float) -> float:
    """Returns the extent of a scene from camera positions [C, 3] and the median depth; 0 if both are zero."""
    return max(center_and_extent(positions)[1], EXTENT_MIN * depth)


def near_plane(cameras: Sequence[Camera], points: Tensor) -> float | None:
    """Returns the distance of the near plane in units of the points [P, 3]; None if the scale is unknown."""
    depth = median_depth(cameras, points)
    return NEAR * depth if depth > 0 else None


def with_near_planes(cameras: Sequence[Camera], points: Tensor) -> list[Camera]:
    """Returns the cameras; those without a near plane get a common one that suits the cameras and the points [P, 3]."""
    missing = [camera for camera in cameras if camera.near is None]
    near = near_plane(missing, points) if missing else None
    return [dataclasses.replace(camera, near=near) if camera.near is None else camera for camera in cameras]


def camera_positions(viewmats: Sequence[Tensor]) -> Tensor:
    """Returns the positions [C, 3] fp64 of cameras with world-to-camera matrices [4, 4], on the CPU."""
    return centers(torch.stack([viewmat.detach() for viewmat in viewmats]).double().cpu())


def common_point(positions: Tensor, axes: Tensor) -> Tensor | None:
    """Returns the point [3] closest to all optical axes; None if they are almost parallel, or if it is behind too many
    cameras.

    Args:
        positions, axes: [C, 3] fp64, camera positions and unit viewing directions.
    """
    point = closest_point(positions, axes)
    if point is None:
        return None
    in_front = ((point - positions) * axes).sum(-1) > 0
    return point if in_front.double().mean() >= IN_FRONT_MIN else None


def closest_point(positions: Tensor, axes: Tensor) -> Tensor | None:
    """Returns the point [3] closest to the lines through positions [C, 3] along unit vectors [C, 3], fp64; None if the
    lines are almost parallel."""
    across = identity(3) - axes[:, :, None] * axes[:, None, :]
    mean = across.mean(0)
    if torch.linalg.eigvalsh(mean)[0] < CONVERGENCE_MIN:
        return None
    point: Tensor = torch.linalg.solve(mean, (across @ positions[:, :, None]).mean(0)).flatten()
    return point
