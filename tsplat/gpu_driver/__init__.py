"""Loads and launches Triton kernels through the library of the GPU driver, by ctypes.

    from tsplat import gpu_driver

    kernel = gpu_driver.prepare(kernel, gpu_driver.find(0), arguments)  # compiles what kernel[(n,)](**arguments) does
    kernel(n_programs, values)  # launches it on the current stream

Triton compiles the kernels, with its own specialization, cache and keys. Triton's launcher, however, is C code that is
compiled on the user's machine, which requires a C compiler and the headers of Python. This package calls libcuda or
libamdhip64 instead, which come with the driver.

Modules, in the order in which a kernel passes through them:

    compiler    specializes a kernel for its arguments; Triton compiles it for a target
    kernels     a loaded kernel: packing of arguments, scratch memory, profiler hooks, launches
    gpus        the target, the driver and the current stream of a GPU
    cuda, hip   loading and launching by libcuda and libamdhip64
    metadata    launch metadata from Triton: threads, shared memory, clusters, ...
    library     the shared library of a driver: functions and error messages

The tests use a library of the emulator with the same functions.
"""

from .compiler import prepare
from .gpus import Device, find, version
from .kernels import LoadedKernel, are_launches_hooked
from .library import DriverError

__all__ = ["Device", "DriverError", "LoadedKernel", "are_launches_hooked", "find", "prepare", "version"]
