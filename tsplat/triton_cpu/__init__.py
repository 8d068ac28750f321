"""Compiles Triton kernels for the CPU, to machine code with vector instructions, and runs them.

    from tsplat.triton_cpu import launch

    launch(kernel, (n_programs,), (x, y, n), {"BLOCK": 128})  # like kernel[(n_programs,)](x, y, n, BLOCK=128)

No GPU, driver or C compiler is required. `prepare` compiles without launching; `tsplat.kernels.prepare` calls it.

Modules, in the order in which a kernel passes through them:

    launcher        specializes a kernel for the types of its arguments and the values of its constants
    frontend        Triton's frontend: from Python to TTIR, Triton's IR
    ttir            parses the text of TTIR to operations, blocks and regions
    emitter         walks the operations; the `emit_*` modules translate them to LLVM IR
    values          values as LLVM vectors: a tensor is a list of chunks of 8 or 16 lanes, in row-major order
    code            writes LLVM IR text: instructions (each pure one once) and constants
    translate       the LLVM module of a kernel, with the entry point that runs programs of the grid
    target          the CPU to compile for
    machine         compiles LLVM IR to machine code by llvmlite, and loads it
    cache           machine code on disk
    address_space   checks that enough address space is left
    threads         runs the programs of a grid on several threads
    trial           a test kernel that shows whether kernels can be compiled

The semantics are Triton's. Each operation is rounded once, according to IEEE 754, without contraction. Reductions
combine halves, and matrix products run in the order of the inner dimension. Results therefore do not depend on the
number of threads or the features of the CPU. Operations that are not implemented raise `UnsupportedOperationError`.

The only extern function is `prefetch`: it takes a 64-bit address, prefetches its cache line, and returns 0.
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
