"""Distortion and median of the last feature z, in vectorized PyTorch; see ``kernels/compositing/distortion.py``."""

from typing import NamedTuple

import torch
from torch import Tensor


class InFront(NamedTuple):
    """The state of pixels in front of a block, [P] each: the sums of w and w z, the distortion, and the row of the last
    Gaussian with T > 1/2 in front of it (int32, -1 if there is none)."""

    weights: Tensor
    z: Tensor
    distortions: Tensor
    median_rows: Tensor

    @classmethod
    def initial(cls, like: Tensor) -> "InFront":
        """Returns the state in front of the first block."""
        zero = torch.zeros_like(like)
        return cls(zero, zero, zero, torch.full_like(like, -1, dtype=torch.int32))

    def add(self, weight: Tensor, z: Tensor, rows: Tensor) -> "InFront":
        """Adds a block of rows [K], front to back, with weights [P, K] and z, [K] or [P, K]."""
        weighted = weight * z
        in_front, z_in_front = (
            torch.cat([start[:, None], values], 1).cumsum(1)
            for start, values in ((self.weights, weight), (self.z, weighted))
        )
        # D <- D + 2 w (z A - B)
        added = (2 * weight * (z * in_front[:, :-1] - z_in_front[:, :-1])).sum(1)
        early = (weight > 0) & (in_front[:, :-1] < 0.5)
        last = torch.where(early, torch.arange(len(rows), device=rows.device), -1).amax(1)
        medians = torch.where(last >= 0, rows[last.clamp_min(0)].to(torch.int32), self.median_rows)
        return InFront(in_front[:, -1], z_in_front[:, -1], self.distortions + added, medians)


class Behind(NamedTuple):
    """The state of pixels behind a block, [P] each: 2 v, 1 + T_end and 2 B' - S; see ``kernels``."""

    v: Tensor
    total: Tensor
    difference: Tensor

    def step(self, weight: Tensor, front: Tensor, back: Tensor, z: Tensor) -> tuple["Behind", Tensor, Tensor]:
        """Steps over a block, back to front.

        Args:
            weight, front, back: Weights, and T in front of and behind each Gaussian, [P, K] each.
            z: [K] or [P, K].

        Returns:
            The state behind the next block; the derivatives by the weights; the derivatives by z over the weight.
        """
        weighted = weight * z
        difference = torch.cat([self.difference[:, None], 2 * weighted], 1).cumsum(1)
        # A - A' = 1 + T_end - T - T'
        v_z = self.v[:, None] * (self.total[:, None] - front - back)
        v_weight = self.v[:, None] * (difference[:, :-1] + weighted) + v_z * z
        return self._replace(difference=difference[:, -1]), v_weight, v_z
