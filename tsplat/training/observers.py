"""The result of a training step, which trainers return and callbacks receive."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor

from ..scene.gaussians import Gaussians


@dataclasses.dataclass(frozen=True)
class Progress:
    """State of training after a step.

    Attributes:
        step: Number of steps taken, from 1.
        steps: Total number of steps.
        loss, psnr: Means over the step's views before the update; [] on the device, as reading them would wait for it.
        gaussians: This rank's current Gaussians; later steps change them in place.
        n_gaussians: Number of Gaussians of all ranks.
        warning: A problem that did not end training; None if there was none.
    """

    step: int
    steps: int
    loss: Tensor
    psnr: Tensor
    gaussians: Gaussians
    n_gaussians: int
    warning: str | None = None


OnStep = Callable[[Progress], bool | None]
"""Called after each step; returning True ends training."""


class DivergedError(ArithmeticError):
    """The loss, the gradients or the Gaussians are no longer finite."""
