"""The interface of densification strategies."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self, cast

from ..config import Backend
from ..errors import ArgumentError

if TYPE_CHECKING:  # configurations name this class, and the command line reads them without PyTorch
    import torch
    from torch import Tensor

    from .gaussian_parameters import Optimizers, Parameters, State


@dataclasses.dataclass
class Strategy:
    """Base class of densification strategies; its hooks, which are those of gsplat 1.5.3, do nothing.

    A training loop calls :meth:`check_sanity` once, :meth:`step_pre_backward` before each backward pass and
    :meth:`step_post_backward` after it. The attributes and the other methods tell :class:`tsplat.training.Trainer` what
    a strategy requires; subclasses override them.

    Attributes:
        arguments: Names of the keyword arguments that :meth:`step_post_backward` takes, out of `lr`, the learning rate
            of the means; `shard`, without which scenes cannot be sharded; `backend`; and `importance`, a function that
            returns by how much training images change without each Gaussian, [N].
        key_for_gradient: Entry of `info` whose gradient is used.
        absgrad: Whether `info` must have absolute gradients, see :func:`tsplat.rasterization`.
        cap_max: Maximum number of Gaussians, which a trainer lowers to what fits in memory; None for no limit.
        generator: Random generator; None for that of the trainer, or else PyTorch's global one.

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

    # Without annotations, these are not fields of the dataclass, so subclasses can declare them in any order.
    arguments = cast("tuple[str, ...]", ())
    key_for_gradient = "means2d"
    absgrad = False
    cap_max = cast("int | None", None)
    generator = cast("torch.Generator | None", None)

    @property
    def reads_rendering(self) -> bool:
        """Whether the hooks need the rendering's `info` in every step, not only in steps that refine."""
        return True

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns an empty state. `scene_scale` is the extent of the scene, in world units."""
        return {}

    def refines(self, step: int) -> bool:
        """Returns whether Gaussians are added, moved or removed in this step."""
        return False

    def expected_growth(self) -> float | None:
        """Returns the ratio of the final number of Gaussians to the initial one; None if it is unknown."""
        return None

    def noise_scaler(self, step: int, lr: float) -> float | None:
        """Returns the scale of the noise of a step, given the learning rate of the means; None for no noise."""
        return None

    def add_noise(self, params: Parameters, key: int | Tensor, scaler: float | Tensor, backend: Backend) -> None:
        """Adds the noise of a step, given its random key, [] int64, and its scale, [] fp64."""

    def for_surfels(self) -> Self:
        """Returns the strategy with its settings for 2D Gaussians."""
        return self

    def with_noise(self, factor: float) -> Self:
        """Returns the strategy with its noise multiplied by a factor."""
        return self

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Checks parameters and optimizers before training.

        Args:
            params: Leaf tensors by name, each with a row per Gaussian: means [N, 3], scales [N, 3] before exp, quats
                [N, 4], opacities [N] or [N, 1] before sigmoid, and optionally others.
            optimizers: One optimizer for each parameter that requires a gradient, under its name.

        Raises:
            ArgumentError: A parameter is missing or has the wrong shape; names of trainable parameters and optimizers
                differ; or an optimizer does not have exactly one group with exactly its parameter.
        """
        from .gaussian_parameters import check_parameters

        check_parameters(params, optimizers)
        trainable = {name for name, parameter in params.items() if parameter.requires_grad}
        if trainable != set(optimizers):
            raise ArgumentError(
                f"optimizers: expected one for each of the trainable parameters {sorted(trainable)}, found "
                f"{sorted(optimizers)}"
            )

    def step_pre_backward(self, *args: Any, **kwargs: Any) -> None:
        """Hook that a training loop calls before the backward pass; does nothing here."""

    def step_post_backward(self, *args: Any, **kwargs: Any) -> None:
        """Hook that a training loop calls after the backward pass; does nothing here."""
