"""The live progress display of training: a bar in a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from ...stages.memory import used_memory
from ...support.extras import require
from ..history import History
from ..observers import Observer, Progress, RunStart

LINES = 10
"""Number of lines that a run prints without a terminal."""

INTERVAL = 0.5
"""Seconds after which a step is shown that is not one of every tenth. Reading its loss waits for the GPU."""

SMOOTHING = 0.8
"""Weight of the previously shown PSNR in the next one."""


Show = Callable[[int, str, str], None]
"""Shows a step, its metrics and the memory in use."""


class ProgressDisplay(Observer):
    """Shows loss, PSNR, number of Gaussians, speed, memory and remaining time."""

    def __init__(self) -> None:
        self._psnr: float | None = None

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Shows the steps that are taken in the block.

        Raises:
            MissingExtraError: rich is not installed, and stdout is a terminal.
        """
        self._start, self._last = run.step, time.perf_counter()
        with (_bar if sys.stdout.isatty() else _lines)(run) as self._show:
            yield

    def after_step(self, progress: Progress) -> None:
        """Shows the step if it is the first, the last or one of every tenth, or if the one before was long ago."""
        is_slow = time.perf_counter() - self._last > INTERVAL
        if is_slow or progress.step % History.EVERY == 0 or progress.step in (self._start + 1, progress.steps):
            self._last = time.perf_counter()
            psnr = float(progress.psnr)
            self._psnr = psnr if self._psnr is None else SMOOTHING * self._psnr + (1 - SMOOTHING) * psnr
            self._show(
                progress.step,
                f"loss {float(progress.loss):.4f}  PSNR {self._psnr:.2f} dB  {progress.n_gaussians} Gaussians",
                f"{used_memory(progress.gaussians.means.device) / 2**30:.1f} GiB",
            )


def _format_speed(speed: float) -> str:
    return f"{speed:.1f} steps/s" if speed >= 1 else f"{1 / max(speed, 1e-9):.1f} s/step"


@contextlib.contextmanager
def _bar(run: RunStart) -> Iterator[Show]:
    require("rich")
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    start = run.clock()
    bar = Bar(
        TextColumn("training"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(), expand=True
    )
    task = bar.add_task("training", total=run.steps, completed=run.step)
    # On a line of their own, as the bar would not fit beside them in 80 columns.
    below = Text(no_wrap=True, overflow="ellipsis")
    with Live(Group(bar, below), console=Console()):

        def show(step: int, figures: str, memory: str) -> None:
            speed = (step - run.step) / (run.clock() - start)
            bar.update(task, completed=step)
            below.plain = f"{figures}  {_format_speed(speed)}  {memory}"

        yield show


@contextlib.contextmanager
def _lines(run: RunStart) -> Iterator[Show]:
    start, due = run.clock(), float(run.step)

    def show(step: int, figures: str, memory: str) -> None:
        nonlocal due
        if step < due and step < run.steps:
            return
        due += run.steps / LINES
        speed = (step - run.step) / (run.clock() - start)
        left = (run.steps - step) / speed
        print(f"step {step}/{run.steps}  {figures}  {_format_speed(speed)}  {memory}  {left:.0f} s left", flush=True)

    yield show
