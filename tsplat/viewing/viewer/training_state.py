"""State of training that pages show: current values, and curves over steps."""

import dataclasses
import math
from typing import Any

import numpy as np

MAX_POINTS = 1000
"""Number of points of a curve at which every other point is dropped."""

Points = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Steps and values, [n] float64 each."""


def format_speed(speed: float) -> str:
    """Returns steps per second, or seconds per step, with units."""
    return f"{speed:.1f} steps/s" if speed >= 1 else f"{1 / max(speed, 1e-9):.1f} s/step"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """State of training that a page shows.

    `loss`, `psnr` and `speed` are None until they are known. `speed` is in steps per second, without pauses; `share` is
    the fraction of the time for images while training runs; `result` is a message with the command that shows the
    result, empty before the end.
    """

    step: int
    steps: int
    loss: float | None
    psnr: float | None
    n_gaussians: int
    speed: float | None
    paused: bool
    finished: bool
    can_save: bool
    share: float
    result: str


class Curve:
    """Values over steps, which are thinned out when there are too many."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._every = 0

    def add(self, step: int, value: float) -> None:
        """Adds a value, unless it is closer to the last one than the interval of a thinned-out curve."""
        if self._points and step < self._points[-1][0] + self._every:
            return
        self._points.append((step, value))
        if len(self._points) >= MAX_POINTS:
            points = self._points[::2]
            self._every = math.ceil((points[-1][0] - points[0][0]) / (len(points) - 1))
            self._points = points

    def arrays(self) -> Points:
        """Returns steps and values, [n] float64 each."""
        steps, values = np.array(self._points, np.float64).reshape(-1, 2).T.copy()
        return steps, values
