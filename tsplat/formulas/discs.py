"""Discs of 2D Gaussians on the image. ``kernels/compositing/footprints/surfel.py`` explains the symbols."""

from typing import NamedTuple

import torch
from torch import Tensor


class Discs(NamedTuple):
    """Ray transforms M [..., 9] of discs, relative to the projected centers.

    Attributes:
        centers: q [..., 2].
        z: M_22 [..., 1].
        tilts: t [..., 2].
        sides: a, b, c, d [..., 4].
    """

    centers: Tensor
    z: Tensor
    tilts: Tensor
    sides: Tensor

    @classmethod
    def of(cls, transforms: Tensor) -> "Discs":
        """Divides M [..., 9] by M_22, and subtracts the center."""
        m = transforms.view(*transforms.shape[:-1], 3, 3)
        z = m[..., 2, 2:]
        centers, tilts = m[..., :2, 2] / z, m[..., 2, :2] / z
        return cls(centers, z, tilts, (m[..., :2, :2] - centers[..., None] * m[..., 2:, :2]).flatten(-2))

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Returns k (a, b, c, d) [..., 4], zeros if all four are zero, and D [..., 1]."""
        largest = self.sides.detach().abs().amax(-1, keepdim=True)
        sides = self.sides / torch.where(largest > 0, largest, 1.0)
        return sides, (sides[..., :1] * self.sides[..., 3:] - sides[..., 1:2] * self.sides[..., 2:3]) / self.z
