"""Progress displays: bars in a terminal, a few printed lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from .extras import require

LINES_PER_STAGE = 4
"""Lines printed per stage when stdout is not a terminal."""

OnStage = Callable[[str, int, int], None]
"""Called with the name of the stage, the amount done, and the total."""


@contextlib.contextmanager
def stage_display() -> Iterator[OnStage]:
    """Displays the progress of work that runs in named stages.

    Yields:
        A callback ``(stage, done, total)`` that updates the display. A new stage name starts a new bar.

    Raises:
        MissingExtraError: stdout is a terminal, and rich is not installed.
    """
    with _bars() if sys.stdout.isatty() else _lines() as show:
        yield show


@contextlib.contextmanager
def _bars() -> Iterator[OnStage]:
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
def _lines() -> Iterator[OnStage]:
    start, current, next_line = time.perf_counter(), "", 0.0

    def show(stage: str, done: int, total: int) -> None:
        nonlocal start, current, next_line
        if stage != current:
            start, current, next_line = time.perf_counter(), stage, total / LINES_PER_STAGE
        if done < next_line:
            return
        # The next line is due at the next multiple of total / LINES_PER_STAGE; after the last one, never.
        next_line = (done * LINES_PER_STAGE // max(total, 1) + 1) * total / LINES_PER_STAGE
        if done >= total:
            next_line = total + 1
        print(f"{stage:9} {done}/{total}  {time.perf_counter() - start:.0f} s", flush=True)

    yield show
