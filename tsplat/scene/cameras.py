"""Cameras: world to camera [4, 4] and intrinsics [3, 3], x right, y down, looking along +z (OpenCV's frame)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ArgumentError

UP = (0.0, -1.0, 0.0)
"""Up in the world where nothing says otherwise: structure-from-motion tends to leave y pointing down."""


def intrinsics(width: int, height: int, fov: float) -> Tensor:
    """K [3, 3] in pixels, square pixels, principal point in the middle.

    Args:
        width, height: Image size in pixels.
        fov: Vertical field of view in degrees, between 0 and 180.

    Raises:
        ArgumentError: A field of view outside that range.
    """
    if not 0 < fov < 180:
        raise ArgumentError(f"fov: expected degrees between 0 and 180, found {fov}")
    focal = 0.5 * height / math.tan(math.radians(fov) / 2)
    return torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])


def look_at(eye: Sequence[float], target: Sequence[float], up: Sequence[float] = UP) -> Tensor:
    """World-to-camera matrix [4, 4] of a camera at ``eye`` that sees ``target`` in its middle and ``up`` upwards.

    Raises:
        ArgumentError: Values that are not finite, ``eye`` at ``target``, or ``up`` along the line of sight.
    """
    points = {name: torch.tensor(p, dtype=torch.float64) for name, p in (("eye", eye), ("target", target), ("up", up))}
    for name, point in points.items():
        if point.shape != (3,) or not point.isfinite().all():
            raise ArgumentError(f"{name}: expected three finite numbers, found {list(point.tolist())}")
    forward = points["target"] - points["eye"]
    if forward.norm() <= 1e-9 * max(points["eye"].norm(), points["target"].norm()):
        raise ArgumentError(f"eye: {list(eye)} is the very point to look at; move one of them")
    z = forward / forward.norm()
    x = z.cross(points["up"], -1)
    if x.norm() <= 1e-6 * points["up"].norm():
        raise ArgumentError(f"up: {list(up)} is zero or lies along the line of sight; choose another direction")
    x = x / x.norm()
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3] = torch.stack([x, z.cross(x, -1), z])
    matrix[:3, 3] = -matrix[:3, :3] @ points["eye"]
    return matrix.float()


def centers(viewmats: Tensor) -> Tensor:
    """Where cameras stand, world frame: [C, 4, 4] world to camera -> [C, 3]."""
    return -(viewmats[:, :3, :3].mT @ viewmats[:, :3, 3:]).squeeze(-1)


def orbit(
    target: Sequence[float],
    radius: float,
    azimuths: Sequence[float],
    elevations: Sequence[float],
    up: Sequence[float] = UP,
) -> Tensor:
    """Cameras [C, 4, 4] on a sphere around ``target``, looking at it.

    Args:
        radius: Distance from ``target``, world units.
        azimuths, elevations: C angles each in degrees: around ``up``, and above the plane across it.

    Raises:
        ArgumentError: As :func:`look_at`.
    """
    axis = torch.tensor(up, dtype=torch.float64)
    axis = axis / axis.norm()
    # Where azimuth is zero: along -z, or along -x where up is z.
    front = torch.tensor([0.0, 0.0, -1.0] if abs(float(axis[2])) < 0.9 else [-1.0, 0.0, 0.0], dtype=torch.float64)
    front = front - (front @ axis) * axis
    front = front / front.norm()
    side = axis.cross(front, -1)
    center = torch.tensor(target, dtype=torch.float64)
    matrices = []
    for azimuth, elevation in zip(azimuths, elevations, strict=True):
        a, e = math.radians(azimuth), math.radians(elevation)
        offset = math.cos(e) * (math.cos(a) * front + math.sin(a) * side) + math.sin(e) * axis
        matrices.append(look_at((center + radius * offset).tolist(), target, up))
    return torch.stack(matrices)
