"""Measures the cost of a graphed call besides its graphs: Python's time on the CPU, and copies on the device."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import tsplat

from .counting import Operator, Operators, Step
from .host import Clock, tiny

REPLAYS = {"forward": 1, "backward": 1}
"""Number of graphs that each phase of a training step replays."""


@dataclasses.dataclass(frozen=True)
class Around:
    """Cost of a graphed call on a tiny scene.

    Attributes:
        python_us: Microseconds of Python by phase, without the replays.
        cpu_us: Microseconds by phase on the CPU target, with the replays.
        operators: Operators outside of the graphs.
    """

    python_us: dict[str, float]
    cpu_us: dict[str, float]
    operators: list[Operator]


class _Nothing:
    """Stand-in for the recorder of graphs, whose replays do nothing."""

    def warm_up(self, function: Callable[[], object]) -> None:
        function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        return function(), lambda: None


def measure(scene: dict[str, Any], repeats: int) -> Around:
    """Measures forward and backward passes of graphed calls."""
    from tsplat.passes import graphed_calls  # other commits have none

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cpu_us = _best_us(scene, repeats)
        with (
            mock.patch.object(graphed_calls, "is_plain_call", return_value=True),  # although a mode counts operators
            mock.patch.dict(graphed_calls.RECORDERS, cpu=_Nothing),
        ):
            python_us = _best_us(scene, repeats)
            operators, step = Operators(), Step(scene, tsplat.graphed(tsplat.rasterization))
            for _ in range(3):  # counts, captures, replays
                operators.found.clear()
                with operators:
                    step.run(lambda phase: setattr(operators, "phase", phase))
        return Around(python_us, cpu_us, [operator for operator in operators.found if operator.phase in REPLAYS])
    finally:
        torch.set_num_threads(threads)


def _best_us(scene: dict[str, Any], repeats: int) -> dict[str, float]:
    """Returns the minimum time of graphed calls on a tiny scene in microseconds, by phase."""
    clock, step = Clock(), Step(tiny(scene), tsplat.graphed(tsplat.rasterization))
    for _ in range(repeats):
        step.run(clock.enter)
    return {phase: clock.best_us[phase] for phase in REPLAYS}
