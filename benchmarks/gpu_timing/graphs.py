"""Measures the cost of a graphed call besides its graphs: time of Python on the host, and copies on the device."""

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
    """Microseconds by phase, on a tiny scene: of Python, without what is below it, and on the CPU target, with what is
    replayed there; and the operators."""

    python_us: dict[str, float]
    cpu_us: dict[str, float]
    operators: list[Operator]


class _Nothing:
    """Takes the place of what captures graphs; replays do nothing."""

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
            mock.patch.object(graphed_calls, "is_plain_call", return_value=True),  # also while a mode counts operators
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
    """Returns the least microseconds of the passes of graphed calls on a tiny scene."""
    clock, step = Clock(), Step(tiny(scene), tsplat.graphed(tsplat.rasterization))
    for _ in range(repeats):
        step.run(clock.enter)
    return {phase: clock.best_us[phase] for phase in REPLAYS}
