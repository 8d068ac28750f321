"""Context managers of a run: heartbeats, the lock of its folder, deterministic algorithms, and ``config.json``."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import torch

from ...errors import FileError
from ...runtime.process_group import RankGroup
from ...support.extras import require
from ...support.files import atomic_write, write_json
from ...support.locks import lock_folder
from ...viewing.run_files import CONFIG, RUN_RESULTS, SESSIONS
from ...viewing.viewer.server import MODULES as VIEWER_MODULES
from ..configuration import RunConfig, to_json
from ..processes.heartbeat import heartbeat
from .run_checkpoints import has_checkpoints

T = TypeVar("T")

MODULES = ("PIL", "matplotlib", "pycolmap", "rich", "scipy")
"""Optional dependencies that every run imports."""


def require_extras(config: RunConfig | None = None, *, lpips: str | None = None, view: bool = False) -> None:
    """Raises MissingExtraError if an optional dependency of a run or of its evaluation is missing; called first."""
    logging = [] if config is None else [name for name in ("tensorboard", "wandb", "trackio") if getattr(config, name)]
    viewer = [module for module in VIEWER_MODULES if module not in MODULES] if view else []
    require(*MODULES, *logging, *(["torchmetrics", "torchvision"] if lpips is not None else []), *viewer)


@contextlib.contextmanager
def rank_context(ranks: RankGroup) -> Iterator[None]:
    """Context manager that sends heartbeats to the other ranks, and lets only rank 0 print."""
    with contextlib.ExitStack() as stack:
        if not ranks.is_main:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        stack.enter_context(heartbeat(ranks))
        yield


def on_main(ranks: RankGroup, function: Callable[[], T]) -> T:
    """Calls a function on rank 0 only, and returns its result on every rank. An OSError is raised on every rank."""
    result: T | OSError | None = None
    if ranks.is_main:
        try:
            result = function()
        except OSError as error:
            result = error
    result = ranks.all_gather_object(result)[0]
    if isinstance(result, OSError):
        raise result
    return cast(T, result)


@contextlib.contextmanager
def lock_run(folder: Path, ranks: RankGroup, *, new: bool) -> Iterator[None]:
    """Context manager that locks the folder of a run. A collective call.

    Raises FileError on every rank if another process uses the folder or, for a `new` run, if the folder contains a run
    with checkpoints, or files with the names of results that no run has written.
    """
    with contextlib.ExitStack() as stack:
        problem = None
        if ranks.is_main:
            try:
                stack.enter_context(lock_folder(folder))
            except FileError as error:
                problem = str(error)
        if new and problem is None:
            problem = _folder_conflict(folder)
        problems = [reason for reason in ranks.all_gather_object(problem) if reason is not None]
        if problems:
            raise FileError(problems[0])
        yield


def _folder_conflict(folder: Path) -> str | None:
    """Returns why a new run must not be written into a folder; None if it may be."""
    if has_checkpoints(folder):
        resume = f"tsplat train --resume {shlex.quote(str(folder))}"
        return f"{folder}: contains the checkpoints of another run; resume it by {resume}, or choose another folder"
    foreign = sorted(name for name in RUN_RESULTS if os.path.lexists(folder / name))
    if foreign and not (folder / SESSIONS).is_file():
        return f"{folder}: {foreign[0]} would be overwritten, but was not written by a run; choose another folder"
    return None


@contextlib.contextmanager
def deterministic(config: RunConfig) -> Iterator[None]:
    """Context manager that enables PyTorch's deterministic algorithms if `config.deterministic` is set."""
    before = torch.get_deterministic_debug_mode()
    # torch.use_deterministic_algorithms would import torch._inductor, which takes seconds.
    torch.set_deterministic_debug_mode("error" if config.deterministic else before)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextlib.contextmanager
def saved_config(config: RunConfig, folder: Path, ranks: RankGroup) -> Iterator[None]:
    """Writes ``config.json``, from which a killed run can be started again. An error in the block restores the file."""
    path = folder / CONFIG
    if not ranks.is_main:
        yield
        return
    before = path.read_bytes() if path.is_file() else None
    write_json(path, to_json(config))
    try:
        yield
    except Exception:
        if before is None:
            path.unlink()
        else:
            with atomic_write(path) as file:
                file.write(before)
        raise
