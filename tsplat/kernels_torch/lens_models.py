"""Lenses in vectorized PyTorch: where they show points, and the inverse of that, differentiable in coefficients."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import FTHETA_STEPS, LENS_GAIN_MIN, CameraModel
from ..formulas.rotations import Triple
from .camera_models import fisheye_terms

N_COEFFICIENTS, N_POLYNOMIAL = 12, 21

NEWTON_STEPS = 20
"""Steps that undo a distortion; each about doubles the number of exact digits."""


def bend(p: Triple, lens: Tensor | None, model: CameraModel) -> tuple[Tensor, Tensor, Tensor]:
    """Where a lens with a focal length of 1 shows points in front of the camera, and whether it sees them."""
    if lens is not None and lens.shape[1] > N_COEFFICIENTS:
        p, clear = _refract(p, lens[:, N_COEFFICIENTS:].unbind(1))
        x, y, seen = bend(p, lens[:, :N_COEFFICIENTS], model)
        return x, y, seen & clear
    x, y, z = p
    seen = torch.ones_like(z, dtype=torch.bool)
    if model == "ortho":
        return x, y, seen
    if model in ("fisheye", "ftheta"):
        inverse_norm = (x * x + y * y + z * z).rsqrt()
        x, y, z = x * inverse_norm, y * inverse_norm, z * inverse_norm
        k, _ = fisheye_terms(x * x + y * y, z)  # theta / sin(theta)
        if lens is None:
            return k * x, k * y, seen
        square = k * k * (x * x + y * y)  # theta^2
        if model == "ftheta":
            c, d, e = lens[:, 7:10].unbind(-1)
            theta = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
            bent = k * _ftheta_gain(theta.minimum(lens[:, 5]), lens.unbind(-1))
            x, y = bent * x, bent * y
            return c * x + d * y, e * x + y, theta <= lens[:, 5]
        bent = k * (1 + square * (lens[:, 0] + square * (lens[:, 1] + square * (lens[:, 2] + square * lens[:, 3]))))
        return bent * x, bent * y, square <= lens[:, 4] * lens[:, 4]
    a, b = x / z, y / z
    if lens is None:
        return a, b, seen
    bent_a, bent_b, gain, _ = _distort(a, b, lens.unbind(-1))
    return bent_a, bent_b, gain > LENS_GAIN_MIN


def _refract(p: Triple, polynomials: tuple[Tensor, ...]) -> tuple[Triple, Tensor]:
    """Unit directions in which a windshield shows points, and whether it does; see ``refract`` of the kernels."""
    x, y, z = p
    phi, psi = torch.atan2(x, torch.hypot(y, z)), torch.atan2(y, torch.hypot(x, z))
    h, h_phi, h_psi = _windshield_polynomial(polynomials[:N_POLYNOMIAL], phi, psi)
    v, v_phi, v_psi = _windshield_polynomial(polynomials[N_POLYNOMIAL : 2 * N_POLYNOMIAL], phi, psi)
    square = 1 - h.sin().square() - v.sin().square()
    within = torch.maximum(h.abs(), v.abs()) < torch.pi / 2
    clear = within & (square > 0) & (h_phi * v_psi > h_psi * v_phi)
    length = torch.where(clear, square, 1.0).sqrt()
    return (
        torch.where(clear, h.sin(), 0.0),
        torch.where(clear, v.sin(), 0.0),
        torch.where(z < 0, -length, length),
    ), clear


def _windshield_polynomial(c: tuple[Tensor, ...], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of y^k (c_0k + c_1k x + ... ), and its derivatives with respect to x and y; six coefficients for k = 0."""
    value = of_x = of_y = torch.zeros_like(x)
    end = N_POLYNOMIAL
    for n in range(1, 7):
        inner = slope = torch.zeros_like(x)
        for coefficient in c[end - n : end][::-1]:
            slope = slope * x + inner
            inner = inner * x + coefficient
        of_y = of_y * y + value
        of_x = of_x * y + slope
        value = value * y + inner
        end -= n
    return value, of_x, of_y


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


