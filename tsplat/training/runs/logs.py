"""Observers that report the progress of training: to a terminal, TensorBoard, Weights & Biases, and Trackio."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...runtime.memory import used_memory
from ...support.extras import require
from ...support.files import atomic_write, utf8_path
from ...support.progress import duration
from ...viewing.viewer.training_state import format_speed
from ..configuration import RunConfig, to_json
from ..history import History
from ..observers import Observer, Progress, RunStart

LINES = 10
"""Number of lines that a run of a few minutes prints without a terminal."""

LINE_SECONDS = 60
"""Maximum seconds between printed lines."""

LONG_SECONDS = 3600
"""Remaining seconds above which a run on a CPU prints a hint, after LINE_SECONDS, as the first steps compile."""

HINT = "hint: to shorten a run on a CPU, use smaller photographs (such as --downscale 4), or --minutes"

INTERVAL = 0.5
"""Seconds after which a step other than every tenth is shown. Reading its loss waits for the GPU."""

SMOOTHING = 0.8
"""Weight of the previously shown PSNR in the displayed moving average."""

PROJECT = "tsplat"
"""Project of runs of Weights & Biases and Trackio, unless WANDB_PROJECT or TRACKIO_PROJECT names one."""

ShowStep = Callable[[int, str, torch.device], None]
"""Shows a step, its metrics and the memory in use on a device."""


class ProgressDisplay(Observer):
    """Shows loss, PSNR, number of Gaussians, speed, memory and remaining time."""

    def __init__(self) -> None:
        self._psnr: float | None = None
        self._waited = 0.0

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Shows the steps of the run while the block runs."""
        self._start, self._last = run.step, time.perf_counter()
        with (_bar if sys.stdout.isatty() else _lines)(run) as self._show:
            yield

    def after_step(self, progress: Progress) -> None:
        """Shows the first, the last and every tenth step, and any step that follows the last shown one late."""
        now = time.perf_counter()
        is_slow = now - self._last > INTERVAL
        if is_slow or progress.step % History.EVERY == 0 or progress.step in (self._start + 1, progress.steps):
            waiting = ""
            if progress.waited is not None:
                share = (progress.waited - self._waited) / max(now - self._last, 1e-9)
                waiting = f"  {min(share, 1):.1%} waiting for images"
                self._waited = progress.waited
            self._last = now
            psnr = float(progress.psnr)
            self._psnr = psnr if self._psnr is None else SMOOTHING * self._psnr + (1 - SMOOTHING) * psnr
            self._show(
                progress.step,
                f"loss {float(progress.loss):.4f}  PSNR {self._psnr:.2f} dB  {progress.n_gaussians:,} Gaussians"
                f"{waiting}",
                progress.gaussians.means.device,
            )


def _usage(speed: float, device: torch.device) -> str:
    """Returns the speed in steps per second, and the memory in use."""
    return f"{format_speed(speed)}  {_memory(device)}"


def _memory(device: torch.device) -> str:
    return f"{used_memory(device) / 2**30:.1f} GiB"


@contextlib.contextmanager
def _bar(run: RunStart) -> Iterator[ShowStep]:
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
    # Metrics are on a separate line, as they do not fit beside the bar in 80 columns.
    below = Text(no_wrap=True, overflow="ellipsis")
    with Live(Group(bar, below), console=Console()):

        def show(step: int, metrics: str, device: torch.device) -> None:
            speed = (step - run.step) / (run.clock() - start)
            bar.update(task, completed=step)
            below.plain = f"{metrics}  {_usage(speed, device)}"

        yield show


@contextlib.contextmanager
def _lines(run: RunStart) -> Iterator[ShowStep]:
    start, due, is_hinted = run.clock(), float(run.step), False
    printed = start
    first: tuple[int, float] | None = None  # step and time; speed excludes this step, which compiles kernels

    def show(step: int, metrics: str, device: torch.device) -> None:
        nonlocal due, printed, is_hinted, first
        now = run.clock()
        if first is None:
            first = step, now
        if step < due and step < run.steps and now - printed < LINE_SECONDS:
            return
        printed = now
        if step >= due:
            due += run.steps / LINES
        if step == first[0]:
            print(f"step {step}/{run.steps}  {metrics}  {_memory(device)}", flush=True)
            return
        speed = (step - first[0]) / (now - first[1])
        left = (run.steps - step) / speed
        print(f"step {step}/{run.steps}  {metrics}  {_usage(speed, device)}  {duration(left)} left", flush=True)
        if device.type == "cpu" and left >= LONG_SECONDS and now - start >= LINE_SECONDS and not is_hinted:
            is_hinted = True
            print(HINT, flush=True)

    yield show


class MetricLog(Observer):
    """Logs loss, PSNR and number of Gaussians of every tenth step."""

    _write: Callable[[dict[str, Any], int], object]

    def after_step(self, progress: Progress) -> None:
        """Logs every tenth step."""
        if progress.step % History.EVERY == 0:
            metrics = {"loss": float(progress.loss), "psnr": float(progress.psnr), "gaussians": progress.n_gaussians}
            self._write({f"train/{name}": value for name, value in metrics.items()}, progress.step)


class TensorBoardLog(MetricLog):
    """Logs to TensorBoard, in a folder that is created if it does not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Opens the log files. Raises MissingExtraError if tensorboard is not installed."""
        require("tensorboard")
        from torch.utils.tensorboard.writer import SummaryWriter

        self._folder.mkdir(exist_ok=True)
        with utf8_path(self._folder) as path, SummaryWriter(str(path)) as writer:

            def write(metrics: dict[str, Any], step: int) -> None:
                for name, value in metrics.items():
                    writer.add_scalar(name, value, step)

            self._write = write
            yield


class ServiceLog(MetricLog):
    """Logs to a service, with the configuration of the run. A resumed run continues its log."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._folder = folder
        self._config = config

    def _start(self, module: str, **options: Any) -> Any:
        """Starts or continues a log with the module of a service. Raises MissingExtraError if it is not installed."""
        require(module)
        log = importlib.import_module(module).init(
            project=os.environ.get(f"{module.upper()}_PROJECT", PROJECT),
            name=self._folder.resolve().name,
            config=to_json(self._config),
            **options,
        )
        self._write = lambda metrics, step: log.log(metrics, step=step)
        return log


class WandbLog(ServiceLog):
    """Logs to Weights & Biases or, with WANDB_MODE=offline, only to its local files.

    ``wandb/`` in the folder of the run has the local files and the id of the log.
    """

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Starts or continues the log. Raises MissingExtraError if wandb is not installed."""
        file = self._folder / "wandb" / "id"
        log_id = file.read_text() if file.is_file() else None
        with self._start("wandb", dir=self._folder, id=log_id, resume="allow") as log:
            file.parent.mkdir(exist_ok=True)
            with atomic_write(file) as opened:
                opened.write(log.id.encode())
            yield


class TrackioLog(ServiceLog):
    """Logs to Trackio, on this machine or to the Space that TRACKIO_SPACE_ID names."""

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Starts or continues the log. Raises MissingExtraError if trackio is not installed."""
        log = self._start("trackio", resume="never" if run.step == 0 else "allow")
        try:
            yield
        finally:
            log.finish()
