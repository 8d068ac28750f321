"""Collects instructions of the NVIDIA core while text is translated."""

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator import build
from emulator.program import UnsupportedInstructionError

from .program import INSTRUCTION


class Emitter:
    """Rows of the instruction array, whose places are not final yet."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.lists: list[int] = []
        self.guard: tuple[int, int] = (-1, 0)
        """Place of the predicate that guards the current instruction, and whether it is negated."""

    def row(self, op: str, *places: int, **fields: Any) -> None:
        """Adds an instruction of core/nvidia_*.inc at its operands; `target` of other fields is resolved by
        `jump_target`."""
        number = build.nvidia_operations().get(op)
        if number is None:
            raise UnsupportedInstructionError(op)
        row = {"op": number, "place": [*places, *([-1] * (6 - len(places)))], "guard": self.guard[0]}
        self.rows.append(row | {"guard_negated": self.guard[1]} | fields)

    def listed(self, *places: int) -> int:
        """Adds further places; returns the `list` field."""
        at = len(self.lists)
        self.lists += places
        return at

    def final_place(self, place: int) -> int:
        """Returns the offset into a warp's registers."""
        raise NotImplementedError

    def jump_target(self, target: Any) -> int:
        """Returns the row that a `target` stands for."""
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
