"""TensorBoard logging of training metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...support.extras import require
from ...support.files import utf8_path
from ..history import History
from ..observers import Progress


@contextlib.contextmanager
def tensorboard_log(folder: Path) -> Iterator[Callable[[Progress], None]]:
    """Yields a callback that logs loss, PSNR and number of Gaussians of every tenth step.

    Args:
        folder: Folder of the log files.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    require("tensorboard")
    from torch.utils.tensorboard.writer import SummaryWriter

    folder.mkdir(exist_ok=True)
    with utf8_path(folder) as path, SummaryWriter(str(path)) as writer:

        def log(progress: Progress) -> None:
            if progress.step % History.EVERY == 0:
                metrics: dict[str, Any] = {
                    "loss": progress.loss,
                    "psnr": progress.psnr,
                    "gaussians": progress.n_gaussians,
                }
                for name, value in metrics.items():
                    writer.add_scalar(f"train/{name}", value, progress.step)

        yield log
