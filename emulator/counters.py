"""Counts of executed kernels: warp instructions by class, memory sectors, bank conflicts, divergent branches."""

import collections
from typing import Any

import numpy as np

from .program import Program

CLASSES = (
    "float", "special", "integer", "compare", "move", "shuffle", "matrix", "load", "store", "atomic", "barrier",
    "control", "parameter", "other",
)  # fmt: skip
"""Classes of instructions; `parameter` loads kernel arguments. AMD's scalar instructions are classified like others."""
MEMORY = ("load", "store", "atomic")
SHARED = ("shared load", "shared store", "shared atomic")


class Counts:
    """Sums of counters over the launches of one kernel with the same constants."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.launches = 0
        self.programs = 0
        self.arrays: dict[str, np.ndarray] = {}
        """Counters by name, [instructions] uint64 each; see Model in core/model.h."""

    def add(self, arrays: dict[str, np.ndarray], programs: int) -> None:
        """Adds the counters of one launch."""
        self.launches += 1
        self.programs += programs
        for name, array in arrays.items():
            self.arrays[name] = self.arrays[name] + array if name in self.arrays else array

    def summary(self) -> collections.Counter[str]:
        """Returns totals.

        Returns:
            `instructions`: number of warp instructions, and one entry per class of `CLASSES`; `lanes`: sum of their
            active lanes; `divergent branches`. For global memory: `load requests`, `load sectors`, `load first sectors`
            (the first access by a program), the same for stores and atomics, and `atomic addresses` (distinct addresses
            of each instruction). For shared memory: `bank passes` and `conflict-free passes`.
        """
        total: collections.Counter[str] = collections.Counter(launches=self.launches, programs=self.programs)
        for i, statement in enumerate(self.program.statements):
            issued = int(self.arrays["issued"][i])
            if not issued or not statement:
                continue
            kind = self.program.kind(statement)
            shared = kind in SHARED
            name = kind.removeprefix("shared ")
            total["instructions"] += issued
            total[name] += issued
            total["lanes"] += int(self.arrays["lanes"][i])
            total["divergent branches"] += int(self.arrays["diverged"][i])
            if shared:
                total["bank passes"] += int(self.arrays["sectors"][i])
                total["conflict-free passes"] += int(self.arrays["first"][i])
            elif name in MEMORY:
                total[f"{name} requests"] += int(self.arrays["requests"][i])
                total[f"{name} sectors"] += int(self.arrays["sectors"][i])
                total[f"{name} first sectors"] += int(self.arrays["first"][i])
            if name == "atomic":
                total["atomic addresses"] += int(self.arrays["distinct"][i])
        return total


def by_line(counts: Counts) -> dict[str, int]:
    """Returns the number of warp instructions by source line."""
    total: collections.Counter[str] = collections.Counter()
    for issued, line, statement in zip(
        counts.arrays["issued"], counts.program.source_lines(), counts.program.statements
    ):
        if statement:
            total[line] += int(issued)
    return dict(total)


def total(counts: dict[str, Counts], kernel: str | None = None) -> collections.Counter[str]:
    """Returns the sum of the summaries of all kernels, or of kernels with the name `kernel`."""
    result: collections.Counter[str] = collections.Counter()
    for one in counts.values():
        if kernel in (None, one.program.name):
            result.update(one.summary())
    return result


def table(counts: dict[str, Counts]) -> list[dict[str, Any]]:
    """Returns one row per kernel and constants, in descending order of instructions."""
    rows = [{"kernel": key, **one.summary()} for key, one in counts.items()]
    return sorted(rows, key=lambda row: -row.get("instructions", 0))
