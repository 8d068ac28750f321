"""Runs Triton kernels on the CPU, as machine code with vector instructions. No GPU, driver or compiler is needed.

    from tsplat.triton_cpu import launch

    launch(kernel, (n_programs,), (x, y, n), {"BLOCK": 128})  # what kernel[(n_programs,)](x, y, n, BLOCK=128) does

`prepare` does all but the launch, once for arguments of a kind; `tsplat.kernels.prepare` calls it.

The path of a kernel, by module:

    launcher    arguments to a specialization: types, and values of constants
    frontend    Triton's own frontend: Python to TTIR, Triton's IR
    ttir        text of TTIR to operations, blocks and regions
    emitter     walks the operations; `emit_*` has the translation of each, by family
    values      values as LLVM vectors: a tensor is a list of chunks of 8 or 16 lanes, in row-major order
    code        text of LLVM IR: instructions, each written once, and constants
    translate   the module around a kernel: its entry point, which runs programs of the grid
    target      the CPU to compile for
    machine     LLVM IR to machine code by llvmlite, and loading it
    cache       machine code on disk
    room        address space that is left
    threads     programs of the grid on several threads
    trial       a kernel that is compiled to find out whether kernels can be

The semantics are Triton's. Each operation is rounded once, as IEEE 754 says, without contraction; reductions combine
halves, and matrix products run in order of the inner dimension. Results therefore do not depend on the number of
threads or the features of the CPU. An operation that is not implemented is an `UnsupportedOperationError`.

The only extern function that is implemented is `prefetch`: it takes a 64-bit address, prefetches its cache line, and
returns 0.
"""

from .cache import problem as cache_problem
from .errors import (
    MissingDependencyError,
    TritonCPUError,
    TritonCPUMemoryError,
    UnsupportedMachineError,
    UnsupportedOperationError,
)
from .launcher import flat_arguments, launch, prepare, untraced
from .target import check_machine, target_name
from .threads import get_num_threads, set_num_threads, start_thread
from .trial import check_compiler

__all__ = [
    "MissingDependencyError",
    "TritonCPUError",
    "TritonCPUMemoryError",
    "UnsupportedMachineError",
    "UnsupportedOperationError",
    "cache_problem",
    "check_compiler",
    "check_machine",
    "flat_arguments",
    "get_num_threads",
    "launch",
    "prepare",
    "set_num_threads",
    "start_thread",
    "target_name",
    "untraced",
]
