"""What training tells of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor

from ..scene.gaussians import Gaussians


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is after a step.

    Attributes:
        step: Steps taken, from 1.
        steps: Steps there will be.
        loss, psnr: Means over the step's views before the step; [] on the device, so that waiting for them is the
            reader's choice.
        gaussians: As they are now, of this rank; they go on changing.
        n_gaussians: How many all ranks have.
        trouble: What went wrong without ending training, in words.
    """

    step: int
    steps: int
    loss: Tensor
    psnr: Tensor
    gaussians: Gaussians
    n_gaussians: int
    trouble: str | None = None


OnStep = Callable[[Progress], bool | None]
"""Called after each step; training ends early where it returns True."""


class DivergedError(ArithmeticError):
    """The loss or a Gaussian is no longer a number."""
