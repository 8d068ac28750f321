"""The interface of densification strategies."""

import dataclasses
from typing import Any

from ..errors import ArgumentError
from .gaussian_parameters import Optimizers, Parameters, check_parameters


@dataclasses.dataclass
class Strategy:
    """Base class of densification strategies; its hooks do nothing. Same as gsplat 1.5.3.

    A training loop calls :meth:`check_sanity` once, :meth:`step_pre_backward` before each backward pass and
    :meth:`step_post_backward` after it.

    Example::

        import torch
        from tsplat.strategies import MCMCStrategy

        params = {
            "means": torch.randn(100, 3), "quats": torch.randn(100, 4), "scales": torch.full((100, 3), -2.0),
            "opacities": torch.zeros(100), "colors": torch.rand(100, 3),
        }
        params = {name: torch.nn.Parameter(value) for name, value in params.items()}
        optimizers = {name: torch.optim.Adam([value]) for name, value in params.items()}
        strategy = MCMCStrategy(cap_max=1000)
        strategy.check_sanity(params, optimizers)
        state = strategy.initialize_state(scene_scale=1.0)
    """

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Checks parameters and optimizers before training.

        Args:
            params: Leaf tensors by name, each with a row per Gaussian: means [N, 3], scales [N, 3] before exp, quats
                [N, 4], opacities [N] or [N, 1] before sigmoid, and any others.
            optimizers: One optimizer for each parameter that requires a gradient, under its name.

        Raises:
            ArgumentError: A parameter is missing or has the wrong shape; names of trainable parameters and optimizers
                differ; or an optimizer does not have exactly its parameter in exactly one group.
        """
        check_parameters(params, optimizers)
        trainable = {name for name, parameter in params.items() if parameter.requires_grad}
        if trainable != set(optimizers):
            raise ArgumentError(
                f"optimizers: expected one for each of the trainable parameters {sorted(trainable)}, found "
                f"{sorted(optimizers)}"
            )

    def step_pre_backward(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing. Subclasses override it; it is called before the backward pass."""

    def step_post_backward(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing. Subclasses override it; it is called after the backward pass."""
