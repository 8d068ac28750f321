"""Memory that can be allocated: the machine's, and less where a container or the process has a limit of its own."""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

CGROUP_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Type of a file system -> the files with the limit and the use of a group, and the entry of ``memory.stat`` with the
cached files, which count as used but are given up."""


LIMIT: ContextVar[int | None] = ContextVar("LIMIT", default=None)
"""Bytes that work may take, if a user gave a limit."""


@contextlib.contextmanager
def limit_memory(n_bytes: int | None) -> Iterator[None]:
    """Lets :func:`available_bytes` return no more than a limit; None for none."""
    token = LIMIT.set(n_bytes)
    try:
        yield
    finally:
        LIMIT.reset(token)


def available_bytes(root: str | os.PathLike[str] = "/") -> int | None:
    """Returns the bytes that this process can allocate without swapping; None if the system does not report it.

    That is the least of what the machine has free, what the process's control groups leave (those of containers and
    of Slurm, in versions 1 and 2), what its limits of address space and data leave, and that of :func:`limit_memory`.

    Args:
        root: Folder in which ``proc`` and the mount points are looked up.
    """
    limits = [*_machine(Path(root)), *_control_groups(Path(root)), *_process_limits(Path(root))]
    given = LIMIT.get()
    limits += [] if given is None else [given]
    return max(0, min(limits)) if limits else None


def _machine(root: Path) -> Iterator[int]:
    yield from _entries(root / "proc/meminfo", "MemAvailable:")


def _entries(path: Path, name: str) -> Iterator[int]:
    """Yields in bytes the values that a file of ``/proc`` lists in kB under a name."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                yield 1024 * int(line.split()[1])


def _control_groups(root: Path) -> Iterator[int]:
    """Yields what is left in the process's groups and in those around them."""
    for folder, kind in _groups(root):
        limit_name, used_name, cached_name = CGROUP_FILES[kind]
        with contextlib.suppress(
            OSError, ValueError
        ):  # no file at the root of version 2; "max" where there is no limit
            limit = int((folder / limit_name).read_text())
            used = int((folder / used_name).read_text())
            stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
            yield limit - max(used - int(stat.get(cached_name, 0)), 0)


def _groups(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields the folder and the type of the process's groups that limit memory, each with those around it."""
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
            # In a container, the group may be named from outside of what is mounted.
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
