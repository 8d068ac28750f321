"""Memory that this process can allocate: free memory, and limits of containers and processes."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

CGROUP_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""For each type of control group: the files with a group's limit and usage, and the entry of ``memory.stat`` for cached
files, which count as used but can be reclaimed."""


LIMIT: ContextVar[int | None] = ContextVar("LIMIT", default=None)
"""Limit in bytes that the user gave, or None."""


@contextlib.contextmanager
def limit_memory(n_bytes: int | None) -> Iterator[None]:
    """Context manager that limits the result of :func:`available_bytes`; None for no limit."""
    token = LIMIT.set(n_bytes)
    try:
        yield
    finally:
        LIMIT.reset(token)


def trim_heap() -> None:
    """Returns free memory within the heap of the C library to the system. Only glibc can do so."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # Windows has no C library under this name
        ctypes.CDLL(None).malloc_trim(0)


def limits_addresses() -> bool:
    """Returns whether memory that is allocated, but never written, counts towards a limit of this process or system."""
    with contextlib.suppress(ImportError):
        import resource

        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            if resource.getrlimit(kind)[0] != resource.RLIM_INFINITY:
                return True
    with contextlib.suppress(OSError):
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    return True


def available_bytes(root: str | os.PathLike[str] = "/") -> int | None:
    """Returns the bytes that this process can allocate without swapping; None if the system does not report it.

    This is the minimum of the machine's free memory; the remaining memory of the process's control groups (version 1 or
    2), as containers and Slurm set them; its remaining address space and data; and the limit of :func:`limit_memory`.

    Args:
        root: Folder in which ``proc`` and the mount points are looked up.
    """
    root = Path(root)
    machine = _entries(root / "proc/meminfo", "MemAvailable:")
    limits = [*machine, *_control_groups(root), *_process_limits(root)]
    given = LIMIT.get()
    limits += [] if given is None else [given]
    return max(0, min(limits)) if limits else None


def _entries(path: Path, name: str) -> Iterator[int]:
    """Yields, in bytes, the values that a file of ``/proc`` lists in kB under a name."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                yield 1024 * int(line.split()[1])


def _control_groups(root: Path) -> Iterator[int]:
    """Yields the remaining memory of the process's control groups and of the groups around them."""
    for folder, kind in _groups(root):
        limit_name, used_name, cached_name = CGROUP_FILES[kind]
        # The root of version 2 has no files, and a group without a limit has "max".
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text())
            used = int((folder / used_name).read_text())
            stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
            yield limit - max(used - int(stat.get(cached_name, 0)), 0)


def _groups(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields the folder and the type of each control group that limits the process's memory, from inside out."""
    with contextlib.suppress(OSError, ValueError):
        own = {}
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                own["cgroup" if controllers else "cgroup2"] = path
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            before, after = line.split(" - ", 1)
            kind, _, options = after.split(" ", 2)
            if kind not in own or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            top, mount = before.split(" ")[3:5]
            mounted = root / mount.lstrip("/")
            inner = os.path.relpath(own[kind], top)
            # In a container, the name of the group may be relative to a folder that is not mounted.
            folder = mounted / inner if not inner.startswith("..") else mounted
            folder = folder if folder.is_dir() else mounted
            while True:
                yield folder, kind
                if folder == mounted:
                    break
                folder = folder.parent


def _process_limits(root: Path) -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    for limit, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield from (soft - used for used in _entries(root / "proc/self/status", name))
