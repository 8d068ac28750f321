"""Address space that is left, where the process may only use so much of it.

LLVM, OpenMP and the C library end a process that has too little, and a thread of Python that starts with too little
never reports that it did. So what needs much is asked for first.
"""

import mmap
import sys

from .errors import TritonCPUMemoryError

LOAD, COMPILE = 8 << 20, 64 << 20
"""Bytes to have free before machine code is loaded, and before a kernel is compiled, which takes up to about 40 MB."""

THREAD = 24 << 20
"""Bytes to have free before a thread starts: its stack, by default 8 MB, and its share of the heap."""


def has_room(n_bytes: int) -> bool:
    """Returns whether so much memory can be mapped. It is not touched."""
    options = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        mmap.mmap(-1, n_bytes, **options).close()
    except (OSError, MemoryError):
        return False
    return True


def check_room(n_bytes: int, name: str) -> None:
    """Raises TritonCPUMemoryError unless so much memory can be mapped for a kernel of this name."""
    if not has_room(n_bytes):
        raise TritonCPUMemoryError(
            f"kernel {name}: {n_bytes >> 20} MB of address space are needed to compile or load it, and the process has"
            " less left; raise its limit (ulimit -v)"
        )


def is_limited() -> bool:
    """Returns whether the address space of this process has a limit."""
    if sys.platform == "win32":
        return False
    import resource

    return any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    )
