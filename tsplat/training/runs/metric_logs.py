"""Logs of training metrics: TensorBoard, and Weights & Biases."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...support.extras import require
from ...support.files import atomic_write, utf8_path
from ..configuration import RunConfig, to_json
from ..history import History
from ..observers import Observer, Progress, RunStart

PROJECT = "tsplat"
"""Project of runs of Weights & Biases, unless WANDB_PROJECT names one."""


class MetricLog(Observer):
    """Logs loss, PSNR and number of Gaussians of every tenth step."""

    _write: Callable[[dict[str, Any], int], object]

    def after_step(self, progress: Progress) -> None:
        """Logs the step if it is one of every tenth."""
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


class WandbLog(MetricLog):
    """Logs to Weights & Biases, or, with WANDB_MODE=offline, to its files only. A resumed run continues its log.

    The run's configuration is logged, too. ``wandb/`` in its folder has the local files, and the id of the log.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._folder = folder
        self._config = config

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Starts the log, or continues it. Raises MissingExtraError if wandb is not installed."""
        require("wandb")
        import wandb

        file = self._folder / "wandb" / "id"
        file.parent.mkdir(exist_ok=True)
        known = file.read_text() if file.is_file() else None
        log = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._folder.resolve().name,
            dir=self._folder,
            id=known,
            resume="allow",
            config=to_json(self._config),
        )
        with log:
            with atomic_write(file) as opened:
                opened.write(log.id.encode())
            self._write = lambda metrics, step: log.log(metrics, step=step)
            yield
