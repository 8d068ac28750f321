"""Adam that updates visible Gaussians only (Mallick et al., "Taming 3DGS", 2024)."""

from typing import Any

import torch
from torch import Tensor

from .... import ArgumentError
from ..cuda._adam import adam, check_adam

MOMENTS = ("exp_avg", "exp_avg_sq")


class SelectiveAdam(torch.optim.Adam):
    """Adam without bias correction that updates only the visible Gaussians of each step, and their moments.

    Args:
        params: Parameter groups with one tensor [N, ...] each, fp32 or fp64, with dense gradients.
        eps: Added to the root of the second moment.
        betas: Decay rates of the moments.
        lr: Learning rate of groups without their own.
    """

    def __init__(self, params: Any, eps: float, betas: tuple[float, float], *, lr: float = 1e-3) -> None:
        super().__init__(params=params, lr=lr, eps=eps, betas=betas)

    @torch.no_grad()
    def step(self, visibility: Tensor) -> None:  # type: ignore[override]
        """Performs a step.

        Args:
            visibility: [N] bool mask of the Gaussians to update.

        Raises:
            ArgumentError: A group has several tensors, or a shape, dtype or device is invalid. Then nothing is changed.
        """
        for group in self.param_groups:
            if len(group["params"]) != 1:
                raise ArgumentError(f"params: expected one tensor per group, found {len(group['params'])}")
        updated = [group for group in self.param_groups if group["params"][0].grad is not None]
        for group in updated:
            (parameter,) = group["params"]
            state = self.state.get(parameter, {})
            moments = {name: state[name] for name in MOMENTS if name in state}
            check_adam(parameter, parameter.grad, moments, "visibility", visibility)
        for group in updated:
            (parameter,) = group["params"]
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
                for name in MOMENTS:
                    state[name] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            b1, b2 = group["betas"]
            first, second = (state[name] for name in MOMENTS)
            adam(parameter, parameter.grad, first, second, visibility, group["lr"], b1, b2, group["eps"])
