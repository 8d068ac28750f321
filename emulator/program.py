"""Parsed kernels, which the front ends produce from compiled code, and their launches."""

import abc
import dataclasses
import re
from typing import Any

import numpy as np

TRITON_LIBRARY = ("standard.py", "math.py", "random.py")
"""Files of triton.language whose functions are inlined into kernels."""


class UnsupportedInstructionError(Exception):
    """The emulator does not support an instruction, or a form of it."""


def kernel_line(comment: str) -> str:
    """Returns "file:line" of an instruction from the comment that LLVM writes after `.loc`.

    "standard.py:293:36 @[ my_kernels.py:59:36 ]" lists the frames of inlined functions, innermost first. Frames of
    Triton's library are skipped. Returns "" if no frame has a line, as for instructions that the compiler added.
    """
    frames = [f"{file}:{line}" for file, line in re.findall(r"([\w.<>-]+):(\d+):\d+", comment) if line != "0"]
    return next((frame for frame in frames if not frame.startswith(TRITON_LIBRARY)), frames[0] if frames else "")


@dataclasses.dataclass
class Memory:
    """The whole storage of a tensor, which a launch may access."""

    address: int
    size: int
    item_bytes: int = 4
    written: np.ndarray | None = None
    """[size] uint8, 1 for bytes that were written; None if all were."""
    readonly: bool = False


@dataclasses.dataclass
class Launch:
    """A kernel launch as the hardware receives it."""

    grid: tuple[int, int, int]
    threads: int
    arguments: np.ndarray
    """Kernel arguments as bytes, uint8."""
    memories: list[Memory]
    shared_bytes: int
    key: str
    """Key of its counters: the kernel's name and constants."""
    module: str = ""
    """Python module of the kernel."""
    block: tuple[int, int, int] | None = None
    """Threads of a program along x, y and z; None if all are along x."""

    @property
    def threads_along(self) -> tuple[int, int, int]:
        """Threads of a program along x, y and z."""
        return self.block or (self.threads, 1, 1)


@dataclasses.dataclass
class Program(abc.ABC):
    """The parsed instructions of a kernel."""

    name: str
    statements: list[str]
    """Text of each instruction; empty for helpers of the emulator, which are not counted."""
    lines: list[str]
    """Source file and line of each instruction, or ""; see :func:`kernel_line`."""

    lanes: int = dataclasses.field(default=32, init=False)
    sector_bytes: int = dataclasses.field(default=32, init=False)

    parameters: list[tuple[int, int]] = dataclasses.field(default_factory=list, init=False)
    """Offset and size of each kernel argument."""
    static_shared_bytes: int = dataclasses.field(default=0, init=False)
    """Shared memory in addition to the size that Triton requests."""

    def source_lines(self) -> list[str]:
        """Returns source file and line of each instruction, or ""."""
        return self.lines

    @property
    def argument_bytes(self) -> int:
        return max((offset + size for offset, size in self.parameters), default=0)

    @property
    def shared_granule(self) -> int:
        """log2 of the number of shared memory bytes for which races are tracked together."""
        return 2

    def hidden_arguments(self, grid: tuple[int, int, int], threads: int) -> dict[int, bytes]:
        """Returns the arguments that the compiler adds to a kernel: offset -> bytes."""
        return {}

    def own_memories(self, launch: Launch) -> list[Memory]:
        """Returns memory that a launch may access in addition to its tensors."""
        return []

    @abc.abstractmethod
    def kind(self, statement: str) -> str:
        """Returns the class of an instruction; see `CLASSES` in counters.py."""

    @abc.abstractmethod
    def execute(self, model: Any, launch: Launch) -> bool:
        """Executes a launch on a machine.Model; returns whether a fault aborted it."""
