"""Checks that enough address space is left, if the process has a limit.

LLVM, OpenMP and the C library end a process that runs out of address space. A Python thread that starts without enough
of it never reports that it runs. So the memory is checked first.
"""

import mmap
import sys

from .errors import TritonCPUMemoryError

LOAD, COMPILE = 8 << 20, 64 << 20
"""Bytes that must be available to load machine code, and to compile a kernel, which takes up to about 40 MB."""

THREAD = 24 << 20
"""Bytes that must be available to start a thread: its stack, by default 8 MB, and its share of the heap."""


def is_available(n_bytes: int) -> bool:
    """Returns whether a number of bytes can be mapped. The memory is not touched."""
    options = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        mmap.mmap(-1, n_bytes, **options).close()
    except (OSError, MemoryError):
        return False
    return True


def check_available(n_bytes: int, name: str) -> None:
    """Raises TritonCPUMemoryError if a number of bytes cannot be mapped, for a kernel with this name."""
    if not is_available(n_bytes):
        raise TritonCPUMemoryError(
            f"kernel {name}: compiling or loading it requires {n_bytes >> 20} MB of address space, and the process has"
            " less left; raise its limit (ulimit -v)"
        )


def is_limited() -> bool:
    """Returns whether the address space of this process has a limit."""
    if sys.platform == "win32":
        return False
    import resource

    return any(
        resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )
