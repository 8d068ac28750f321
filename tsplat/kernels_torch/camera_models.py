"""Camera models in vectorized PyTorch, differentiated by autograd; see ``kernels/projection/camera_models.py``."""

import math

import torch
from torch import Tensor

from ..config import FISHEYE_SERIES, FOV_MARGIN, CameraModel
from ..formulas.rotations import Triple

Row = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Row of a Jacobian; None where it is zero."""


def project_points(
    p: Triple, intrinsics: tuple[Tensor, ...], width: int, height: int, model: CameraModel
) -> tuple[Tensor, Tensor, Row, Row]:
    """Projects x, y, z of the camera frame by fx, fy, cx and cy to pixels; also returns the rows of the Jacobian."""
    x, y, z = p
    fx, fy, cx, cy = intrinsics
    if model == "pinhole":
        reciprocal = 1 / z
        j, j2 = _pinhole_row(x, reciprocal, fx, cx, width)
        k, k2 = _pinhole_row(y, reciprocal, fy, cy, height)
        return fx * x * reciprocal + cx, fy * y * reciprocal + cy, (j, None, j2), (None, k, k2)
    if model == "ortho":
        return fx * x + cx, fy * y + cy, (fx, None, None), (None, fy, None)
    inverse_norm = (x * x + y * y + z * z).rsqrt()
    dx, dy, dz = x * inverse_norm, y * inverse_norm, z * inverse_norm
    k, m = fisheye_terms(dx * dx + dy * dy, dz)
    sx, sy = fx * inverse_norm, fy * inverse_norm
    mixed = m * dx * dy
    return (
        fx * (k * dx) + cx,
        fy * (k * dy) + cy,
        (sx * (dz - m * dy * dy), sx * mixed, -sx * dx),
        (sy * mixed, sy * (dz - m * dx * dx), -sy * dy),
    )


def _pinhole_row(p: Tensor, reciprocal: Tensor, focal: Tensor, center: Tensor, extent: int) -> tuple[Tensor, Tensor]:
    """Row of the perspective Jacobian for one image axis: d pixel / d p and d pixel / d z."""
    margin = 0.5 * FOV_MARGIN * extent / focal
    slope = torch.clamp(p * reciprocal, -(center / focal + margin), (extent - center) / focal + margin)
    return focal * reciprocal, -focal * reciprocal * slope


def fisheye_terms(square: Tensor, dz: Tensor) -> tuple[Tensor, Tensor]:
    """K and M of directions with squared sine ``square`` and cosine ``dz`` of the angle from the axis."""
    behind = dz < 0
    # Unlike that of abs(), the gradient is right at 0.
    c = torch.where(behind, -dz, dz)
    series = torch.full_like(c, FISHEYE_SERIES[-1])
    for coefficient in FISHEYE_SERIES[-2::-1]:
        series = series * (1 - 2 * c) + coefficient
    squared_sine = (1 - c) * (1 + c)
    m = -(2 * c + squared_sine * series) / 3
    k = c - squared_sine * m
    inverse = torch.where(behind, square, 1.0).rsqrt()
    turn = math.pi * inverse
    return torch.where(behind, turn - k, k), torch.where(behind, -turn * inverse * inverse - m, m)
