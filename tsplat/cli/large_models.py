"""Support of commands for models that are larger than memory, which are read in parts."""

import contextlib
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, Self

from torch import Tensor

from .. import ArgumentError
from ..scene import FileError, Gaussians, merge_models
from ..scene.editing.levels import decimate_rows
from ..scene.formats.ply import open_ply_rows
from ..scene.gaussians import concatenate
from ..scene.model_rows import MemoryRows, PassProgress, Rows, gather
from ..scene.quantization import valid_bounds
from ..scene.rotation import transform_gaussians
from ..support.free_memory import available_bytes
from ..support.progress import stage_display

Task = Literal["info", "ply", "spz", "spz4", "sog", "streamed-sog", "decimate", "render", "view"]

IN_MEMORY: dict[str, int] = {"decimate": 2500, "render": 1200, "view": 1200}
"""Bytes of memory per Gaussian of a model in memory, for tasks that need more than :data:`IN_MEMORY_MIN`."""
IN_MEMORY_MIN = 800
LIBRARIES = 250 << 20
"""Bytes of memory without a model."""

LARGE_FILE = 1 << 26
"""Minimum size in bytes of a PLY for which the viewer shows the progress of reading."""

PASS_SECONDS = 10.0
"""Seconds after which the progress of a pass over all rows is printed, without a terminal."""

FRAMING = 1 << 17
"""Number of Gaussians that are sampled from a model larger than memory, to place cameras."""

MEMORY: dict[Task, tuple[int, int]] = {
    "info": (400 << 20, 24),
    "ply": (450 << 20, 1),
    "spz": (600 << 20, 10),
    "spz4": (600 << 20, 10),
    "sog": (800 << 20, 35),
    "streamed-sog": (1000 << 20, 40),
    "decimate": (650 << 20, 25),
    "render": (1150 << 20, 30),
    "view": (650 << 20, 25),
}
"""Bytes of memory of a task that reads a model in parts: a constant, and bytes per Gaussian. They are measured by
``benchmarks/out_of_core.py``."""


def open_large(arguments: Namespace, task: Task, path: Path | None = None) -> Rows | None:
    """Opens the model of a command as rows, if it does not fit into memory and can be read in parts; else returns None.

    The memory is ``--memory`` or, without it, the free memory. Prints on stderr how much is needed.

    Raises:
        FileError: Reading the model in parts needs more memory, too; or as :func:`tsplat.scene.read_ply`.
    """
    path = arguments.model if path is None else path
    limit = _limit(arguments)
    if limit is None or not path.is_file() or path.suffix.lower() != ".ply":
        return None
    # A quick bound of the number of Gaussians: each has at least 11 floats.
    if LIBRARIES + path.stat().st_size / 44 * max(IN_MEMORY.values()) <= limit:
        return None
    rows = open_ply_rows(path, warn=warn_user)
    if rows is None:
        return None
    if LIBRARIES + IN_MEMORY.get(task, IN_MEMORY_MIN) * len(rows) <= limit:
        rows.close()
        return None
    try:
        _check_memory(path, rows, task, limit)
    except BaseException:
        rows.close()
        raise
    return rows


def warn_user(message: str) -> None:
    print(f"tsplat: {message}", file=sys.stderr)


