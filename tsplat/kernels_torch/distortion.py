"""Distortion and median of the last feature z, in vectorized PyTorch; see ``kernels/compositing/distortion.py``."""

from typing import NamedTuple

import torch
from torch import Tensor


class InFront(NamedTuple):
    """Holds the state of pixels in front of a block: sums of w and of w z, and distortion, [P] each; and the row of the
    last one in front of which more than half of the light was left, [P] int32, -1 if there is none."""

    weights: Tensor
    z: Tensor
    distortions: Tensor
    median_rows: Tensor

    @classmethod
    def nothing(cls, like: Tensor) -> "InFront":
        zero = torch.zeros_like(like)
        return cls(zero, zero, zero, torch.full_like(like, -1, dtype=torch.int32))

    def add(self, weight: Tensor, z: Tensor, rows: Tensor) -> "InFront":
        """Adds a block of weights [P, K], front to back, of rows [K] with z, [K] or [P, K]."""
        weighted = weight * z
        in_front, z_in_front = (
            torch.cat([start[:, None], values], 1).cumsum(1)
            for start, values in ((self.weights, weight), (self.z, weighted))
        )
        added = (2 * weight * (z * in_front[:, :-1] - z_in_front[:, :-1])).sum(1)
        early = (weight > 0) & (in_front[:, :-1] < 0.5)
        last = torch.where(early, torch.arange(len(rows), device=rows.device), -1).amax(1)
        medians = torch.where(last >= 0, rows[last.clamp_min(0)].to(torch.int32), self.median_rows)
        return InFront(in_front[:, -1], z_in_front[:, -1], self.distortions + added, medians)


class Behind(NamedTuple):
    """Holds the state of pixels behind a block, [P] each: twice the gradient of distortion, 1 + T behind all, and twice
    the sum of w z behind a block minus that of all."""

    v: Tensor
    most: Tensor
    difference: Tensor

    def step(self, weight: Tensor, front: Tensor, back: Tensor, z: Tensor) -> tuple["Behind", Tensor, Tensor]:
        """Takes a block [P, K] back to front, with T in front of and behind each Gaussian, and its z.
        Returns what is behind the next block; gradients of weights, and of z of each pixel, over the weight. [P, K]"""
        weighted = weight * z
        difference = torch.cat([self.difference[:, None], 2 * weighted], 1).cumsum(1)
        v_z = self.v[:, None] * (self.most[:, None] - front - back)
        v_weight = self.v[:, None] * (difference[:, :-1] + weighted) + v_z * z
        return self._replace(difference=difference[:, -1]), v_weight, v_z
