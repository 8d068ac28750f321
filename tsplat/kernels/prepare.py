"""Compiles kernels: by Triton for a GPU, or by ``triton_cpu`` for the CPU. Logs a message if that takes long."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import triton

from .. import triton_cpu
from ..errors import BackendError

Vendor = Literal["nvidia", "amd", "none"]
"""Vendor of a GPU; "none" for CPUs."""

Values = tuple[Any, ...]
Run = Callable[[int, Values], None]
"""Launches a compiled kernel, given the number of programs and the values: addresses of tensors, b"" for None, and
numbers."""

COMPILER_OPTIONS = {"num_warps": 4, "num_stages": 3, "maxnreg": None, "enable_fp_fusion": True}
"""Compiler options and their defaults."""

PATIENCE = 2.0
"""Seconds of compilation after which a message is logged."""

PAUSE = 5.0
"""Seconds without compilation after which the next compilation counts as part of another call."""


def prepare(kernel: Any, gpu: int | None, arguments: dict[str, Any]) -> Run:
    """Compiles a kernel for arguments like these, for a GPU by its number, or for the CPU if it is None.

    Raises:
        TritonCPUError: The kernel cannot be compiled for the CPU; TritonCPUMemoryError if memory is insufficient.
        BackendError: Triton cannot compile for the GPU, or the driver cannot load the kernel.
    """
    with _notice.compiling():
        if gpu is not None:
            return _prepare_for_gpu(kernel, gpu, arguments)
        try:
            return triton_cpu.prepare(kernel, arguments)
        except triton_cpu.TritonCPUMemoryError:
            raise
        except triton_cpu.TritonCPUError as error:
            raise triton_cpu.TritonCPUError(f"{error}; use backend='torch'") from error


def _prepare_for_gpu(kernel: Any, gpu: int, arguments: dict[str, Any]) -> Run:
    try:
        from .. import gpu_driver
    except ImportError as error:  # this version of Triton lacks a name that only GPUs require
        raise BackendError(
            f"backend: 'triton' cannot launch kernels of Triton {triton.__version__} on a GPU ({error}); "
            "install Triton 3.5 to 3.9, or use backend='torch'"
        ) from error
    try:
        return gpu_driver.prepare(kernel, gpu_driver.find(gpu), arguments)
    except gpu_driver.DriverError as error:
        raise BackendError(f"backend: 'triton' cannot run on the GPU: {error}; or use backend='torch'") from error


class Notice:
    """Logs a warning to the logger `tsplat`, at most once per call, if compilation takes long."""

    def __init__(self) -> None:
        self._seconds, self._ended, self._said = 0.0, 0.0, False
        self._has_explained = False

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Measures the time of its body. Logs a message once all compilations of a call have taken `PATIENCE`."""
        began = time.monotonic()
        if began - self._ended > PAUSE:
            self._seconds, self._said = 0.0, False
        compiled = threading.Event()
        triton_cpu.start_thread(self._watch, (compiled, max(PATIENCE - self._seconds, 0.0)))
        try:
            yield
        finally:
            compiled.set()
            self._ended = time.monotonic()
            self._seconds += self._ended - began

    def _watch(self, compiled: threading.Event, seconds: float) -> None:
        if not compiled.wait(seconds) and not self._said:
            self._said = True
            if self._has_explained:
                logging.getLogger("tsplat").warning("tsplat: compiling more kernels")
                return
            self._has_explained = True
            problem = triton_cpu.cache_problem()
            later = f"later runs find them in {triton.knobs.cache.dir}"
            if problem is not None:
                later = (
                    f"later runs compile again, as they cannot be saved: {problem}; set TRITON_CACHE_DIR to a folder"
                )
            logging.getLogger("tsplat").warning(
                "tsplat: compiling kernels for new settings, which takes up to a minute; %s", later
            )


_notice = Notice()
