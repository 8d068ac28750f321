"""Adam that updates visible Gaussians only (Mallick et al., "Taming 3DGS", 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .... import ArgumentError, ShapeError
from ..cuda._wrapper import adam


class SelectiveAdam(torch.optim.Adam):
    """Adam without bias correction, for the visible Gaussians of each step. The others and their moments do not change.

    Args:
        params: Parameter groups with one tensor [N, ...] each, fp32 or fp64, with dense gradients.
        eps: Added to the root of the second moment.
        betas: Decay rates of the moments.
    """

    def __init__(self, params: Any, eps: float, betas: tuple[float, float]) -> None:
        super().__init__(params=params, eps=eps, betas=betas)

    @torch.no_grad()
    def step(self, visibility: Tensor) -> None:  # type: ignore[override]
        """Performs a step.

        Args:
            visibility: [N] bool, which Gaussians to update.

        Raises:
            ArgumentError: A group has several tensors, or ``visibility`` does not match a tensor.
        """
        if visibility.dtype != torch.bool or visibility.dim() != 1:
            raise ArgumentError(f"visibility: expected bool [N], found {visibility.dtype} {list(visibility.shape)}")
        for group in self.param_groups:
            if len(group["params"]) != 1:
                raise ArgumentError(f"params: expected one tensor per group, found {len(group['params'])}")
            (parameter,) = group["params"]
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                raise ArgumentError("params: expected dense gradients, found sparse ones; use torch.optim.SparseAdam")
            if parameter.shape[:1] != visibility.shape:
                raise ShapeError(
                    f"visibility: expected {list(parameter.shape[:1])} as the parameter, found {list(visibility.shape)}"
                )
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            b1, b2 = group["betas"]
            moments = state["exp_avg"], state["exp_avg_sq"]
            adam(parameter, parameter.grad, *moments, visibility, group["lr"], b1, b2, group["eps"])
