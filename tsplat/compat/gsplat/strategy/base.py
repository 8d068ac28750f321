"""The interface of densification strategies."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

from .... import ArgumentError
from ....strategies import DefaultStrategy, MCMCStrategy
from ....strategies.operations import Optimizers, Parameters

__all__ = ["Strategy"]


@dataclasses.dataclass
class Strategy(abc.ABC):  # noqa: B024 - subclasses override what they need
    """Base class of densification strategies. `DefaultStrategy` and `MCMCStrategy` count as subclasses."""

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises `ArgumentError` unless trainable parameters and optimizers have the same names.

        Each optimizer must have one parameter group.
        """
        trainable = {name for name, parameter in params.items() if parameter.requires_grad}
        if trainable != set(optimizers):
            raise ArgumentError(
                f"optimizers: expected one for each of {sorted(trainable)}, found those for {sorted(optimizers)}"
            )
        for name, optimizer in optimizers.items():
            if len(optimizer.param_groups) != 1:
                raise ArgumentError(
                    f"optimizers: expected one parameter group in that for {name}, found {len(optimizer.param_groups)}"
                )

    def step_pre_backward(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027
        """Called before the backward pass. Does nothing."""

    def step_post_backward(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027
        """Called after the backward pass. Does nothing."""


Strategy.register(DefaultStrategy)
Strategy.register(MCMCStrategy)
