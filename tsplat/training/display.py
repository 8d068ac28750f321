"""The live progress display of training: a bar in a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from ..stages.memory import used_memory
from ..support.extras import require
from .history import History
from .training_progress import Progress

LINES = 10
"""Number of lines that a run prints without a terminal."""

SMOOTHING = 0.8
"""Weight of the previously shown PSNR in the next one."""


@contextlib.contextmanager
def progress_display(steps: int, start: int = 0) -> Iterator[Callable[[Progress], None]]:
    """Yields a callback that shows loss, PSNR, number of Gaussians, speed, memory and remaining time.

    Args:
        steps: Number of steps of the whole run.
        start: Number of steps already taken.

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
    # On a line of their own, as the bar would not fit beside them in 80 columns.
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
