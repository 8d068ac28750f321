"""The sessions of a run, recorded in ``run.json``: command line, machine, versions and seconds per part."""

import contextlib
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...support.extras import installed_version
from ...support.files import write_json
from ...support.reading import read_json
from ...viewing.run_files import SESSIONS


class RunSession:
    """Measures the time of the parts of a run in this process, and records it with the command line and the machine.

    A resumed run has several sessions, one per process. The time of a nested part is not counted for the outer part.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._open: list[str] = []
        self._since = 0.0
        self._earlier: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Adds the duration of the block to a part, and pauses the enclosing part."""
        self._count()
        self._open.append(part)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def keep_earlier(self, folder: Path) -> None:
        """Reads the sessions that a run has already recorded, to which this one is appended."""
        self._earlier = read_sessions(folder)

    def sessions(self, device: torch.device, ranks: int = 1) -> list[dict[str, Any]]:
        """Returns all sessions, as JSON values."""
        self._count()
        current = {
            "command": _command_line(),
            "started": self._started,
            "machine": _describe_machine(device, ranks),
            "software": _versions(),
            "seconds": {part: round(seconds, 3) for part, seconds in self.seconds.items()},
        }
        return [*self._earlier, current]

    def write(self, folder: Path, device: torch.device, ranks: int = 1) -> list[dict[str, Any]]:
        """Writes all sessions to ``run.json`` and returns them."""
        sessions = self.sessions(device, ranks)
        write_json(folder / SESSIONS, {"sessions": sessions})
        return sessions

    def _count(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Reads the sessions of a run; empty if the file is missing or damaged."""
    try:
        sessions = read_json(folder / SESSIONS)["sessions"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []


def _command_line() -> str:
    """Returns the command line of this process, quoted for a shell."""
    program, *arguments = sys.argv or [""]
    is_tsplat = Path(program).name in ("tsplat", "__main__.py")
    return shlex.join(["tsplat", *arguments] if is_tsplat else [*sys.orig_argv])


def _describe_machine(device: torch.device, ranks: int) -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "ranks": ranks,
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str | None]:
    versions = {"tsplat": __version__, "torch": torch.__version__, "triton": installed_version("triton")}
    return {**versions, "python": platform.python_version()}
