"""A summary of a run: its progress, its metrics on held-out views, and the command that resumes it."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ...errors import ArgumentError, FileError
from ...scalars import to_float
from ...scene.formats.checkpoints import MANIFEST, read_newest_valid, read_raw_checkpoint, skipped_messages
from ...scene.gaussians import Gaussians
from ...support.locks import LOCK, is_locked
from ...viewing.run_files import METRICS
from ..configuration import RunConfig, from_json
from ..presets import Preset, closest_preset
from ..report.numbers import decibels, duration, fixed
from .report import read_evaluation, read_metrics
from .scenes import locate_scene


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """Summary of a run.

    Attributes:
        folder: The run's folder.
        state: "finished" if the results of the last step are written. Otherwise, "running" if a process holds the
            folder's lock, "killed" if a process left the lock behind, or "running or killed" if a process of another
            machine created it; and "not finished" without a lock.
        checkpoint: Name of the newest valid checkpoint, or of the given one.
        step, steps: Steps of this checkpoint, and of the whole run.
        preset: The preset that is most similar to the run's settings.
        scene: Path of the scene; empty if there is none.
        scene_exists: Whether this path exists.
        seconds: Training time until the checkpoint.
        psnr, ssim: Means over the held-out views after `scored_step`, which is the checkpoint's step if it was
            evaluated. None without an evaluation; the PSNR of equal images is None, too.
        scored_step: Step of `psnr` and `ssim`; None without an evaluation of held-out views.
        resume: Command that continues the run; None if it is finished.
    """

    folder: str
    state: Literal["finished", "not finished", "running", "killed", "running or killed"]
    checkpoint: str
    step: int
    steps: int
    preset: Preset
    scene: str
    scene_exists: bool
    seconds: float | None
    psnr: float | None
    ssim: float | None
    scored_step: int | None
    resume: str | None

    def lines(self) -> list[str]:
        """Returns the summary as lines of text."""
        scores = "not evaluated"
        if self.scored_step is not None:
            when = "" if self.scored_step == self.step else f" after step {self.scored_step}"
            scores = f"PSNR {decibels(self.psnr)} dB, SSIM {fixed(self.ssim, '.4f')}{when}"
        return [
            f"run          {self.folder}: {self.state}",
            *([] if self.resume is None else [f"resume       {self.resume}"]),
            f"checkpoint   {self.checkpoint}: {self.step:,} of {self.steps:,} steps in {duration(self.seconds)}",
            f"preset       {self.preset}",
            f"scene        {self.scene or 'none'}{'' if self.scene_exists else ' (not found)'}",
            f"held-out     {scores}",
        ]


def open_run(
    run: str | os.PathLike[str],
    *,
    force: bool = False,
    checkpoint: str | None = None,
    warn: Callable[[str], object],
) -> tuple[Gaussians, RunSummary | None]:
    """Reads the Gaussians of a run as :func:`tsplat.scene.open_model` does, and summarizes the run.

    The summary is None, with a warning, if this version cannot parse the settings of the run.

    Raises:
        CheckpointError, AlreadyActivatedError: See :func:`tsplat.scene.open_model`.
    """
    path, raw, errors = read_newest_valid(run, lambda path: read_raw_checkpoint(path, force=force), checkpoint)
    for message in skipped_messages(errors, path):
        warn(message)
    try:
        config = from_json(raw.config, str(path / MANIFEST))
    except ArgumentError as error:
        warn(f"{error}; describing only the model")
        return raw.gaussians, None
    return raw.gaussians, _summarize(Path(run), path, config, raw.step, raw.figures)


def _summarize(folder: Path, path: Path, config: RunConfig, step: int, figures: dict[str, Any]) -> RunSummary:
    """Returns the summary of the run in `folder`; `path` is its checkpoint after `step` steps."""
    metrics = read_metrics(folder / METRICS, [])
    is_finished = metrics.get("steps") == config.steps
    is_current = metrics.get("steps") == step
    scores = metrics if is_current else read_evaluation(folder / "eval" / path.name, step) or metrics
    try:
        scene, exists = locate_scene(config, figures.get("scene", {}), folder, None).scene, True
    except FileError:
        scene, exists = config.scene, False
    state: Any = "finished" if is_finished else "not finished"
    if not is_finished and (folder / LOCK).exists():
        state = {True: "running", False: "killed", None: "running or killed"}[is_locked(folder)]
    return RunSummary(
        folder=str(folder),
        state=state,
        checkpoint=path.name,
        step=step,
        steps=config.steps,
        preset=closest_preset(config),
        scene=scene,
        scene_exists=exists,
        seconds=to_float(figures.get("seconds")),
        psnr=to_float(scores.get("psnr")),
        ssim=to_float(scores.get("ssim")),
        scored_step=scores.get("steps") if scores.get("views") else None,
        resume=None if is_finished else f"tsplat train --resume {shlex.quote(str(folder))}",
    )
