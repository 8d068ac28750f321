"""Equirectangular projection in PyTorch; see ``kernels/projection/lenses/equirectangular.py``."""

import math

import torch
from torch import Tensor

from ...config import AXIS_MIN
from ...formulas.rotations import Triple
from .interface import Lens


class Equirectangular(Lens):
    has_jacobian = False
    culls_by_distance = True
    wraps = True

    def project(self, p: Triple, k: None) -> Triple:
        x, y, z = p
        square = x * x + z * z
        has_longitude = square > AXIS_MIN
        longitude = torch.atan2(torch.where(has_longitude, x, 0.0), torch.where(has_longitude, z, 1.0))
        r = torch.where(has_longitude, torch.where(has_longitude, square, 1.0).sqrt(), 0.0)
        return longitude, torch.atan2(y, r), torch.ones_like(has_longitude)

    def project_difference(self, p: Triple, d: Triple) -> Triple:
        sine, cosine, r = _direction(p[0], p[2])
        dx, dz = cosine * d[0] - sine * d[2], sine * d[0] + cosine * d[2]
        q = dx, p[1] + d[1], r + dz
        exists = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] > AXIS_MIN
        longitude, _, _ = self.project(q, None)
        r_of_q = _direction(q[0], q[2])[2]
        total = r + r_of_q
        r_difference = (dx * dx + dz * (2 * r + dz)) / torch.where(total > 0, total, 1.0)
        sine, cosine, _ = _direction(p[1], r)
        y, x = d[1] * cosine - r_difference * sine, q[1] * sine + r_of_q * cosine
        latitude = torch.atan2(torch.where(exists, y, 0.0), torch.where(exists, x, 1.0))
        return torch.where(exists, longitude, 0.0), latitude, exists

    def unproject(self, x: Tensor, y: Tensor, k: None) -> Triple:
        r = torch.where(y.abs() <= 0.5 * math.pi, y.cos(), 0.0)
        return r * x.sin(), torch.where(r != 0, y.sin(), 0.0), r * x.cos()


def _direction(x: Tensor, z: Tensor) -> Triple:
    """Returns sine and cosine of the angle of (x, z) from the z axis, and its length; 0, 1, 0 for short vectors."""
    square = x * x + z * z
    exists = square > AXIS_MIN
    length = torch.where(exists, square, 1.0).sqrt()
    return torch.where(exists, x / length, 0.0), torch.where(exists, z / length, 1.0), torch.where(exists, length, 0.0)
