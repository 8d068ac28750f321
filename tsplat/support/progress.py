"""Progress displays: bars in a terminal, and a few lines of text otherwise."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from .extras import require

STAGE_LINES = 4
"""Number of lines printed per stage, without a terminal."""

TRACK_LINES = 10
"""Number of lines that :func:`track` prints, without a terminal."""

STEP_DELAY = 1.0
"""Seconds after which a stage of :func:`reporter` is shown."""

T = TypeVar("T")
ShowStage = Callable[[str, int, int], None]
_displays: ContextVar[ShowStage | None] = ContextVar("display", default=None)


def duration(seconds: float) -> str:
    """Formats seconds with units, such as "1.5 s" or "2 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextlib.contextmanager
def stage_display(delay: float = 0.0) -> Iterator[ShowStage]:
    """Context manager that yields a callback `show(stage, done, total)`, which displays progress and elapsed time.

    Args:
        delay: Seconds from the start of a stage until its first line, without a terminal.

    Raises:
        MissingExtraError: rich is not installed and stdout is a terminal.
    """
    with _bars() if sys.stdout.isatty() else _lines(delay) as show, reports_to(show):
        yield show


@contextlib.contextmanager
def reports_to(show: ShowStage) -> Iterator[None]:
    """Context manager that passes the progress of :func:`reporter` to a callback."""
    token = _displays.set(show)
    try:
        yield
    finally:
        _displays.reset(token)


def reported(values: Iterable[T], total: int, stage: str) -> Iterator[T]:
    """Yields the values, and reports how many of `total` are done by :func:`reporter`."""
    report = reporter(stage)
    for i, value in enumerate(values, 1):
        yield value
        report(i, total)


def reporter(stage: str) -> Callable[[int, int], None]:
    """Returns a function `report(done, total)` that shows a stage on the enclosing :func:`stage_display`.

    Nothing is shown without a display, or in the first :data:`STEP_DELAY` seconds, so small inputs show no such stage.
    Displays measure time from the first call that is shown.
    """
    show, start = _displays.get(), time.perf_counter()

    def report(done: int, total: int) -> None:
        if show is not None and time.perf_counter() - start >= STEP_DELAY:
            show(stage, done, total)

    return report


@contextlib.contextmanager
def _bars() -> Iterator[ShowStage]:
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
def _lines(delay: float) -> Iterator[ShowStage]:
    start, shown, due = time.perf_counter(), "", 0.0

    def show(stage: str, done: int, total: int) -> None:
        nonlocal start, shown, due
        if stage != shown:
            start, shown, due = time.perf_counter(), stage, total / STAGE_LINES
        if done < due or time.perf_counter() - start < delay:
            return
        # The next line; past the end once the last line is printed.
        due = (done * STAGE_LINES // max(total, 1) + 1) * total / STAGE_LINES if done < total else total + 1
        print(f"{stage:9} {done}/{total}  {time.perf_counter() - start:.0f} s", flush=True)

    yield show


def track(values: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yields the values and displays how many of `total` are done."""
    if sys.stdout.isatty():
        require("rich")
        from rich.progress import track as bar

        yield from bar(values, label, total)
        return
    for i, value in enumerate(values, 1):
        yield value
        if i * TRACK_LINES // total > (i - 1) * TRACK_LINES // total:
            print(f"{label} {i}/{total}", flush=True)
