"""What one sees while something goes on in stages: a bar for each in a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from .extras import require

LINES = 4
"""Lines a stage prints where there is no terminal."""

Show = Callable[[str, int, int], None]


@contextlib.contextmanager
def stage_display() -> Iterator[Show]:
    """A callback that shows the stage it is given, how much of how much is done, and the time it took so far.

    Raises:
        MissingExtraError: rich is not installed, and stdout is a terminal.
    """
    with _bars() if sys.stdout.isatty() else _lines() as show:
        yield show


@contextlib.contextmanager
def _bars() -> Iterator[Show]:
    require("rich")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:9}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, expand=True) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield show


@contextlib.contextmanager
def _lines() -> Iterator[Show]:
    start, shown, due = time.perf_counter(), "", 0.0

    def show(stage: str, done: int, total: int) -> None:
        nonlocal start, shown, due
        if stage != shown:
            start, shown, due = time.perf_counter(), stage, total / LINES
        if done < due:
            return
        # Past what is done; past the end once that is shown.
        due = (done * LINES // max(total, 1) + 1) * total / LINES if done < total else total + 1
        print(f"{stage:9} {done}/{total}  {time.perf_counter() - start:.0f} s", flush=True)

    yield show
