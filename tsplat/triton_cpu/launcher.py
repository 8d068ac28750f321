"""Launches kernels: specializes them for their arguments, compiles each specialization once, and runs it on threads."""

import ctypes
import functools
import hashlib
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import torch
import triton
from torch import Tensor
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.jit import JITFunction

from . import address_space, cache, machine, threads
from .errors import TritonCPUError, UnsupportedOperationError
from .frontend import make_ttir
from .target import host_target
from .translate import translate

Parameters = ParamSpec("Parameters")
Constants = dict[tuple[int, ...], Any]
"""Constants by path: the index of the parameter, followed by the indices of fields of tuples."""
Grid = Sequence[int] | Callable[[dict[str, Any]], Sequence[int]]

POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
SCALARS = {"i1": "?7x", "i8": "q", "i16": "q", "i32": "q", "u8": "q", "u16": "q", "u32": "q", "i64": "q", "u64": "Q"}
SCALARS |= {"fp32": "f4x", "f32": "f4x", "fp64": "d", "f64": "d"}
"""``struct`` formats that pack scalars into words of 8 bytes, by their type in a signature."""

OPTIONS = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "waves_per_eu", "matrix_instr_nonkdim",
     "kpack", "debug", "launch_cooperative_grid", "schedule_hint"}
)  # fmt: skip
"""Triton's options for GPUs. They are ignored."""

HELPER_SECONDS = 50e-6
"""Run time of programs for which it pays to wake up one more thread."""


