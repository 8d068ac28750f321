"""Runs Triton kernels on a GPU through its driver's library, by ctypes. No C compiler or Python header is needed.

    from tsplat import gpu_driver

    kernel = gpu_driver.prepare(kernel, gpu_driver.find(0), arguments)  # what kernel[(n,)](**arguments) compiles
    kernel(n_programs, values)  # launches it on the current stream

Triton compiles, with its own specialization, cache and keys; but what it launches by is C that it compiles on the
user's machine. Here, a kernel is loaded and launched by libcuda or libamdhip64, which come with the GPU's driver.

The path of a kernel, by module:

    compiler    arguments to a specialization, which Triton compiles for a target
    kernels     a loaded kernel: how its arguments lie in memory, scratch memory, hooks of profilers, launches
    gpus        the target, the driver and the current stream of a GPU
    cuda, hip   loading and launching by libcuda, and by libamdhip64
    needs       what a launch needs, from Triton's metadata: threads, shared memory, clusters, ...
    library     a driver's shared library: functions, and errors in words

It is tested by a library of the emulator with the same functions.
"""

from .compiler import prepare
from .gpus import Device, find, version
from .kernels import LoadedKernel, are_launches_hooked
from .library import DriverError

__all__ = ["Device", "DriverError", "LoadedKernel", "are_launches_hooked", "find", "prepare", "version"]
