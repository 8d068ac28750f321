"""Perspective projection with OpenCV's distortion, in PyTorch; see ``kernels/projection/lenses/pinhole.py``."""

from collections import namedtuple
from typing import ClassVar

import torch
from torch import Tensor

from ...config import FOV_MARGIN, LENS_GAIN_MIN
from ...formulas.rotations import Triple
from .interface import Lens, Projected

NEWTON_STEPS = 20
"""Newton steps that invert the distortion. Each about doubles the number of exact digits."""


Coefficients = namedtuple("Coefficients", "k1 k2 k3 k4 k5 k6 p1 p2 s1 s2 s3 s4")
"""Named as in OpenCV."""


class Pinhole(Lens):
    coefficients = Coefficients
    arguments: ClassVar = {"radial_coeffs": 6, "tangential_coeffs": 2, "thin_prism_coeffs": 4}

    def project_with_jacobian(self, p: Triple, intrinsics: tuple[Tensor, ...], width: int, height: int) -> Projected:
        x, y, z = p
        fx, fy, cx, cy = intrinsics
        reciprocal = 1 / z
        j, j2 = _row(x, reciprocal, fx, cx, width)
        k, k2 = _row(y, reciprocal, fy, cy, height)
        return fx * x * reciprocal + cx, fy * y * reciprocal + cy, (j, None, j2), (None, k, k2)

    def project(self, p: Triple, k: Coefficients | None) -> Triple:
        a, b = p[0] / p[2], p[1] / p[2]
        if k is None:
            return a, b, torch.ones_like(a, dtype=torch.bool)
        x, y, gain, _ = _distort(a, b, k)
        return x, y, gain > LENS_GAIN_MIN

    def unproject(self, x: Tensor, y: Tensor, k: Coefficients | None) -> Triple:
        a, b, valid = (x, y, torch.ones_like(x, dtype=torch.bool)) if k is None else _undistort(x, y, k)
        inverse_norm = torch.where(valid, (a * a + b * b + 1).rsqrt(), 0.0)
        return a * inverse_norm, b * inverse_norm, inverse_norm


def _row(p: Tensor, reciprocal: Tensor, focal: Tensor, center: Tensor, extent: int) -> tuple[Tensor, Tensor]:
    """Returns the derivatives of a pixel coordinate by p (x or y) and by z: one row of the Jacobian."""
    margin = 0.5 * FOV_MARGIN * extent / focal
    slope = torch.clamp(p * reciprocal, -(center / focal + margin), (extent - center) / focal + margin)
    return focal * reciprocal, -focal * reciprocal * slope


def _distort(a: Tensor, b: Tensor, k: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distorts a = x / z and b = y / z. Returns the results, the radial factor, and its denominator."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = k
    square = a * a + b * b
    above = 1 + square * (k1 + square * (k2 + square * k3))
    below = 1 + square * (k4 + square * (k5 + square * k6))
    below = torch.where(below.abs() > 1e-8, below, torch.inf)
    gain = above / below
    mixed = 2 * a * b
    distorted_a = gain * a + p1 * mixed + p2 * (square + 2 * a * a) + square * (s1 + square * s2)
    distorted_b = gain * b + p1 * (square + 2 * b * b) + p2 * mixed + square * (s3 + square * s4)
    return distorted_a, distorted_b, gain, below


def _undistort(x: Tensor, y: Tensor, k: Coefficients) -> Triple:
    """Inverts the distortion by Newton's method. Returns a, b, and whether there is a solution."""
    fixed = Coefficients(*[value.detach() for value in k])
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = fixed
    a, b = x, y
    for step in range(NEWTON_STEPS + 1):
        distorted_a, distorted_b, gain, below = _distort(a, b, fixed)
        residual_x, residual_y = distorted_a - x, distorted_b - y
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
        if step == NEWTON_STEPS:
            break
        a, b = a - (yy * residual_x - xy * residual_y) / det, b - (xx * residual_y - yx * residual_x) / det
    size = 1 + x.abs() + y.abs()
    solved = residual_x.abs() + residual_y.abs() <= 100 * torch.finfo(x.dtype).eps * size
    valid = solved & (gain > LENS_GAIN_MIN)
    a, b = torch.where(valid, a, 0.0), torch.where(valid, b, 0.0)
    if any(value.requires_grad for value in k):
        # The residuals are zero. Their gradient gives a and b the gradient of the inverse (implicit function theorem).
        distorted_a, distorted_b, _, _ = _distort(a, b, k)
        residual_x, residual_y = distorted_a - distorted_a.detach(), distorted_b - distorted_b.detach()
        a, b = a - (yy * residual_x - xy * residual_y) / det, b - (xx * residual_y - yx * residual_x) / det
    return a, b, valid
