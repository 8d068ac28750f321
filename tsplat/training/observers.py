"""The interface of observers of training, such as the history, the progress display, TensorBoard and the live view."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..scene.gaussians import Gaussians


@dataclasses.dataclass(frozen=True)
class Progress:
    """State of training after a step.

    Attributes:
        step: Number of steps taken, from 1.
        steps: Total number of steps.
        loss, psnr: Means over the step's views before the update, []. They stay on the device, as reading them
            synchronizes.
        gaussians: This rank's current Gaussians; later steps change them in place.
        n_gaussians: Number of Gaussians of all ranks.
        warning: A problem that did not end training; None if there was none.
        waited: Total seconds that this process has waited for images to be read; None if all images are in memory.
    """

    step: int
    steps: int
    loss: Tensor
    psnr: Tensor
    gaussians: Gaussians
    n_gaussians: int
    warning: str | None = None
    waited: float | None = None


@dataclasses.dataclass(frozen=True)
class RunStart:
    """Describes the start of a run to observers, before its first step in this process.

    Attributes:
        step: Number of steps taken.
        steps: Total number of steps.
        clock: Returns a time in seconds, which excludes the viewer's rendering and pauses.
        train_psnr: Steps and training PSNR of a resumed run, before it was interrupted.
        save: Saves a checkpoint between two steps, and returns a message; None if there is nothing to save to.
    """

    step: int
    steps: int
    clock: Callable[[], float]
    train_psnr: Sequence[tuple[int, float]] = ()
    save: Callable[[], str] | None = None


class Observer:
    """Base class of observers, whose methods are called during training. They do nothing unless overridden."""

    def check_ranks(self, world_size: int) -> None:
        """Raises :class:`UnsupportedError` if the observer does not support this number of ranks."""

    def during(self, run: RunStart) -> contextlib.AbstractContextManager[Any]:
        """Returns a context manager that a run enters for its steps. A :class:`Trainer` alone does not enter it."""
        return contextlib.nullcontext()

    def before_step(self, step: int, gaussians: Gaussians) -> None:
        """Receives the number of steps taken, and this rank's current Gaussians.

        Raises:
            Interrupted: Training should end before this step.
        """

    def after_step(self, progress: Progress) -> None:
        """Receives the results of a step."""

    def between_views(self, gaussians: Gaussians) -> None:
        """Receives this rank's current Gaussians between the views of an evaluation."""


OnStep = Callable[[Progress], bool | None]
"""Called after each step; returning True ends training."""


class DivergedError(ArithmeticError):
    """The loss, the gradients or the Gaussians are no longer finite."""