class CompiledKernel:
    """Machine code for one specialization of a kernel."""

    def __init__(self, entry: machine.EntryPoint, formats: Sequence[str]) -> None:
        self._entry = entry
        self._formats = tuple(formats)
        self._pack = struct.Struct("".join(("<", threads.HEADER, *formats)))
        self._state_type = ctypes.c_int64 * (self._pack.size // 8)
        self._seconds = 1.0  # per program, in the last launch on several threads

    def __call__(self, n_programs: int, values: Sequence[Any], others: tuple[int, int] = (1, 1)) -> None:
        """Runs the programs of a grid, and returns when they are done.

        Args:
            n_programs: Number of programs along the first axis of the grid.
            values: The arguments that are not constants: addresses of tensors, b"" for None, and numbers.
            others: Number of programs along the second and the third axis.
        """
        y, z = others
        total = n_programs * y * z
        if total > 0:
            state = self._state_type()
            arguments = ctypes.addressof(state) + threads.HEADER_BYTES
            grid = n_programs, y, z
            self._pack.pack_into(state, 0, 0, 0, total, _claim(total), threads.TICKS, *grid, 0, arguments, *values)
            self.run(state)

    def run(self, state: Any) -> bool:
        """Runs the programs of a launch, given its state. Returns when they are done, whether other threads may still
        read the state later."""
        available = threads.get_num_threads()
        if available == 1:
            return threads.run(self._entry, state, 1)
        total = state[threads.TOTAL]
        n_threads = min(available, 1 + int(total * self._seconds / HELPER_SECONDS), total)
        state[threads.CLAIM] = _claim(total, n_threads)
        start = time.perf_counter()
        is_read = threads.run(self._entry, state, n_threads)
        self._seconds = (time.perf_counter() - start) * n_threads / total
        return is_read

    def template(
        self, n_programs: int, values: Sequence[Any]
    ) -> tuple[bytes, list[int | None], dict[int, int], list[int]]:
        """Returns the initial memory of a launch, for :meth:`bind`. Positions are in words of 8 bytes.

        Returns:
            The memory; the word of each value, None for b""; the words that must be set to addresses in this memory,
            with their offsets from its start in bytes; and the words for the stream: none.
        """
        words, word = [], threads.HEADER_BYTES // 8
        for code in self._formats:
            words.append(None if code == "0s" else word)
            word += code != "0s"
        claim, grid = _claim(n_programs), (n_programs, 1, 1)
        state = self._pack.pack(0, 0, n_programs, claim, threads.TICKS, *grid, 0, 0, *values)
        return state, words, {threads.ADDRESS: threads.HEADER_BYTES}, []

    def bind(self, _n_programs: int, memory: Any, begin: int) -> tuple[Callable[[], bool], Callable[[bool], bool]]:
        """Binds launches of the kernel to memory from :meth:`template`, in a ctypes array from byte ``begin`` on.

        Returns:
            A function that launches and returns whether other threads may still read the memory later; and a function
            to call with this result if it is True, which returns the same.
        """
        entry, state, run = self._entry, self._state_type.from_buffer(memory, begin), self.run
        total, done = threads.TOTAL, threads.DONE

        def launch() -> bool:
            if threads.get_num_threads() > 1:
                return run(state)
            entry(state)
            while state[done] < state[total]:
                entry(state)
            return False

        return launch, bool


def _claim(total: int, n_threads: int = 1) -> int:
    """Returns the maximum number of programs that a thread claims at a time."""
    return 1 if total < 32 * n_threads else min(total // (16 * n_threads), 64)


class Launcher:
    """A kernel and its compiled specializations."""

    def __init__(self, kernel: JITFunction[Any]) -> None:
        if not isinstance(kernel, JITFunction):
            raise TypeError(
                f"expected a function decorated with triton.jit, found {type(kernel).__name__}"
                " (with TRITON_INTERPRET=1, Triton's interpreter runs kernels instead)"
            )
        self.kernel = kernel
        self.names: list[str] = list(kernel.arg_names)
        self.constants = [parameter.is_constexpr for parameter in kernel.params]
        self.annotations = [parameter.annotation_type or None for parameter in kernel.params]
        self.defaults = {
            name: parameter.default for name, parameter in kernel.signature.parameters.items()
            if parameter.default is not parameter.empty
        }  # fmt: skip
        self.compiled: dict[tuple[Any, ...], CompiledKernel] = {}

    def launch(self, grid: Grid, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        values = self.bind(args, kwargs)
        kernel, packed = self.specialize(values)
        if self.kernel.used_global_vals:
            self.check_globals()
        if callable(grid):
            grid = grid(dict(zip(self.names, values)))
        x, y, z = (*grid, 1, 1)[:3]
        kernel(x, packed, (y, z))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the values of all parameters, in order."""
        if len(args) == len(self.names) and not kwargs:
            return list(args)
        values = dict(self.defaults)
        values.update(zip(self.names, args))
        if len(args) > len(self.names):
            raise TypeError(f"{self.kernel.__name__}: {len(args)} arguments for {len(self.names)} parameters")
        for name, value in kwargs.items():
            if name not in self.names:
                if name in OPTIONS:
                    continue
                raise TypeError(f"{self.kernel.__name__}: no parameter or option {name!r}")
            values[name] = value
        try:
            return [values[name] for name in self.names]
        except KeyError as error:
            raise TypeError(f"{self.kernel.__name__}: no value for parameter {error.args[0]!r}") from None

    def specialize(self, values: list[Any]) -> tuple[CompiledKernel, list[Any]]:
        """Returns the compiled kernel for the types and constants, and the arguments that are not constants."""
        key: list[Any] = [os.environ.get("TSPLAT_CPU")]
        packed: list[Any] = []
        for value, constant, annotation in zip(values, self.constants, self.annotations):
            if constant:
                key.append(value if value is None or type(value) is int else _constant_key(value))
            else:
                self._add(value, annotation, key, packed)
        kernel = self.compiled.get(tuple(key))
        return kernel if kernel is not None else self.compile(tuple(key), values), packed

    def _add(self, value: Any, annotation: str | None, key: list[Any], packed: list[Any]) -> None:
        """Appends the type of an argument to ``key``, and its value to ``packed``. Tuples are flattened."""
        if isinstance(value, tuple):
            key.append(type(value))
            for field in value:
                self._add(field, annotation, key, packed)
        elif isinstance(value, Tensor):
            if value.device.type != "cpu":
                raise TypeError(
                    f"{self.kernel.__name__}: expected tensors on the CPU, found a tensor on {value.device}"
                )
            pointer = value.data_ptr()
            if not pointer and value.numel():
                raise TypeError(f"{self.kernel.__name__}: a tensor {list(value.shape)} has no memory")
            key.append(value.dtype)
            packed.append(pointer)
        else:
            key.append(None if value is None else annotation or _scalar_type(value, self.kernel.__name__))
            packed.append(b"" if value is None else value)

    def signature(self, values: list[Any]) -> tuple[dict[str, Any], Constants]:
        """Returns Triton's signature of a specialization, with tuples of types for tuples, and its constants."""
        types: dict[str, Any] = {}
        constants: Constants = {}
        for i, (name, value, constant, annotation) in enumerate(
            zip(self.names, values, self.constants, self.annotations)
        ):
            if constant:
                types[name], constants[(i,)] = "constexpr", value
            else:
                types[name] = self._type(name, value, annotation, (i,), constants)
        return types, constants

    def _type(
        self,
        name: str,
        value: Any,
        annotation: str | None,
        path: tuple[int, ...],
        constants: dict[tuple[int, ...], Any],
    ) -> Any:
        if isinstance(value, tuple):
            types = [self._type(name, field, annotation, (*path, i), constants) for i, field in enumerate(value)]
            return tuple.__new__(type(value), types)
        if value is None:
            constants[path] = None
            return "constexpr"
        if isinstance(value, Tensor):
            if value.dtype not in POINTERS:
                raise TypeError(f"{self.kernel.__name__}: {name}: tensors of {value.dtype} are not supported")
            return POINTERS[value.dtype]
        return annotation or _scalar_type(value, self.kernel.__name__)

    def compile(self, key: tuple[Any, ...], values: list[Any]) -> CompiledKernel:
        """Loads machine code from the cache on disk, or compiles and stores it."""
        with machine.lock:
            if key in self.compiled:
                return self.compiled[key]
            address_space.check_available(address_space.LOAD, self.kernel.__name__)
            types, constants = self.signature(values)
            code, symbol = object_code(self.kernel, types, constants)
            formats = [
                "0s" if leaf == "constexpr" else SCALARS.get(leaf, "Q")
                for argument_type, constant in zip(types.values(), self.constants) if not constant
                for leaf in flat_arguments(argument_type)
            ]  # fmt: skip
            kernel = CompiledKernel(machine.load(code, symbol, host_target()), formats)
            self.compiled[key] = kernel
            return kernel

    def check_globals(self) -> None:
        """Raises if a global that was compiled into the kernel has changed, as Triton does."""
        for (name, _), (value, scope) in self.kernel.used_global_vals.items():
            if scope.get(name, value) is not value and scope.get(name) != value:
                raise TritonCPUError(
                    f"{self.kernel.__name__}: global {name} was {value} when the kernel was compiled, and is"
                    f" {scope.get(name)} now"
                )


def object_code(kernel: JITFunction[Any], signature: Mapping[str, Any], constants: Constants) -> tuple[bytes, str]:
    """Returns the object file of a specialization, and the name of its entry point."""
    target = host_target()
    values = sorted((path, _constant_key(value)) for path, value in constants.items())
    versions = triton.__version__, machine.version(), machine.triple(), cache.package_hash()
    parts = (kernel.cache_key, sorted(signature.items()), values, *versions, target)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:40]
    name = kernel.__name__
    symbol = f"{name}_{key}"
    code = cache.load(name, key)
    if code is None:
        with cache.compiling(name, key):
            code = cache.load(name, key)
            if code is None:
                address_space.check_available(address_space.COMPILE, name)
                code = machine.compile_object(llvm_ir(kernel, signature, constants, symbol), target)
                cache.store(name, key, code)
    return code, symbol


def llvm_ir(kernel: JITFunction[Any], signature: Mapping[str, Any], constants: Constants, symbol: str) -> str:
    """Returns the LLVM IR of a specialization."""
    name = kernel.__name__
    try:
        ttir = make_ttir(kernel, signature, constants)
    except CompileTimeAssertionFailure:  # tl.static_assert: the kernel rejects its arguments
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UnsupportedOperationError("(frontend)", name, triton.__version__, reason) from error
    return translate(ttir, symbol, name, triton.__version__, machine.triple(), host_target())


def flat_arguments(argument: Any) -> list[Any]:
    """Flattens an argument or its type: a list of the leaves of nested tuples."""
    return [leaf for field in argument for leaf in flat_arguments(field)] if isinstance(argument, tuple) else [argument]


def _constant_key(value: Any) -> tuple[str, str]:
    """Returns a key that differs for constants that compare equal, such as 1, 1.0 and True, or 0.0 and -0.0."""
    return type(value).__name__, getattr(value, "cache_key", None) or repr(value)


def _scalar_type(value: Any, kernel: str) -> str:
    """Returns Triton's type of a scalar argument."""
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return "i32"
        if -(2**63) <= value < 2**63:
            return "i64"
        return "u64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"{kernel}: arguments of type {type(value).__name__} are not supported")


_launchers: dict[int, Launcher] = {}
"""Launchers by the id of the kernel."""


def untraced(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Excludes a function from `torch.compile`, without importing `torch._dynamo`: the import takes seconds."""

    @functools.cache
    def disabled() -> Callable[Parameters, None]:
        untraced_function: Callable[Parameters, None] = torch._dynamo.disable(function)  # type: ignore[no-untyped-call]
        return untraced_function

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        (disabled() if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return run


@untraced
def launch(
    kernel: JITFunction[Any], grid: Grid, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> None:
    """Runs a kernel on CPU tensors, and returns when it is done.

    Args:
        kernel: A function decorated with `triton.jit`.
        grid: Number of programs along up to three axes, or a function that computes it from the arguments.
        args, kwargs: The arguments of the kernel, as in `kernel[grid](*args, **kwargs)`. Options for GPUs, such as
            `num_warps`, are ignored. Kernels are not specialized on the values of integers.

    Raises:
        UnsupportedOperationError: The kernel uses an operation that is not implemented, or Triton's frontend fails.
        MissingDependencyError: llvmlite is not installed, or cannot be loaded.
        TritonCPUMemoryError: The limit of the address space of the process is too low.
        UnsupportedMachineError: The CPU is not supported.
        TypeError: An argument is missing, or its type is not supported.
    """
    _launcher(kernel).launch(grid, args, kwargs or {})


def prepare(kernel: JITFunction[Any], kwargs: Mapping[str, Any]) -> CompiledKernel:
    """Compiles a kernel for the types and constants of these arguments. Raises the same errors as :func:`launch`."""
    launcher = _launcher(kernel)
    return launcher.specialize(launcher.bind((), kwargs))[0]


def _launcher(kernel: JITFunction[Any]) -> Launcher:
    launcher = _launchers.get(id(kernel))
    if launcher is None:
        launcher = _launchers[id(kernel)] = Launcher(kernel)
    return launcher
