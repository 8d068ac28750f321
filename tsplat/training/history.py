"""Metrics over the steps of a run, and a warning when the PSNR stays low."""

import dataclasses
import math
from typing import Any, ClassVar

from .observers import Observer, Progress

SMOOTHING = 0.98
"""Decay of the exponentially smoothed PSNR per step."""

DROP_MIN = 2.0
"""The smoothed PSNR is low if it is this many dB below its best."""

PATIENCE = 0.05
"""Fraction of the run for which the smoothed PSNR may be low without a warning."""

PSNR_MAX = 120.0
"""Maximum PSNR that is recorded, as neither plots nor JSON can represent infinity."""


def read_psnr(progress: Progress) -> float | None:
    """Returns the PSNR of a step, at most PSNR_MAX; None if the loss is not finite, which JSON cannot represent."""
    return min(float(progress.psnr), PSNR_MAX) if math.isfinite(float(progress.loss)) else None


@dataclasses.dataclass
class History(Observer):
    """Metrics recorded during training.

    Attributes:
        train_steps, train_psnr, train_loss: Metrics of the training views at every tenth step, if they are finite.
        test_steps, test_psnr: Mean PSNR over the held-out views at each evaluation.
        test_gaussians: Number of Gaussians at each evaluation.
    """

    EVERY: ClassVar[int] = 10

    train_steps: list[int] = dataclasses.field(default_factory=list)
    train_psnr: list[float] = dataclasses.field(default_factory=list)
    train_loss: list[float] = dataclasses.field(default_factory=list)
    test_steps: list[int] = dataclasses.field(default_factory=list)
    test_psnr: list[float] = dataclasses.field(default_factory=list)
    test_gaussians: list[int] = dataclasses.field(default_factory=list)

    def after_step(self, progress: Progress) -> None:
        """Records every tenth step and the last one, if the loss is finite."""
        # Reading a loss synchronizes with the GPU, so most losses are not read.
        is_due = progress.step % self.EVERY == 0 or progress.step == progress.steps
        if is_due and (psnr := read_psnr(progress)) is not None:
            self.train_steps.append(progress.step)
            self.train_psnr.append(psnr)
            self.train_loss.append(float(progress.loss))

    def record_test(self, step: int, psnr: float, n_gaussians: int) -> None:
        """Records an evaluation on the held-out views."""
        self.test_steps.append(step)
        self.test_psnr.append(min(psnr, PSNR_MAX))
        self.test_gaussians.append(n_gaussians)


class PsnrMonitor:
    """Warns once per drop when the training PSNR stays low. `steps` is the length of the run."""

    def __init__(self, steps: int) -> None:
        self._patience = max(History.EVERY, PATIENCE * steps)
        self._smoothed: float | None = None
        self._best = 0.0
        self._low_since: int | None = None
        self._warned = False

    def check(self, progress: Progress) -> str | None:
        """Records the PSNR of a training step, and returns a warning if one is due."""
        if progress.step % History.EVERY or (psnr := read_psnr(progress)) is None:
            return None
        past = SMOOTHING**History.EVERY
        self._smoothed = psnr if self._smoothed is None else past * self._smoothed + (1 - past) * psnr
        self._best = max(self._best, self._smoothed)
        if self._smoothed > self._best - DROP_MIN:
            self._low_since, self._warned = None, False
            return None
        self._low_since = progress.step if self._low_since is None else self._low_since
        if self._warned or progress.step - self._low_since < self._patience:
            return None
        self._warned = True
        return (
            f"the PSNR of training views is {self._smoothed:.1f} dB at step {progress.step}; since step "
            f"{self._low_since} it has been well below its best of {self._best:.1f} dB"
        )

    def state(self) -> dict[str, Any]:
        """Returns the values that :meth:`restore` takes, as JSON."""
        return {"smoothed": self._smoothed, "best": self._best, "since": self._low_since, "said": self._warned}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state."""
        self._smoothed, self._best = state["smoothed"], state["best"]
        self._low_since, self._warned = state["since"], state["said"]
