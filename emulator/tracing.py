"""Records what the warps of a launch did, for models of time. NVIDIA's machine code only."""

import ctypes
import dataclasses
from typing import Protocol

import numpy as np

from . import build
from .program import Launch, Memory, Program

MAX_ROWS = 1 << 16
"""Instructions of a program whose runs fit into 32 bits."""


@dataclasses.dataclass(frozen=True)
class RawTrace:
    """Events of the warps of a launch, in order; see core/trace.h."""

    runs: np.ndarray
    """uint32, consecutive instructions of the program: first << 16 | number."""
    accesses: np.ndarray
    """uint32, one header for each memory instruction: sectors | bank passes << 8 | kind << 16 | (lanes - 1) << 20. The
    kind is 0 without active lanes, 1 for global memory, 2 for shared, 3 for local. Its sectors follow."""
    index: np.ndarray
    """[programs * warps, 4] uint64: first run, number of runs, first word of `accesses`, number of words."""


class Tracer(Protocol):
    """Receives what a machine executes."""

    def base(self, memory: Memory) -> int:
        """Returns where a tensor lies in the address space that sectors are numbered in; a multiple of 32."""

    def traces(self, launch: Launch) -> bool:
        """Returns whether the launch is to be recorded warp by warp."""

    def executed(self, program: Program, launch: Launch, counts: dict[str, np.ndarray], raw: RawTrace | None) -> None:
        """Receives each launch after it ended, with its counts per instruction, and with what its warps did if it was
        recorded."""


class Recording:
    """A trace in the core's memory, while a launch runs."""

    def __init__(self, program: Program, programs: int, warps: int) -> None:
        if len(program.statements) >= MAX_ROWS:
            raise NotImplementedError(f"traces of {len(program.statements)} instructions")
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
