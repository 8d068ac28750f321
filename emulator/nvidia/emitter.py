"""Collects instructions of the NVIDIA core during translation.

A place is the offset of an operand in the registers of a warp; see core/nvidia.h.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator import build
from emulator.program import UnsupportedInstructionError

from .program import INSTRUCTION


class Emitter:
    """Collects rows of the instruction array. Their places and jump targets become final in :meth:`assemble`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.lists: list[int] = []
        self.guard: tuple[int, int] = (-1, 0)
        """Place of the predicate that guards the current instruction (-1: none), and whether it is negated."""

    def row(self, op: str, *places: int, **fields: Any) -> None:
        """Adds an instruction of core/nvidia_*.inc with the places of its operands and other fields."""
        number = build.nvidia_operations().get(op)
        if number is None:
            raise UnsupportedInstructionError(op)
        row = {"op": number, "place": [*places, *([-1] * (6 - len(places)))], "guard": self.guard[0]}
        self.rows.append(row | {"guard_negated": self.guard[1]} | fields)

    def listed(self, *places: int) -> int:
        """Stores places of an instruction with more than six; returns the value of its field `list`."""
        at = len(self.lists)
        self.lists += places
        return at

    def final_place(self, place: int) -> int:
        """Returns the final offset in the registers of a warp."""
        raise NotImplementedError

    def jump_target(self, target: Any) -> int:
        """Returns the index of the row to which a `target` refers."""
        raise NotImplementedError

    def assemble(self) -> np.ndarray:
        """Returns the instruction array."""
        code = np.zeros(len(self.rows), INSTRUCTION)
        final: dict[str, Callable[[Any], Any]] = {
            "place": lambda places: [self.final_place(x) for x in places],
            "guard": self.final_place,
            "target": self.jump_target,
        }
        for i, row in enumerate(self.rows):
            for key, value in row.items():
                code[key][i] = final[key](value) if key in final else value
        return code
