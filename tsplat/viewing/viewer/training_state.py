"""State of a training for the pages that show it: its newest values, and curves over its steps."""

import dataclasses
import math
from typing import Any

import numpy as np

MAX_POINTS = 1000
"""Number of points of a curve at which every other is left out."""

Points = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Steps and values, [n] float64 each."""


def format_speed(speed: float) -> str:
    """Returns steps per second, or seconds per step, with units."""
    return f"{speed:.1f} steps/s" if speed >= 1 else f"{1 / max(speed, 1e-9):.1f} s/step"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """State of a training that a page shows.

    Newest values are None before the first. `speed` is in steps per second, without pauses; `share` is that of the time
    for images while training runs; `result` is the command that shows the result later, and is empty before the end.
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
    """Values over steps, thinned out when they become many."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._every = 0

    def add(self, step: int, value: float) -> None:
        """Adds a value, unless the curve is so long that values between the steps are left out."""
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
