"""Equidistant projection in PyTorch; see ``kernels/projection/lenses/fisheye.py``."""

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ...config import FISHEYE_SERIES
from ...formulas.rotations import Triple
from .interface import Lens, Projected

NEWTON_STEPS = 40
"""Iterations that invert the distortion. Newton's method about doubles the number of exact digits per step; a step
outside of the bracket is replaced by a bisection."""

SAMPLES, BISECTIONS = 1024, 60
"""Number of samples of [0, pi] that bracket the largest angle of a lens, and of the bisections that refine it."""


Coefficients = namedtuple("Coefficients", "k1 k2 k3 k4 theta_max")


class Fisheye(Lens):
    coefficients = Coefficients
    arguments: ClassVar = {"radial_coeffs": 4}

    def pack(self, given: Mapping[str, Tensor], zeros: Tensor) -> Tensor:
        radial = given.get("radial_coeffs", zeros[..., :4])
        return torch.cat([radial, _largest_angle(radial.detach())[..., None], zeros[..., 5:]], -1)

    def project_with_jacobian(self, p: Triple, intrinsics: tuple[Tensor, ...], width: int, height: int) -> Projected:
        fx, fy, cx, cy = intrinsics
        (dx, dy, dz), inverse_norm, k, m = fisheye_direction(p)
        sx, sy = fx * inverse_norm, fy * inverse_norm
        mixed = m * dx * dy
        return (
            fx * (k * dx) + cx,
            fy * (k * dy) + cy,
            (sx * (dz - m * dy * dy), sx * mixed, -sx * dx),
            (sy * mixed, sy * (dz - m * dx * dx), -sy * dy),
        )

    def project(self, p: Triple, k: Coefficients | None) -> Triple:
        (x, y, _), _, gain, _ = fisheye_direction(p)
        if k is None:
            return gain * x, gain * y, torch.ones_like(x, dtype=torch.bool)
        square = gain * gain * (x * x + y * y)  # theta^2
        gain = gain * _gain(square, k)
        return gain * x, gain * y, square <= k.theta_max * k.theta_max

    def unproject(self, x: Tensor, y: Tensor, k: Coefficients | None) -> Triple:
        radius = torch.hypot(x, y)
        if k is None:
            return direction_at_angle(radius, x, y, radius, radius <= torch.pi)
        fixed = Coefficients(*[value.detach() for value in k])
        theta = invert(
            lambda theta: _gain_and_slope(theta, fixed),
            radius, fixed.theta_max, radius.minimum(fixed.theta_max), NEWTON_STEPS,
        )  # fmt: skip
        gain, slope = _gain_and_slope(theta, fixed)
        valid = (theta * gain - radius).abs() <= 100 * torch.finfo(x.dtype).eps * (1 + radius)
        if k.k1.requires_grad:
            # ``change`` is zero. Its gradient gives theta the gradient of the inverse (implicit function theorem).
            change = sum((value - value.detach()) * theta ** (2 * i + 3) for i, value in enumerate(k[:4]))
            theta = theta - change / torch.where(valid & (slope > 0), slope, torch.inf)
        return direction_at_angle(theta, x, y, radius, valid)


def _gain(square: Tensor, k: Coefficients) -> Tensor:
    """Returns theta_d / theta from theta^2, where theta_d is the distorted angle."""
    k1, k2, k3, k4, _ = k
    gain: Tensor = 1 + square * (k1 + square * (k2 + square * (k3 + square * k4)))
    return gain


def _gain_and_slope(theta: Tensor, k: Coefficients) -> tuple[Tensor, Tensor]:
    """Returns theta_d / theta and d theta_d / d theta, where theta_d is the distorted angle."""
    square = theta * theta
    slope = 1 + square * (3 * k.k1 + square * (5 * k.k2 + square * (7 * k.k3 + square * 9 * k.k4)))
    return _gain(square, k), slope


def fisheye_direction(p: Triple) -> tuple[Triple, Tensor, Tensor, Tensor]:
    """Returns d = p / |p|, 1 / |p|, K and M; see the Triton lens for the symbols."""
    x, y, z = p
    inverse_norm = (x * x + y * y + z * z).rsqrt()
    dx, dy, dz = x * inverse_norm, y * inverse_norm, z * inverse_norm
    behind = dz < 0
    # Unlike abs(), this has the right gradient at 0.
    c = torch.where(behind, -dz, dz)
    series = torch.full_like(c, FISHEYE_SERIES[-1])
    for coefficient in FISHEYE_SERIES[-2::-1]:
        series = series * (1 - 2 * c) + coefficient
    squared_sine = (1 - c) * (1 + c)
    m = -(2 * c + squared_sine * series) / 3
    k = c - squared_sine * m
    inverse = torch.where(behind, dx * dx + dy * dy, 1.0).rsqrt()
    pi_over_sine = math.pi * inverse
    k, m = torch.where(behind, pi_over_sine - k, k), torch.where(behind, -pi_over_sine * inverse * inverse - m, m)
    return (dx, dy, dz), inverse_norm, k, m


def direction_at_angle(theta: Tensor, x: Tensor, y: Tensor, radius: Tensor, valid: Tensor) -> Triple:
    """Returns the unit direction at an angle theta from the optical axis, towards (x, y); zero where not valid."""
    scale = theta.sin() / torch.where(radius > 0, radius, 1.0)
    dx, dy, dz = (torch.where(valid, value, 0.0) for value in (scale * x, scale * y, theta.cos()))
    return dx, dy, dz


@torch.no_grad()
def invert(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, high: Tensor, t: Tensor, steps: int
) -> Tensor:
    """Solves f(t) = target in [0, high] for an increasing f with f(0) = 0, by Newton's method with bisection.

    ``function`` returns f(t) / t and f'(t). ``t`` is the initial guess.
    """
    low, high = torch.zeros_like(t), high.expand_as(t)
    for _ in range(steps):
        gain, slope = function(t)
        residual = t * gain - target
        low, high = torch.where(residual <= 0, t, low), torch.where(residual >= 0, t, high)
        newton = t - residual / slope
        t = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    return t


def _largest_angle(radial: Tensor) -> Tensor:
    """Returns the largest angle up to which theta (1 + k1 theta^2 + ... + k4 theta^8) increases, at most pi.

    [..., 4] -> [...]
    """
    coefficients = radial.double() * torch.arange(3, 10, 2, dtype=torch.float64, device=radial.device)

    def grows(angle: Tensor) -> Tensor:
        square, slope = angle * angle, torch.zeros_like(angle)
        for k in range(3, -1, -1):
            slope = (slope + coefficients[..., k, None]) * square
        return slope + 1 > 0

    samples = torch.linspace(0, math.pi, SAMPLES, dtype=torch.float64, device=radial.device)
    # Index of the first sample at which the function does not increase.
    growing = grows(samples.expand(*radial.shape[:-1], SAMPLES)).cumprod(-1).sum(-1, keepdim=True)
    low, high = samples[growing - 1], samples[growing.clamp_max(SAMPLES - 1)]
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        is_low = grows(middle)
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return low[..., 0].to(radial.dtype)
