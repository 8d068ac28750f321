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

    def bend(self, p: Triple, k: None) -> Triple:
        x, y, z = p
        square = x * x + z * z
        has_longitude = square > AXIS_MIN
        longitude = torch.atan2(torch.where(has_longitude, x, 0.0), torch.where(has_longitude, z, 1.0))
        across = torch.where(has_longitude, torch.where(has_longitude, square, 1.0).sqrt(), 0.0)
        return longitude, torch.atan2(y, across), torch.ones_like(has_longitude)

    def unbend(self, x: Tensor, y: Tensor, k: None) -> Triple:
        across = torch.where(y.abs() <= 0.5 * math.pi, y.cos(), 0.0)
        return across * x.sin(), torch.where(across != 0, y.sin(), 0.0), across * x.cos()
