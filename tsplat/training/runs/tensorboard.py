"""TensorBoard logging of training metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...support.extras import require
from ...support.files import utf8_path
from ..history import History
from ..observers import Observer, Progress, RunStart


class TensorBoardLog(Observer):
    """Logs loss, PSNR and number of Gaussians of every tenth step.

    Args:
        folder: Folder of the log files; created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    @contextlib.contextmanager
    def during(self, run: RunStart) -> Iterator[None]:
        """Opens the log files.

        Raises:
            MissingExtraError: tensorboard is not installed.
        """
        require("tensorboard")
        from torch.utils.tensorboard.writer import SummaryWriter

        self._folder.mkdir(exist_ok=True)
        with utf8_path(self._folder) as path, SummaryWriter(str(path)) as self._writer:
            yield

    def after_step(self, progress: Progress) -> None:
        """Logs the step if it is one of every tenth."""
        if progress.step % History.EVERY == 0:
            metrics = {"loss": progress.loss, "psnr": progress.psnr, "gaussians": progress.n_gaussians}
            for name, value in metrics.items():
                self._writer.add_scalar(f"train/{name}", value, progress.step)
