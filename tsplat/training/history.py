"""Figures over steps."""

from __future__ import annotations

import dataclasses

from .trainer import Progress

EVERY = 10


@dataclasses.dataclass
class History:
    """Figures gathered while training.

    Attributes:
        train_steps, train_psnr, train_loss: Every tenth step's view.
        test_steps, test_psnr: The mean over the views held out, as often as they were rendered.
    """

    train_steps: list[int] = dataclasses.field(default_factory=list)
    train_psnr: list[float] = dataclasses.field(default_factory=list)
    train_loss: list[float] = dataclasses.field(default_factory=list)
    test_steps: list[int] = dataclasses.field(default_factory=list)
    test_psnr: list[float] = dataclasses.field(default_factory=list)

    def record(self, progress: Progress) -> None:
        """Takes down a step; a callback for :func:`tsplat.training.fit`."""
        # Reading waits for a GPU, so not every step is read.
        if progress.step % EVERY == 0 or progress.step == progress.steps:
            self.train_steps.append(progress.step)
            self.train_psnr.append(float(progress.psnr))
            self.train_loss.append(float(progress.loss))

    def record_test(self, step: int, psnr: float) -> None:
        self.test_steps.append(step)
        self.test_psnr.append(psnr)
