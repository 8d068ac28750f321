"""Orthographic projection in PyTorch; see ``kernels/projection/lenses/ortho.py``."""

import torch
from torch import Tensor

from ...formulas.rotations import Triple
from .interface import Lens, Projected


class Ortho(Lens):
    is_parallel = True

    def project_with_jacobian(self, p: Triple, intrinsics: tuple[Tensor, ...], width: int, height: int) -> Projected:
        fx, fy, cx, cy = intrinsics
        return fx * p[0] + cx, fy * p[1] + cy, (fx, None, None), (None, fy, None)

    def project(self, p: Triple, k: None) -> Triple:
        return p[0], p[1], torch.ones_like(p[2], dtype=torch.bool)

    def unproject(self, x: Tensor, y: Tensor, k: None) -> Triple:
        return torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x)
