"""Steps that subcommands share: opening models, checking options, printing notes, running as several ranks."""

import contextlib
import dataclasses
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import ArgumentError
from ..scene import Gaussians, open_model
from ..scene.formats.checkpoints import is_run, read_georeference
from ..scene.georeference import Georeference, georeference_path, relative_to
from ..scene.model_rows import Rows, as_rows
from ..support.output import WarningsOnly
from ..support.process_identity import is_main_rank
from ..viewing.run_cameras import find_run
from .large_models import Task, open_large, warn_user


def open_rows_of(arguments: Namespace, task: Task) -> Rows:
    """Opens the model of a command as rows, which are read from the file if it is larger than memory."""
    large = open_large(arguments, task)
    return as_rows(open_model_of(arguments)) if large is None else large


def open_model_of(arguments: Namespace) -> Gaussians:
    """Reads the model of a command, and prints a line on stderr for each damaged checkpoint that is skipped."""
    return open_model(arguments.model, warn=warn_user, **options_of(arguments, "force", "checkpoint"))


def georeference_of(arguments: Namespace) -> Georeference | None:
    """Returns the georeference of a command's model, with the CRS of ``--crs``.

    None if the model is in the frame of its scene's files, as that of a run without ``world.json``, or if it is
    unknown.

    Raises:
        ArgumentError: The georeference is unknown, and ``--frame files`` is given.
    """
    model, crs = arguments.model, getattr(arguments, "crs", None)
    georeference = read_georeference(model)
    if georeference is None and arguments.frame == "files" and not is_run(model) and find_run(model) is None:
        raise ArgumentError(
            f"--frame: the transform of {model} to the frame of its scene's files is unknown; expected a run, or a "
            f"model with a file {georeference_path(model).name} beside it, which tsplat export writes"
        )
    return georeference if crs is None else dataclasses.replace(georeference or Georeference(), crs=crs)


def print_georeference(out: Path, georeference: Georeference | None, *, is_absolute: bool) -> None:
    """Prints a note about the frame of a written file's coordinates, if its georeference is known."""
    if georeference is not None:
        origin = "" if is_absolute else f"{relative_to(georeference.origin)}; "
        print(f"note: {origin}{georeference_path(out)} has the transform from the frame of the scene's files")


def print_losses(lost: Sequence[str], what: str) -> None:
    """Prints what a file or page does not store exactly, if there is anything."""
    if lost:
        print(f"note: {what} does not store all of the model exactly: {'; '.join(lost)}; a plain .ply does")


def refuse(arguments: Namespace, names: Iterable[str], reason: str) -> None:
    """Raises ArgumentError if one of these options is given."""
    for name in names:
        if getattr(arguments, name) is not None:
            raise ArgumentError(f"--{name.replace('_', '-')}: {reason}")


def options_of(arguments: object, *names: str) -> dict[str, Any]:
    """Returns options as keyword arguments of the same names."""
    return {name: getattr(arguments, name) for name in names}


def result_only(arguments: Namespace, json: bool) -> contextlib.AbstractContextManager[object]:
    """With `json`, redirects stdout to stderr; if the command is quiet, only warnings."""
    if not json:
        return contextlib.nullcontext()
    return contextlib.redirect_stdout(WarningsOnly() if arguments.quiet else sys.stderr)


def launch(command_line: Sequence[str], ranks: int, gpus: str) -> int | None:
    """Runs a command line as several ranks, and returns the exit status; None if this process should run it."""
    from ..training.processes.environment import is_launched
    from ..training.processes.launcher import launch as run_ranks
    from ..training.processes.launcher import ranks_and_gpus

    ranks, chosen = ranks_and_gpus(ranks, gpus)
    return None if ranks == 1 or is_launched() else run_ranks(command_line, ranks, chosen)


def print_steps_note(words: Sequence[str]) -> None:
    """Prints, on one rank, the note of :func:`.train_options.note_steps` for arguments of `tsplat train`, if any."""
    from .train_options import note_steps

    note = note_steps(words)
    if note and is_main_rank():
        print(note, flush=True)


def print_next(*words: str | Path) -> None:
    """Prints a suggestion for the next command, on one rank."""
    if is_main_rank():
        print(f"next: {_own_name()} {shlex.join(map(str, words))}")


def _own_name() -> str:
    """Returns ``tsplat`` or, if a shell would not find it, the path by which it was called: ``.venv/bin/tsplat``."""
    called = sys.argv[0]
    is_found = Path(called).name != "tsplat" or shutil.which("tsplat") is not None
    return "tsplat" if is_found else shlex.quote(called)