def _ftheta_polynomial(t: Tensor, lens: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The polynomial of an f-theta lens over t, and the derivative of the polynomial."""
    c1, c2, c3, c4, c5, *_ = lens
    value = c1 + t * (c2 + t * (c3 + t * (c4 + t * c5)))
    return value, c1 + t * (2 * c2 + t * (3 * c3 + t * (4 * c4 + t * (5 * c5))))


@torch.no_grad()
def _invert_ftheta(target: Tensor, high: Tensor, t: Tensor, lens: tuple[Tensor, ...]) -> Tensor:
    """Where the polynomial of an f-theta lens, which grows from 0 to ``high``, has a value; t is the first guess."""
    low, high = torch.zeros_like(t), high.expand_as(t)
    for _ in range(FTHETA_STEPS):
        value, slope = _ftheta_polynomial(t, lens)
        rest = t * value - target
        low, high = torch.where(rest <= 0, t, low), torch.where(rest >= 0, t, high)
        newton = t - rest / slope
        t = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    return t


def _ftheta_gain(theta: Tensor, lens: tuple[Tensor, ...]) -> Tensor:
    """The distance from the principal point that an f-theta lens shows, over theta."""
    largest, farthest, inverts = lens[5], lens[6], lens[10] > 0
    root = torch.where(inverts, _invert_ftheta(theta, farthest, theta * (farthest / largest), lens), 0.0)
    value, slope = _ftheta_polynomial(root, lens)
    # One more step, which has the gradient of the inverse.
    t = torch.where(inverts, root - (root * value - theta) / torch.where(slope > 0, slope, torch.inf), theta)
    value, _ = _ftheta_polynomial(t, lens)
    return torch.where(inverts, 1 / torch.where(value > 0, value, torch.inf), value)


def directions(x: Tensor, y: Tensor, lens: Tensor | None, model: CameraModel) -> list[Tensor]:
    """Unit directions that cameras with a focal length of 1 show at x, y, [I, H, W]; zero if there are none."""
    if lens is not None and lens.shape[1] > N_COEFFICIENTS:
        inner = directions(x, y, lens[:, :N_COEFFICIENTS], model)
        exists = torch.stack(inner).any(0)
        behind = (inner[0], inner[1], torch.where(exists, inner[2], 1.0))
        inverse = lens[:, N_COEFFICIENTS + 2 * N_POLYNOMIAL :, None, None].unbind(1)
        outer, clear = _refract(behind, inverse)
        return [torch.where(exists & clear, value, 0.0) for value in outer]
    if model == "ortho":
        return [torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x)]
    if model == "fisheye":
        return _fisheye_directions(x, y, lens)
    if model == "ftheta":
        assert lens is not None
        return _ftheta_directions(x, y, lens[:, :, None, None].unbind(1))
    return _pinhole_directions(x, y, lens)


def _ftheta_directions(u: Tensor, v: Tensor, lens: tuple[Tensor, ...]) -> list[Tensor]:
    largest, farthest, c, d, e, inverts, _ = lens[5:]
    x, y = (u - d * v) / (c - d * e), (c * v - e * u) / (c - d * e)
    radius = torch.hypot(x, y)
    inside = radius.minimum(farthest)
    theta = _invert_ftheta(inside, largest, inside * (largest / farthest), lens)
    theta = torch.where(inverts > 0, inside * _ftheta_polynomial(inside, lens)[0], theta)
    return _at_angle(theta, x, y, radius, radius <= farthest)


def _at_angle(theta: Tensor, x: Tensor, y: Tensor, radius: Tensor, valid: Tensor) -> list[Tensor]:
    """Unit directions at angles from the optical axis, on the side of x, y; zero where they are not valid."""
    scale = theta.sin() / torch.where(radius > 0, radius, 1.0)
    return [torch.where(valid, value, 0.0) for value in (scale * x, scale * y, theta.cos())]


def _pinhole_directions(x: Tensor, y: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Unit directions that a pinhole camera with a focal length of 1 shows at x, y; zero if there are none."""
    a, b = x, y
    valid = torch.ones_like(x, dtype=torch.bool)
    if lens is not None:
        a, b, valid = _undistort(x, y, lens[:, :, None, None].unbind(1))
    inverse_norm = torch.where(valid, (a * a + b * b + 1).rsqrt(), 0.0)
    return [a * inverse_norm, b * inverse_norm, inverse_norm]


def _undistort(x: Tensor, y: Tensor, lens: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Undoes OpenCV's distortion by Newton's method. Returns a, b, and where there is a solution."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = (k.detach() for k in lens)
    a, b = x, y
    for step in range(NEWTON_STEPS + 1):
        bent_a, bent_b, gain, below = _distort(a, b, (k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4))
        rest_x, rest_y = bent_a - x, bent_b - y
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
        a, b = a - (yy * rest_x - xy * rest_y) / det, b - (xx * rest_y - yx * rest_x) / det
    size = 1 + x.abs() + y.abs()
    solved = rest_x.abs() + rest_y.abs() <= 100 * torch.finfo(x.dtype).eps * size
    valid = solved & (gain > LENS_GAIN_MIN)
    a, b = torch.where(valid, a, 0.0), torch.where(valid, b, 0.0)
    if any(k.requires_grad for k in lens):
        # Zeros, which have the gradient of the inverse.
        bent_a, bent_b, _, _ = _distort(a, b, lens)
        rest_x, rest_y = bent_a - bent_a.detach(), bent_b - bent_b.detach()
        a, b = a - (yy * rest_x - xy * rest_y) / det, b - (xx * rest_y - yx * rest_x) / det
    return a, b, valid


def _fisheye_directions(x: Tensor, y: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Unit directions that a fisheye camera with a focal length of 1 shows at x, y; zero if there are none."""
    radius = torch.hypot(x, y)
    theta, valid = radius, radius <= torch.pi
    if lens is not None:
        k1, k2, k3, k4, largest, *_ = lens.detach()[:, :, None, None].unbind(1)
        # Theta is between these, as the distorted angle grows up to the largest.
        low, high = torch.zeros_like(radius), largest.expand_as(radius)
        theta = torch.minimum(radius, high)
        for step in range(2 * NEWTON_STEPS + 1):
            square = theta * theta
            rest = theta * (1 + square * (k1 + square * (k2 + square * (k3 + square * k4)))) - radius
            slope = 1 + square * (3 * k1 + square * (5 * k2 + square * (7 * k3 + square * 9 * k4)))
            if step == 2 * NEWTON_STEPS:
                break
            low, high = torch.where(rest <= 0, theta, low), torch.where(rest >= 0, theta, high)
            newton = theta - rest / slope
            theta = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        valid = rest.abs() <= 100 * torch.finfo(x.dtype).eps * (1 + radius)
        if lens.requires_grad:
            # Zeros, which have the gradient of the inverse.
            change = sum((lens - lens.detach())[:, k, None, None] * theta ** (2 * k + 3) for k in range(4))
            theta = theta - change / torch.where(valid & (slope > 0), slope, torch.inf)
    return _at_angle(theta, x, y, radius, valid)
