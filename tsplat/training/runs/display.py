"""The live progress display of training: a bar in a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from ...stages.memory import used_memory
from ...support.extras import require
from ..history import History
from ..observers import Progress

LINES = 10
"""Number of lines that a run prints without a terminal."""

INTERVAL = 0.5
"""Seconds after which a step is shown that is not one of every tenth. Reading its loss waits for the GPU."""

SMOOTHING = 0.8
"""Weight of the previously shown PSNR in the next one."""


@contextlib.contextmanager
def progress_display(
    steps: int, start: int = 0, clock: Callable[[], float] | None = None
) -> Iterator[Callable[[Progress], None]]:
    """Yields a callback that shows loss, PSNR, number of Gaussians, speed, memory and remaining time.

    Args:
        steps: Number of steps of the whole run.
        start: Number of steps already taken.
        clock: Returns seconds, by which the speed is measured; all seconds count where None.

    Raises:
        MissingExtraError: rich is not installed, and stdout is a terminal.
    """
    clock = time.perf_counter if clock is None else clock
    display = _bar(steps, start, clock) if sys.stdout.isatty() else _lines(steps, start, clock)
    with display as show:
        shown: float | None = None
        last = time.perf_counter()

        def on_step(progress: Progress) -> None:
            nonlocal shown, last
            is_slow = time.perf_counter() - last > INTERVAL
            if is_slow or progress.step % History.EVERY == 0 or progress.step in (start + 1, steps):
                last = time.perf_counter()
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


def _format_speed(speed: float) -> str:
    return f"{speed:.1f} steps/s" if speed >= 1 else f"{1 / max(speed, 1e-9):.1f} s/step"


@contextlib.contextmanager
def _bar(steps: int, first: int, clock: Callable[[], float]) -> Iterator[Show]:
    require("rich")
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    start = clock()
    bar = Bar(
        TextColumn("training"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(), expand=True
    )
    task = bar.add_task("training", total=steps, completed=first)
    # On a line of their own, as the bar would not fit beside them in 80 columns.
    below = Text(no_wrap=True, overflow="ellipsis")
    with Live(Group(bar, below), console=Console()):

        def show(step: int, figures: str, memory: str) -> None:
            speed = (step - first) / (clock() - start)
            bar.update(task, completed=step)
            below.plain = f"{figures}  {_format_speed(speed)}  {memory}"

        yield show


@contextlib.contextmanager
def _lines(steps: int, first: int, clock: Callable[[], float]) -> Iterator[Show]:
    start, due = clock(), float(first)

    def show(step: int, figures: str, memory: str) -> None:
        nonlocal due
        if step < due and step < steps:
            return
        due += steps / LINES
        speed = (step - first) / (clock() - start)
        left = (steps - step) / speed
        print(f"step {step}/{steps}  {figures}  {_format_speed(speed)}  {memory}  {left:.0f} s left", flush=True)

    yield show
