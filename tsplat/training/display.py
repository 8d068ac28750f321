"""What one sees of training while it runs, and how one ends it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ..stages.memory import used_memory
from ..support.extras import require
from .history import History
from .progress import Progress

LINES = 10
"""Lines a run prints where there is no terminal."""

SMOOTHING = 0.8
"""How much of the PSNR shown is carried over from what was shown before."""


@contextlib.contextmanager
def progress_display(steps: int, start: int = 0) -> Iterator[Callable[[Progress], None]]:
    """A callback that shows loss, PSNR, Gaussians, speed, memory and time left: a bar in a terminal, lines elsewhere.

    Args:
        steps: Of the whole run.
        start: Those taken before.

    Raises:
        MissingExtraError: rich is not installed, and stdout is a terminal.
    """
    display = _bar(steps, start) if sys.stdout.isatty() else _lines(steps, start)
    with display as show:
        shown: float | None = None

        def on_step(progress: Progress) -> None:
            nonlocal shown
            if progress.step % History.EVERY == 0 or progress.step in (start + 1, steps):
                psnr = float(progress.psnr)
                shown = psnr if shown is None else SMOOTHING * shown + (1 - SMOOTHING) * psnr
                device = progress.gaussians.means.device
                show(
                    progress.step,
                    f"loss {float(progress.loss):.4f}  PSNR {shown:.2f} dB  {progress.n_gaussians} Gaussians",
                    f"{used_memory(device) / 2**30:.1f} GiB",
                )

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


Show = Callable[[int, str, str], None]


@contextlib.contextmanager
def _bar(steps: int, first: int) -> Iterator[Show]:
    require("rich")
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    start = time.perf_counter()
    bar = Bar(
        TextColumn("training"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(), expand=True
    )
    task = bar.add_task("training", total=steps, completed=first)
    # A line of their own, since beside the bar they leave no room for it in 80 columns.
    below = Text(no_wrap=True, overflow="ellipsis")
    with Live(Group(bar, below), console=Console()):

        def show(step: int, figures: str, memory: str) -> None:
            speed = (step - first) / (time.perf_counter() - start)
            bar.update(task, completed=step)
            below.plain = f"{figures}  {speed:.1f} steps/s  {memory}"

        yield show


@contextlib.contextmanager
def _lines(steps: int, first: int) -> Iterator[Show]:
    start, due = time.perf_counter(), float(first)

    def show(step: int, figures: str, memory: str) -> None:
        nonlocal due
        if step < due and step < steps:
            return
        due += steps / LINES
        speed = (step - first) / (time.perf_counter() - start)
        left = (steps - step) / speed
        print(f"step {step}/{steps}  {figures}  {speed:.1f} steps/s  {memory}  {left:.0f} s left", flush=True)

    yield show
