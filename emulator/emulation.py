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
"""Targets that tests cover, with the code that is executed unless another is asked for."""


def target_of(name: str) -> GPUTarget:
    """Returns Triton's target for "cuda:80", "sm_80", "hip:gfx942" or "gfx942"."""
    if match := re.fullmatch(r"(?:cuda:|sm_)(\d+)", name):
        return GPUTarget("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"(?:hip:)?(gfx\w+)", name):
        return GPUTarget("hip", match[1], 64 if match[1].startswith("gfx9") else 32)
    raise ValueError(f"target: expected cuda:CC, sm_CC or gfxN, found {name!r}")


class Emulator:
    """An emulated GPU: what its checks found and what its kernels cost."""

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
        """Raises EmulationError if anything was found."""
        if self.findings:
            raise EmulationError("\n".join(map(str, self.findings)))


@contextlib.contextmanager
def emulated(
    target: str = "cuda:80", code: Code | None = None, *, strict: bool = True, **options: Any
) -> Iterator[Emulator]:
    """Runs Triton kernels on CPU tensors compiled for a GPU, as :func:`target_of` takes it, on an emulated one.

    `code` is what is executed: "ptx" (unless said otherwise) or "sass" for NVIDIA, "amdgcn" for AMD. If `strict`,
    raises EmulationError at the end for what the checks found.
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
        raise drivers.failure from error  # why the driver says that a launch has failed
    finally:
        config._active, compilation.listener, drivers.execute = before
        drivers.failure = None
    if strict:
        gpu.check()
