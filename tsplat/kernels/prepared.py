"""Prepared launches: what a launch depends on is one key, what it passes is one tuple.

The first launch of each key is checked, specialized and compiled by Triton or by the CPU's compiler. Later ones look
the key up and call the compiled code, without the work of ``kernel[grid](...)``, which takes longer than small kernels.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import triton
from torch import Tensor

from .. import triton_cpu

Vendor = Literal["nvidia", "amd", "none"]
"""Who made a GPU; none for CPUs."""

Values = tuple[Any, ...]
Run = Callable[[int, Values], None]
"""Launches a number of programs with the values that a binder returned."""

OPTIONS = {"num_warps": 4, "num_stages": 3, "maxnreg": None, "enable_fp_fusion": True}
"""Compiler options of launches, and their defaults."""

PATIENCE = 2.0
"""Seconds of compilation after which a line says what takes long."""

PAUSE = 5.0
"""Seconds without compilation after which what is compiled belongs to another call."""

SMALL_STORAGE = 2**31 - 1
"""Bytes up to which Triton's AMD backend specializes on the size of a tensor's storage."""


class Prepared:
    """The launches of one kernel on one device, of which ``launch.launch`` keeps one for each.

    Attributes:
        launch_again: Launches what was launched before, and returns None. Otherwise it returns a key for
            :meth:`launch_first`.
    """

    def __init__(self, kernel: Any, vendor: Vendor) -> None:
        self.kernel = kernel
        self._on_cpu = vendor == "none"
        self._runs: dict[Values, Run] = {}
        self.launch_again = _launcher(kernel, vendor, self._runs)

    def launch_first(self, key: Values, n_programs: int, arguments: dict[str, Any]) -> None:
        """Checks, compiles and launches the kernel.

        Raises:
            ValueError: A tensor is not contiguous although the kernel needs it.
            TritonCPUError: The kernel cannot be compiled for the CPU.
        """
        check_contiguous(self.kernel, arguments)
        with _notice.compiling():
            if not self._on_cpu:
                self._runs[key] = _launch_by_triton(self.kernel, n_programs, arguments)
                return
            try:
                self._runs[key] = triton_cpu.prepare(self.kernel, arguments)
            except triton_cpu.TritonCPUError as error:
                raise triton_cpu.TritonCPUError(f"{error}; use backend='torch'") from error
        self.launch_again(n_programs, **arguments)


class Notice:
    """Tells the logger `tsplat`, once a call, that kernels of a new kind of call are being compiled."""

    def __init__(self) -> None:
        self._seconds, self._ended, self._said = 0.0, 0.0, False

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Counts the time of its body, and speaks when all bodies of a call have taken `PATIENCE`."""
        began = time.monotonic()
        if began - self._ended > PAUSE:
            self._seconds, self._said = 0.0, False
        timer = threading.Timer(max(PATIENCE - self._seconds, 0.0), self._say)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._ended = time.monotonic()
            self._seconds += self._ended - began

    def _say(self) -> None:
        if not self._said:
            self._said = True
            logging.getLogger("tsplat").warning(
                "tsplat: compiling kernels for a new kind of call; this takes up to a minute, and later runs find them "
                "in %s",
                triton.knobs.cache.dir,
            )


_notice = Notice()


def check_contiguous(kernel: Any, arguments: dict[str, Any]) -> None:
    """Raises a ValueError if a tensor is not contiguous although the kernel needs it."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) and not value.is_contiguous() and name not in kernel.strided:
            raise ValueError(f"{kernel.__name__}: {name} {tuple(value.shape)} has strides {value.stride()}")


def _launcher(kernel: Any, vendor: Vendor, runs: dict[Values, Run]) -> Callable[..., Values | None]:
    """Generates the function that splits the arguments of a launch into its key and the values that it passes.

    It looks the key up, and returns it if nothing was launched with it. It is generated because a loop over 40
    arguments takes several times as long. The key holds the dtypes of tensors, whether integers fit into 32 bits,
    constants and their types, and on GPUs options and what else Triton specializes on. A tensor that is not contiguous
    although the kernel needs it is part of the key, which then is never found.
    """
    key, values, on_cpu = [], [], vendor == "none"
    for parameter in kernel.params:
        name = parameter.name
        if parameter.is_constexpr:
            key += [name, f"{name}.__class__"]
            values += [] if on_cpu else [name]
        elif parameter.do_not_specialize:
            key += [] if parameter.annotation_type else [f"-2147483648 <= {name} < 2147483648"]
            values.append(name)
        else:
            contiguous = "True" if name in kernel.strided else f"{name}.is_contiguous()"
            key.append(f"None if {name} is None else {name}.dtype if {contiguous} else {name}")
            if not on_cpu:
                key.append(f"{name} is not None and not {name}.data_ptr() % 16")
            if vendor == "amd":
                key.append(f"{name} is not None and {name}.untyped_storage().nbytes() <= {SMALL_STORAGE}")
            # An empty string takes no space among the arguments of machine code.
            values.append(f"b'' if {name} is None else {name}.data_ptr()" if on_cpu else name)
    if not on_cpu:
        key += OPTIONS
    parameters = [*kernel.arg_names, *(f"{name}={default}" for name, default in OPTIONS.items())]
    source = f"""
def launch(n_programs_, *, {", ".join(parameters)}):
    key_ = ({", ".join(key)},)
    run_ = runs_.get(key_)
    if run_ is None:
        return key_
    run_(n_programs_, ({", ".join(values)},))
"""
    namespace: dict[str, Any] = {"runs_": runs}
    exec(source, namespace)
    launch: Callable[..., Values | None] = namespace["launch"]
    return launch


def _launch_by_triton(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> Run:
    """Launches a kernel as Triton does, and returns the function that launches it again.

    The function calls what ``kernel[grid](...)`` ends in, which is the same from Triton 3.5 to 3.9. While a profiler
    hooks launches, Triton launches.
    """
    arguments = {"enable_fp_fusion": True, **arguments}
    compiled = kernel[(n_programs,)](**arguments)
    runtime, driver = triton.knobs.runtime, triton.runtime.driver.active
    device = driver.get_current_device()
    options = {name: value for name, value in arguments.items() if name not in kernel.arg_names}
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def launch(n_programs: int, values: Values) -> None:
        if _is_hooked(runtime.launch_enter_hook) or _is_hooked(runtime.launch_exit_hook):
            kernel[(n_programs,)](**dict(zip(kernel.arg_names, values)), **options)
        else:
            stream = driver.get_current_stream(device)
            run(n_programs, 1, 1, stream, function, metadata, None, None, None, *values)

    return launch


def _is_hooked(hook: Any) -> bool:
    """Returns whether a hook of Triton, by default a chain of none, calls anything."""
    return hook is not None and bool(getattr(hook, "calls", True))