def read_to_view(arguments: Namespace, path: Path) -> Gaussians | None:
    """Reads a large PLY for the viewer, and displays the progress; returns None for other models.

    A model that does not fit into memory is decimated until it fits. Raises as :func:`open_large`.
    """
    rows = open_large(arguments, "view", path)
    if rows is None:
        return _read_with_progress(path)
    limit = _limit(arguments)
    assert limit is not None
    with LargeEdit(rows, Path(tempfile.gettempdir())) as edited, show_passes(rows):
        edited.decimate(max(1, (limit - MEMORY["view"][0]) // IN_MEMORY["view"]), "view")
        return edited.rows.read(0, len(edited.rows))


def _read_with_progress(path: Path) -> Gaussians | None:
    """Reads a binary PLY of at least :data:`LARGE_FILE` bytes; returns None for other models."""
    if not path.is_file() or path.suffix.lower() != ".ply" or path.stat().st_size < LARGE_FILE:
        return None
    rows = open_ply_rows(path, warn=warn_user)
    if rows is None:
        return None
    with rows, stage_display() as show:
        parts = []
        for start, stop in rows.ranges():
            parts.append(rows.read(start, stop))
            show(f"reading {path.name}", stop, len(rows))
    return concatenate(parts)


def describe_memory(path: str | os.PathLike[str], gaussians: Gaussians) -> str:
    """Returns a message with the number of Gaussians of a model in memory, and the memory that the viewer may need."""
    size = sum(tensor.nbytes for tensor in gaussians.tensors().values())
    return (
        f"{path}: {len(gaussians):,} Gaussians of SH degree {gaussians.sh_degree}, {size / 1e9:.2f} GB in memory; up "
        f"to {(LIBRARIES + IN_MEMORY['view'] * len(gaussians)) / 1e9:.1f} GB while images are rendered"
    )


@contextlib.contextmanager
def show_passes(rows: Rows) -> Iterator[None]:
    """Context manager that displays the progress of long passes over rows, unless they are in memory."""
    if isinstance(rows, MemoryRows):
        yield
        return
    with stage_display(PASS_SECONDS) as show:
        rows.passes = PassProgress(show)
        yield


def _limit(arguments: Namespace) -> int | None:
    """Returns the bytes of memory that a command may use; None if it is unknown."""
    return available_bytes() if arguments.memory is None else int(arguments.memory * 1e9)


def _check_memory(path: Path, rows: Rows, task: Task, limit: int) -> None:
    """Prints on stderr how much memory a task needs; raises FileError if that is more than `limit`."""
    in_all, per_gaussian = MEMORY[task]
    memory = in_all + per_gaussian * len(rows)
    if memory > limit:
        raise FileError(
            f"{path}: {len(rows):,} Gaussians need about {memory / 1e9:.1f} GB of memory even if they are read part by "
            f"part, but only {limit / 1e9:.1f} GB may be used; allow more with --memory, or split the model with "
            "tsplat edit --crop"
        )
    print(
        f"{path}: {len(rows):,} Gaussians, {path.stat().st_size / 1e9:.2f} GB, are read part by part: about "
        f"{memory / 1e9:.1f} GB of memory",
        file=sys.stderr,
        flush=True,
    )


class LargeEdit:
    """A model larger than memory that is edited. As a context manager, it closes its files.

    Operations on single Gaussians are collected, and applied together when the result is needed.

    Attributes:
        rows: The rows before the collected operations.
    """

    def __init__(self, rows: Rows, folder: Path) -> None:
        self.rows = rows
        self._folder = folder
        self._pending: list[tuple[str, Callable[[Gaussians], Gaussians]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.rows.close()

    def add(self, option: str, function: Callable[[Gaussians], Gaussians]) -> None:
        """Adds an operation on single Gaussians."""
        if option == "--max-isolation":
            raise ArgumentError(f"{option}: not for a model larger than memory; crop or decimate it first")
        self._pending.append((option, function))

    def move(self, option: str, matrix: Tensor) -> None:
        """Adds a transform by a matrix [4, 4]."""
        self.add(option, lambda gaussians: transform_gaussians(gaussians, matrix))

    def finish(self) -> Rows:
        """Applies the collected operations, and returns the rows. Raises ArgumentError if no Gaussians are left."""
        pending, self._pending = self._pending, []
        if not pending:
            return self.rows
        counts = [0] * len(pending)

        def edited() -> Iterable[Gaussians]:
            for chunk in self.rows.chunks():
                for i, (_, function) in enumerate(pending):
                    chunk = function(chunk)
                    counts[i] += len(chunk)
                yield chunk

        before = len(self.rows)
        self._replace(gather(edited(), self.rows, self._folder))
        for (option, _), count in zip(pending, counts):
            report_counts(option, before, count)
            before = count
        return self.rows

    def merge(self, other: Rows) -> None:
        """Appends the rows of another model."""
        first = self.finish()
        empty = merge_models([first.read(0, 0), other.read(0, 0)], warn=warn_user)
        parts = (merge_models([empty, part], warn=lambda _: None) for rows in (first, other) for part in rows.chunks())
        before = len(first)
        self._replace(gather(parts, first, self._folder))
        report_counts("--merge", before, len(self.rows))

    def decimate(self, amount: int | float, option: str = "--decimate") -> None:
        """Decimates to a count, or to a fraction if `amount` is a float; `option` is for messages."""
        before = len(self.finish())
        if not all(bool(part.valid.all()) for part in self.rows.chunks()):
            self.add("without invalid values", lambda part: part.select(part.valid))
        rows = self.finish()
        n = amount if isinstance(amount, int) else max(1, round(amount * before))
        self.rows = decimate_rows(rows, n, valid_bounds(rows), self._folder)
        report_counts(option, before, len(self.rows))

    def _replace(self, rows: Rows) -> None:
        self.rows.close()
        self.rows = rows


def report_counts(option: str, before: int, after: int) -> None:
    """Prints the number of Gaussians before and after an operation; raises ArgumentError if none are left."""
    if after == 0:
        raise ArgumentError(f"{option}: leaves none of {before:,} Gaussians; choose other values")
    if after != before:
        print(f"{option}: {before:,} -> {after:,} Gaussians", flush=True)
