"""F-theta lenses in PyTorch; see ``kernels/projection/lenses/ftheta.py``."""

from collections import namedtuple

import torch
from torch import Tensor

from ...config import BACK_SLOPE_SQUARED, FTHETA_STEPS
from ...formulas.rotations import Triple
from .fisheye import direction_at_angle, fisheye_direction, invert
from .interface import Lens

Coefficients = namedtuple("Coefficients", "c1 c2 c3 c4 c5 theta_max distance_max c d e inverts around")
"""``inverts`` is 1 if the polynomial maps distances to angles, 0 if it maps angles to distances. ``around`` is 1 if the
lens shows points behind the camera."""


class FTheta(Lens):
    coefficients = Coefficients
    has_jacobian = False
    culls_by_distance = True

    def shows_behind(self, p: Triple, k: Coefficients) -> Tensor:
        has_azimuth = p[0] * p[0] + p[1] * p[1] > BACK_SLOPE_SQUARED * (p[2] * p[2])
        shown: Tensor = has_azimuth & (k.around > 0)
        return shown

    def project(self, p: Triple, k: Coefficients) -> Triple:
        (x, y, _), _, gain, _ = fisheye_direction(p)
        square = gain * gain * (x * x + y * y)  # theta^2
        theta = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
        gain = gain * _gain(theta.minimum(k.theta_max), k)
        x, y = gain * x, gain * y
        return k.c * x + k.d * y, k.e * x + y, theta <= k.theta_max

    @torch.no_grad()
    def unproject(self, x: Tensor, y: Tensor, k: Coefficients) -> Triple:
        c, d, e = k.c, k.d, k.e
        x, y = (x - d * y) / (c - d * e), (c * y - e * x) / (c - d * e)
        radius = torch.hypot(x, y)
        inside = radius.minimum(k.distance_max)
        theta = invert(
            lambda t: _polynomial(t, k), inside, k.theta_max, inside * (k.theta_max / k.distance_max), FTHETA_STEPS
        )
        theta = torch.where(k.inverts > 0, inside * _polynomial(inside, k)[0], theta)
        return direction_at_angle(theta, x, y, radius, radius <= k.distance_max)


def _gain(theta: Tensor, k: Coefficients) -> Tensor:
    """Returns the distance from the principal point at which the lens shows the angle theta, divided by theta."""
    inverts = k.inverts > 0
    root = invert(
        lambda t: _polynomial(t, k), theta, k.distance_max, theta * (k.distance_max / k.theta_max), FTHETA_STEPS
    )
    root = torch.where(inverts, root, 0.0)
    value, slope = _polynomial(root, k)
    # One more Newton step, with gradient: the gradient of the inverse (implicit function theorem).
    t = torch.where(inverts, root - (root * value - theta) / torch.where(slope > 0, slope, torch.inf), theta)
    value, _ = _polynomial(t, k)
    return torch.where(inverts, 1 / torch.where(value > 0, value, torch.inf), value)


def _polynomial(t: Tensor, k: Coefficients) -> tuple[Tensor, Tensor]:
    """Returns the polynomial divided by t, and its derivative."""
    value = k.c1 + t * (k.c2 + t * (k.c3 + t * (k.c4 + t * k.c5)))
    return value, k.c1 + t * (2 * k.c2 + t * (3 * k.c3 + t * (4 * k.c4 + t * (5 * k.c5))))
