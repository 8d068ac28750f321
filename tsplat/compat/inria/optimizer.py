"""Adam for visible Gaussians, with the name of Inria's accelerated rasterizer."""

from typing import Any

import torch
from torch import Tensor

from ... import ShapeError
from ..gsplat.optimizers import SelectiveAdam


class SparseGaussianAdam(SelectiveAdam):
    """Adam without bias correction that updates only the visible Gaussians of each step, and their moments.

    Args:
        params: Parameter groups with one tensor [N, ...] each, fp32 or fp64, of any strides.
        lr: Learning rate of groups without their own.
        eps: Added to the root of the second moment.
    """

    def __init__(self, params: Any, lr: float, eps: float) -> None:
        super().__init__(params, eps=eps, betas=(0.9, 0.999), lr=lr)

    @torch.no_grad()
    def step(self, visibility: Tensor, N: int) -> None:  # type: ignore[override]
        """Performs a step.

        Args:
            visibility: [N] bool mask of the Gaussians to update.
            N: Number of Gaussians.

        Raises:
            ArgumentError: A group has several tensors, or ``visibility`` does not match a tensor or ``N``.
        """
        if visibility.shape != (N,):
            raise ShapeError(f"visibility: expected [{N}] as N, found {list(visibility.shape)}")
        super().step(visibility)
