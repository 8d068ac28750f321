"""Records the instructions and memory accesses of the warps of a launch, for timing models of NVIDIA's machine code."""

import ctypes
import dataclasses
from typing import Protocol

import numpy as np

from . import build
from .program import Launch, Memory, Program

MAX_ROWS = 1 << 16
"""Number of instructions of a program from which on runs do not fit into 32 bits."""


@dataclasses.dataclass(frozen=True)
class RawTrace:
    """Events of the warps of a launch, in the order of execution; see core/trace.h."""

    runs: np.ndarray
    """uint32, runs of consecutive instructions of the program: first << 16 | number."""
    accesses: np.ndarray
    """uint32, for each memory instruction a header, sectors | bank passes << 8 | kind << 16 | (lanes - 1) << 20, and
    then the numbers of its sectors. The kind is 0 without active lanes, 1 for global memory, 2 for shared, 3 for local
    memory."""
    index: np.ndarray
    """[programs * warps, 4] uint64: first run, number of runs, first word of `accesses`, number of words."""


class Tracer(Protocol):
    """Receives the launches that a machine executes."""

    def base(self, memory: Memory) -> int:
        """Returns the address of a tensor in the address space of sector numbers; a multiple of 32."""

    def traces(self, launch: Launch) -> bool:
        """Returns whether to record the launch warp by warp."""

    def executed(self, program: Program, launch: Launch, counts: dict[str, np.ndarray], raw: RawTrace | None) -> None:
        """Receives each launch after it ended, with its counts per instruction, and its trace if it was recorded."""


class Recording:
    """A trace in the core's memory, while a launch runs."""

    def __init__(self, program: Program, programs: int, warps: int) -> None:
        if len(program.statements) >= MAX_ROWS:
            raise NotImplementedError(f"traces of programs with {len(program.statements)} instructions")
        self.core, self.programs, self.warps = build.nvidia_core(), programs, warps
        self.core.trace_new.restype = ctypes.c_void_p
        self.core.trace_size.restype = ctypes.c_uint64
        self.address: int | None = self.core.trace_new(ctypes.c_uint64(programs), warps)

    def take(self) -> RawTrace:
        """Returns the trace and frees the core's memory."""
        trace = ctypes.c_void_p(self.address)
        runs, accesses = (np.empty(self.core.trace_size(trace, which), np.uint32) for which in range(2))
        raw = RawTrace(runs, accesses, np.empty((self.programs * self.warps, 4), np.uint64))
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (raw.runs, raw.accesses, raw.index))
        self.core.trace_copy(trace, *pointers, ctypes.c_uint64(self.programs))
        self.core.trace_free(trace)
        self.address = None
        return raw
