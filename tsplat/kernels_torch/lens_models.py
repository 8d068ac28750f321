"""Lenses in vectorized PyTorch: where they show points, and, not differentiable, the inverse of that."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import LENS_GAIN_MIN, CameraModel
from .camera_models import Triple, fisheye_terms

NEWTON_STEPS = 20
"""Steps that undo a distortion; each about doubles the number of exact digits."""


def bend(p: Triple, lens: Tensor | None, model: CameraModel) -> tuple[Tensor, Tensor, Tensor]:
    """Where a lens with a focal length of 1 shows points in front of the camera, and whether it sees them."""
    x, y, z = p
    seen = torch.ones_like(z, dtype=torch.bool)
    if model == "ortho":
        return x, y, seen
    if model == "fisheye":
        inverse_norm = (x * x + y * y + z * z).rsqrt()
        x, y, z = x * inverse_norm, y * inverse_norm, z * inverse_norm
        k, _ = fisheye_terms(x * x + y * y, z)  # theta / sin(theta)
        if lens is None:
            return k * x, k * y, seen
        square = k * k * (x * x + y * y)  # theta^2
        bent = k * (1 + square * (lens[:, 0] + square * (lens[:, 1] + square * (lens[:, 2] + square * lens[:, 3]))))
        return bent * x, bent * y, square <= lens[:, 4] * lens[:, 4]
    a, b = x / z, y / z
    if lens is None:
        return a, b, seen
    bent_a, bent_b, gain, _ = _distort(a, b, lens.unbind(-1))
    return bent_a, bent_b, gain > LENS_GAIN_MIN


def _distort(a: Tensor, b: Tensor, lens: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """OpenCV's distortion of a = x / z and b = y / z, its radial factor, and the denominator of that."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = lens
    square = a * a + b * b
    above = 1 + square * (k1 + square * (k2 + square * k3))
    below = 1 + square * (k4 + square * (k5 + square * k6))
    below = torch.where(below.abs() > 1e-8, below, torch.inf)
    gain = above / below
    mixed = 2 * a * b
    bent_a = gain * a + p1 * mixed + p2 * (square + 2 * a * a) + square * (s1 + square * s2)
    bent_b = gain * b + p1 * (square + 2 * b * b) + p2 * mixed + square * (s3 + square * s4)
    return bent_a, bent_b, gain, below


def pinhole_directions(x: Tensor, y: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Unit directions that a pinhole camera with a focal length of 1 shows at x, y; zero if there are none."""
    a, b = x, y
    valid = torch.ones_like(x, dtype=torch.bool)
    if lens is not None:
        a, b, valid = _undistort(x, y, lens[:, :, None, None].unbind(1))
    inverse_norm = torch.where(valid, (a * a + b * b + 1).rsqrt(), 0.0)
    return [torch.where(valid, a, 0.0) * inverse_norm, torch.where(valid, b, 0.0) * inverse_norm, inverse_norm]


def _undistort(x: Tensor, y: Tensor, lens: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Undoes OpenCV's distortion by Newton's method. Returns a, b, and where there is a solution."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = lens
    a, b = x, y
    for step in range(NEWTON_STEPS + 1):
        bent_a, bent_b, gain, below = _distort(a, b, lens)
        rest_x, rest_y = bent_a - x, bent_b - y
        if step == NEWTON_STEPS:
            break
        square = a * a + b * b
        slope_above = k1 + square * (2 * k2 + square * 3 * k3)
        slope = 2 * (slope_above - gain * (k4 + square * (2 * k5 + square * 3 * k6))) / below
        prism_x, prism_y = 2 * (s1 + 2 * s2 * square), 2 * (s3 + 2 * s4 * square)
        xx = gain + slope * a * a + 2 * p1 * b + 6 * p2 * a + prism_x * a
        xy = slope * a * b + 2 * (p1 * a + p2 * b) + prism_x * b
        yx = slope * a * b + 2 * (p1 * a + p2 * b) + prism_y * a
        yy = gain + slope * b * b + 6 * p1 * b + 2 * p2 * a + prism_y * b
        det = xx * yy - xy * yx
        det = torch.where(det.abs() > 1e-8, det, torch.inf)
        a, b = a - (yy * rest_x - xy * rest_y) / det, b - (xx * rest_y - yx * rest_x) / det
    size = 1 + x.abs() + y.abs()
    solved = rest_x.abs() + rest_y.abs() <= 100 * torch.finfo(x.dtype).eps * size
    return a, b, solved & (gain > LENS_GAIN_MIN)


def fisheye_directions(x: Tensor, y: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Unit directions that a fisheye camera with a focal length of 1 shows at x, y; zero if there are none."""
    radius = torch.hypot(x, y)
    theta, valid = radius, radius <= torch.pi
    if lens is not None:
        k1, k2, k3, k4, largest, *_ = lens[:, :, None, None].unbind(1)
        # Theta is between these, as the distorted angle grows up to the largest.
        low, high = torch.zeros_like(radius), largest.expand_as(radius)
        theta = torch.minimum(radius, high)
        for step in range(2 * NEWTON_STEPS + 1):
            square = theta * theta
            rest = theta * (1 + square * (k1 + square * (k2 + square * (k3 + square * k4)))) - radius
            if step == 2 * NEWTON_STEPS:
                break
            low, high = torch.where(rest <= 0, theta, low), torch.where(rest >= 0, theta, high)
            slope = 1 + square * (3 * k1 + square * (5 * k2 + square * (7 * k3 + square * 9 * k4)))
            newton = theta - rest / slope
            theta = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        valid = rest.abs() <= 100 * torch.finfo(x.dtype).eps * (1 + radius)
    scale = theta.sin() / torch.where(radius > 0, radius, 1.0)
    return [torch.where(valid, value, 0.0) for value in (scale * x, scale * y, theta.cos())]
