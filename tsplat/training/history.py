"""Figures over steps, and what they warn of."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from .progress import Progress

SMOOTHING = 0.98
"""How much of the smoothed PSNR is carried over from step to step."""

FALL_MIN = 2.0
"""How many dB below its best the smoothed PSNR counts as fallen."""

PATIENCE = 0.05
"""Share of all steps for which it may stay there."""

PSNR_MAX = 120.0
"""Equal pictures have an infinite one, which neither curves nor JSON have room for."""


@dataclasses.dataclass
class History:
    """Figures gathered while training.

    Attributes:
        train_steps, train_psnr, train_loss: Every tenth step's views.
        test_steps, test_psnr: The mean over the views held out, as often as they were rendered.
        test_gaussians: How many Gaussians there were then.
    """

    EVERY: ClassVar[int] = 10

    train_steps: list[int] = dataclasses.field(default_factory=list)
    train_psnr: list[float] = dataclasses.field(default_factory=list)
    train_loss: list[float] = dataclasses.field(default_factory=list)
    test_steps: list[int] = dataclasses.field(default_factory=list)
    test_psnr: list[float] = dataclasses.field(default_factory=list)
    test_gaussians: list[int] = dataclasses.field(default_factory=list)

    def record(self, progress: Progress) -> None:
        """Takes down a step."""
        # Reading waits for a GPU, so not every step is read.
        if progress.step % self.EVERY == 0 or progress.step == progress.steps:
            self.train_steps.append(progress.step)
            self.train_psnr.append(min(float(progress.psnr), PSNR_MAX))
            self.train_loss.append(float(progress.loss))

    def record_test(self, step: int, psnr: float, n_gaussians: int) -> None:
        self.test_steps.append(step)
        self.test_psnr.append(min(psnr, PSNR_MAX))
        self.test_gaussians.append(n_gaussians)


class Watch:
    """Says when the PSNR has been low for long, once each time that it falls.

    Args:
        steps: Of the whole run.
    """

    def __init__(self, steps: int) -> None:
        self._patience = max(History.EVERY, PATIENCE * steps)
        self._smoothed: float | None = None
        self._best = 0.0
        self._since: int | None = None
        self._said = False

    def look(self, progress: Progress) -> str | None:
        """Takes down a step. Returns a warning, if it is time for one."""
        if progress.step % History.EVERY:
            return None
        psnr, kept = min(float(progress.psnr), PSNR_MAX), SMOOTHING**History.EVERY
        self._smoothed = psnr if self._smoothed is None else kept * self._smoothed + (1 - kept) * psnr
        self._best = max(self._best, self._smoothed)
        if self._smoothed > self._best - FALL_MIN:
            self._since, self._said = None, False
            return None
        self._since = progress.step if self._since is None else self._since
        if self._said or progress.step - self._since < self._patience:
            return None
        self._said = True
        return (
            f"the PSNR of fitted views is {self._smoothed:.1f} dB at step {progress.step}, and has been well below its "
            f"best of {self._best:.1f} dB since step {self._since}"
        )

    def state(self) -> dict[str, Any]:
        return {"smoothed": self._smoothed, "best": self._best, "since": self._since, "said": self._said}

    def restore(self, state: dict[str, Any]) -> None:
        self._smoothed, self._best = state["smoothed"], state["best"]
        self._since, self._said = state["since"], state["said"]
