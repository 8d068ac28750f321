"""Prepared launches: what a launch depends on is one key, what it passes is one tuple.

The first launch of each key is checked, and compiled by Triton for a GPU or by the CPU's compiler. Later ones look the
key up and call the compiled code, without the work of ``kernel[grid](...)``, which takes longer than small kernels.

The functions that launch a kernel are generated from its signature: a loop over 40 arguments, or a dictionary of them,
takes several times as long.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal

import torch
import triton
from torch import Tensor

from .. import triton_cpu
from ..errors import BackendError

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


def prepare(kernel: Any, gpu: int | None, arguments: dict[str, Any]) -> Run:
    """Checks and compiles a kernel for a kind of launch, on a GPU by its number, or on the CPU for None.

    Raises:
        ValueError: A tensor is not contiguous although the kernel needs it.
        TritonCPUError: The kernel cannot be compiled for the CPU; a TritonCPUMemoryError if there is too little memory.
        BackendError: Triton cannot compile for the GPU, or its driver cannot load the kernel.
    """
    check_contiguous(kernel, arguments)
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
    except ImportError as error:  # a Triton without a name that is needed for GPUs only
        raise BackendError(
            f"backend: 'triton' knows no way to launch kernels of Triton {triton.__version__} on a GPU ({error}); "
            "install a Triton from 3.5 to 3.9, or use backend='torch'"
        ) from error
    try:
        return gpu_driver.prepare(kernel, gpu_driver.find(gpu), arguments)
    except gpu_driver.DriverError as error:
        raise BackendError(f"backend: 'triton' cannot run on the GPU: {error}; or use backend='torch'") from error


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
            problem = triton_cpu.cache_problem()
            later = f"later runs find them in {triton.knobs.cache.dir}"
            if problem is not None:
                later = f"so do later runs, as they cannot be kept: {problem}; set TRITON_CACHE_DIR to another folder"
            logging.getLogger("tsplat").warning(
                "tsplat: compiling kernels for a new kind of call; this takes up to a minute, and %s", later
            )


_notice = Notice()


def check_contiguous(kernel: Any, arguments: dict[str, Any]) -> None:
    """Raises a ValueError if a tensor is not contiguous although the kernel needs it."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) and not value.is_contiguous() and name not in kernel.strided:
            raise ValueError(f"{kernel.__name__}: {name} {tuple(value.shape)} has strides {value.stride()}")


