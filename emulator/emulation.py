"""Entry point: `with emulated("cuda:80", code="ptx") as gpu: ...`."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from tsplat.gpu_driver import DriverError

from . import build
from .counters import Counts
from .driver import Code, EmulatedDriver, EmulatedGpu
from .library import library
from .machine import EmulationError, Finding, Machine, MachineOptions
from .shadow import Shadow
from .storages import Storages

TARGETS = {"cuda:80": "ptx", "cuda:90": "ptx", "cuda:120": "ptx", "hip:gfx942": "amdgcn", "hip:gfx1100": "amdgcn"}
"""Targets that tests cover -> the code that is executed by default."""


def target_of(name: str) -> GPUTarget:
    """Returns Triton's target for "cuda:80", "sm_80", "hip:gfx942" or "gfx942"."""
    if match := re.fullmatch(r"(?:cuda:|sm_)(\d+)", name):
        return GPUTarget("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"(?:hip:)?(gfx\w+)", name):
        return GPUTarget("hip", match[1], 64 if match[1].startswith("gfx9") else 32)
    raise ValueError(f"target: expected cuda:CC, sm_CC or gfxN, found {name!r}")


class Emulator:
    """Results of emulated launches: the findings of checks, and the counters of kernels."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def findings(self) -> list[Finding]:
        return self.machine.findings

    @property
    def counts(self) -> dict[str, Counts]:
        """Returns the counts of each instruction, by kernel and constants."""
        return self.machine.counts

    @property
    def counters(self) -> dict[str, Counter[str]]:
        """Returns the summaries by kernel and constants; see :meth:`Counts.summary`."""
        return {key: counts.summary() for key, counts in self.machine.counts.items()}

    def check(self) -> None:
        """Raises EmulationError if there are findings."""
        if self.findings:
            raise EmulationError("\n".join(map(str, self.findings)))


@contextlib.contextmanager
def emulated(
    target: str = "cuda:80", code: Code | None = None, *, strict: bool = True, **options: Any
) -> Iterator[Emulator]:
    """Runs Triton kernels on CPU tensors on an emulated GPU inside of the block.

    `target` is a GPU as for :func:`target_of`. `code` is the code that is executed: "ptx" (default) or "sass" for
    NVIDIA, "amdgcn" for AMD. If `strict`, EmulationError is raised at the end if checks have findings.
    """
    if reason := build.missing():
        raise EmulationError(f"the emulator {reason}")
    gpu_target = target_of(target)
    default: Code = "amdgcn" if gpu_target.backend == "hip" else "ptx"
    gpu, shadow, storages = Emulator(Machine(MachineOptions(**options))), Shadow(), Storages()
    config, compilation, drivers = triton.runtime.driver, triton.knobs.compilation, library()
    before = config._active, compilation.listener, drivers.execute
    config.set_active(EmulatedDriver(gpu_target))
    compilation.listener = drivers.compiled
    drivers.execute = EmulatedGpu(code or default, gpu.machine, shadow, storages).execute
    drivers.failure = None
    try:
        with shadow if gpu.machine.options.uninitialized else contextlib.nullcontext(), storages.noting():
            yield gpu
    except RuntimeError as error:
        if drivers.failure is None or not (isinstance(error, DriverError) or isinstance(error.__cause__, DriverError)):
            raise
        raise drivers.failure from error  # the cause of the driver's error
    finally:
        config._active, compilation.listener, drivers.execute = before
        drivers.failure = None
    if strict:
        gpu.check()
