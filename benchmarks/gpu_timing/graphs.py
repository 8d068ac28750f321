"""What a graphed call costs besides its graphs: time of Python on the host, and copies on the device."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import tsplat

from .counting import Operator, Operators, Step
from .host import Clock, tiny

REPLAYS = {"forward": 1, "backward": 1}
"""Graphs that each phase of a training step replays."""


@dataclasses.dataclass(frozen=True)
class Around:
    """Microseconds of Python by phase, on a tiny scene, without what is below Python; and the operators."""

    python_us: dict[str, float]
    operators: list[Operator]


class _Nothing:
    """Takes the place of what captures graphs; replays do nothing."""

    def warm_up(self, function: Callable[[], object]) -> None:
        function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        return function(), lambda: None


def measure(scene: dict[str, Any], repeats: int) -> Around:
    """Measures forward and backward passes of graphed calls."""
    from tsplat.ops import graphed_calls  # other commits have none

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with (
            mock.patch.object(graphed_calls, "can_capture", return_value=True),
            mock.patch.object(graphed_calls, "LaunchRecorder", _Nothing),
        ):
            clock, step = Clock(), Step(tiny(scene), tsplat.graphed(tsplat.rasterization))
            for _ in range(repeats):
                step.run(clock.enter)
            operators, step = Operators(), Step(scene, tsplat.graphed(tsplat.rasterization))
            for _ in range(3):  # counts, captures, replays
                operators.found.clear()
                with operators:
                    step.run(lambda phase: setattr(operators, "phase", phase))
        return Around(
            {phase: clock.best_us[phase] for phase in REPLAYS},
            [operator for operator in operators.found if operator.phase in REPLAYS],
        )
    finally:
        torch.set_num_threads(threads)
