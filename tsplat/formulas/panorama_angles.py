"""Equirectangular panoramas: longitudes and latitudes of directions, and the intrinsics of a full panorama."""

import math

import torch
from torch import Tensor


def full_panorama(width: float, height: float) -> tuple[float, float, float, float]:
    """Returns fx, fy in pixels per radian, and cx, cy in pixels, of a panorama of 360 by 180 degrees."""
    return width / (2 * math.pi), height / math.pi, 0.5 * width, 0.5 * height


def longitude_and_latitude(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Returns longitudes (around the y axis, from z to x) and latitudes (from the xz plane to y), radians."""
    return torch.atan2(x, z), torch.atan2(y, torch.hypot(x, z))