def launcher(
    kernel: Any, module: ModuleType, fixed: tuple[str, ...] = (), *, elementwise: bool
) -> Callable[..., Callable[..., None]]:
    """Generates a function of arguments that are fixed. It returns the function of the others that launches a kernel by
    what its key was prepared for, or calls ``launch_first``.

    Args:
        module: That of ``launch_first``, with the state that launches depend on.
        fixed: Names of arguments and compiler options, whose values take no time in a launch.
        elementwise: Whether launches take a number of elements and sizes of blocks, of which they make the number of
            programs and BLOCK.
    """
    names = kernel.arg_names
    given = [name for name in names if name not in fixed and not (elementwise and name == "BLOCK")]
    tensors = [p.name for p in kernel.params if p.name in given and not p.is_constexpr and not p.do_not_specialize]
    first = " else ".join(f"{name} if {name} is not None" for name in tensors) + " else None"
    options = [f"{name}={default}" for name, default in OPTIONS.items() if name not in fixed]
    grid = "n_, block_, cpu_block_=CPU_BLOCK_" if elementwise else "n_programs_"
    described = ", ".join(_fixed_key(kernel, fixed))
    source = f"""
def fix({", ".join(fixed)}):
  kind_ = module_.kinds.setdefault(({id(kernel)}, {fixed}, {described}), next(module_.numbers))

  def launch({grid}, /, *, {", ".join([*given, *options])}):
    first_ = {first}
    vendor_ = module_.vendor(first_)
"""
    if elementwise:
        source += """
    BLOCK = cpu_block_ if vendor_ == "none" else block_
    n_programs_ = -(-n_ // BLOCK)
    if n_programs_ > module_.GRID_MAX:
        module_.programs(n_, BLOCK)  # raises
"""
    source += """
    if not n_programs_:
        return
"""
    limit = """
        if n_programs_ > module_.AMD_PROGRAMS:
            module_.check_threads(first_, n_programs_, num_warps)
"""
    for vendor, test in (("none", "if vendor_ == 'none'"), ("amd", "elif vendor_ == 'amd'"), ("nvidia", "else")):
        key, values = _key_and_values(kernel, vendor, fixed)
        if vendor == "none":
            source += f"""
    {test}:
        key_ = (kind_, -1, {", ".join(key)},)
        values_ = ({", ".join(values)},)
"""
            continue
        source += f"""
    {test}:
{limit if vendor == "amd" else ""}
        {"; ".join(f"{name}_ = b'' if {name} is None else {name}.data_ptr()" for name in tensors) or "pass"}
        key_ = (kind_, module_.current_gpu(first_), {", ".join(key)},)
        values_ = ({", ".join(values)},)
"""
    arguments = ", ".join(f"{name}={name}" for name in (*names, *OPTIONS))
    source += f"""
    run_ = None if module_.observer or is_traced_() else module_.prepared.get(key_)
    if run_ is None:
        module_.launch_first(kernel_, key_, vendor_, n_programs_, values_, dict({arguments}))
    else:
        run_(n_programs_, values_)

  return launch
"""
    traced = torch.compiler.is_dynamo_compiling
    namespace = {"module_": module, "kernel_": kernel, "CPU_BLOCK_": module.CPU_BLOCK, "is_traced_": traced}
    exec(source, namespace)
    fix: Callable[..., Callable[..., None]] = namespace["fix"]
    return fix


def _key_and_values(kernel: Any, vendor: Vendor, fixed: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The expressions of a launch's key, but for what is fixed, and of the values that it passes.

    The key holds the dtypes of tensors, whether integers fit into 32 bits, constants and their types, and on GPUs
    options and what else Triton specializes on. A tensor that is not contiguous although the kernel needs it is part of
    the key, which then is never found. Values are addresses of tensors, b"" for None, which takes no space among the
    arguments of compiled code, and numbers. On GPUs, a variable that is named like a tensor, with an underscore, has
    its address, as alignment is part of the key.
    """
    key, values, on_cpu = [], [], vendor == "none"
    for parameter in kernel.params:
        name, is_free = parameter.name, parameter.name not in fixed
        if parameter.is_constexpr:
            key += [name, f"{name}.__class__"] if is_free else []
        elif parameter.do_not_specialize:
            key += [] if parameter.annotation_type or not is_free else [f"-2147483648 <= {name} < 2147483648"]
            values.append(name)
        else:
            contiguous = "True" if name in kernel.strided else f"{name}.is_contiguous()"
            key.append(f"None if {name} is None else {name}.dtype if {contiguous} else {name}")
            if not on_cpu:
                address = f"{name}_" if is_free else f"{name}.data_ptr()"
                key.append(f"{name} is not None and not {address} % 16")
            if vendor == "amd":
                key.append(f"{name} is not None and {name}.untyped_storage().nbytes() <= {SMALL_STORAGE}")
            given = f"b'' if {name} is None else {name}.data_ptr()"
            values.append(given if on_cpu or not is_free else f"{name}_")
    return key + [name for name in OPTIONS if not on_cpu and name not in fixed], values


def _fixed_key(kernel: Any, fixed: tuple[str, ...]) -> list[str]:
    """The expressions of what the keys of launches with fixed arguments have in common."""
    numbers = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    return [
        f"-2147483648 <= {name} < 2147483648" if name in numbers else f"({name}, {name}.__class__)" for name in fixed
    ]
