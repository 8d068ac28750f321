"""What one sees of training while it runs, and how one ends it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ..scene.extras import require
from .history import EVERY
from .trainer import Progress

LINES = 10
"""Lines a run prints where there is no terminal."""

SMOOTHING = 0.8
"""How much of the PSNR shown is carried over from what was shown before."""


@contextlib.contextmanager
def progress_display(steps: int) -> Iterator[Callable[[Progress], None]]:
    """A callback that shows loss, PSNR, steps a second and time left: a bar in a terminal, a few lines elsewhere.

    Raises:
        MissingExtraError: rich is not installed, and stdout is a terminal.
    """
    display = _bar(steps) if sys.stdout.isatty() else _lines(steps)
    with display as show:
        shown: float | None = None

        def on_step(progress: Progress) -> None:
            nonlocal shown
            if progress.step % EVERY == 0 or progress.step in (1, steps):
                psnr = float(progress.psnr)
                shown = psnr if shown is None else SMOOTHING * shown + (1 - SMOOTHING) * psnr
                show(progress.step, float(progress.loss), shown)

        yield on_step


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed since, as a function; pressed again it interrupts as usual.

    Outside the main thread, where signals do not arrive, it is always false.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    stopped = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


Show = Callable[[int, float, float], None]


@contextlib.contextmanager
def _bar(steps: int) -> Iterator[Show]:
    require("rich")
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    start = time.perf_counter()
    columns = (
        TextColumn("training"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  PSNR {task.fields[psnr]:.2f} dB  {task.fields[speed]:.1f} steps/s"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, expand=True) as bar:
        task = bar.add_task("training", total=steps, loss=0.0, psnr=0.0, speed=0.0)

        def show(step: int, loss: float, psnr: float) -> None:
            speed = step / (time.perf_counter() - start)
            bar.update(task, completed=step, loss=loss, psnr=psnr, speed=speed)

        yield show


@contextlib.contextmanager
def _lines(steps: int) -> Iterator[Show]:
    start, due = time.perf_counter(), 0.0

    def show(step: int, loss: float, psnr: float) -> None:
        nonlocal due
        if step < due and step < steps:
            return
        due += steps / LINES
        seconds = time.perf_counter() - start
        print(
            f"step {step}/{steps}  loss {loss:.4f}  PSNR {psnr:.2f} dB  {step / seconds:.1f} steps/s  "
            f"{seconds * (steps - step) / step:.0f} s left",
            flush=True,
        )

    yield show
