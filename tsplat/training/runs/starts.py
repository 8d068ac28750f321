"""The start of a run in this process: a new run, or a checkpoint of one that is resumed or evaluated."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any, Self

from ...errors import FileError
from ...runtime.process_group import RankGroup
from ...scene.capture.local_frame import LocalFrame
from ...scene.capture.views import Capture
from ...scene.formats.checkpoints import skipped_messages
from ...scene.gaussians import Gaussians
from ..configuration import RESOLVED_SETTINGS, RunConfig
from ..parameters import rows_of_rank
from ..trainer import Trainer, scene_extent
from .context import saved_config
from .run_checkpoints import Checkpoint, read_newest
from .run_settings import Configure, plan
from .scenes import (
    LEGACY_FRAME,
    Description,
    difference,
    locate_scene,
    saved_frame,
    with_absolute_scene,
    with_relative_lengths,
)


@dataclasses.dataclass(frozen=True)
class NewRun:
    """The start of a new run.

    Attributes:
        configure: Returns the settings for a number of steps, if the run has as many steps as fit into `minutes`.
        minutes: Time for the steps.
        frame, figures: None; see :class:`SavedRun`.
    """

    configure: Configure | None = None
    minutes: float = 0.0
    frame: None = None
    figures: None = None

    def report_skipped(self) -> None:
        """Does nothing: no checkpoint was skipped."""

    def while_reading(
        self, config: RunConfig, folder: Path, ranks: RankGroup
    ) -> contextlib.AbstractContextManager[None]:
        """Writes ``config.json``, from which a run that is killed before its first checkpoint is started again.

        The number of steps of a timed run is not known yet.
        """
        return saved_config(config, folder, ranks) if self.configure is None else contextlib.nullcontext()

    def scene_change(self, description: Description, config: RunConfig) -> str:
        """Returns an empty text: the scene cannot have changed."""
        return ""

    def settings(self, config: RunConfig, capture: Capture, ranks: RankGroup, model: Gaussians | None) -> RunConfig:
        """Returns the settings, given the scene and the model to start from. A collective call."""
        if self.configure is not None:
            config = with_absolute_scene(plan(self.configure, self.minutes, capture, ranks, model))
        return dataclasses.replace(config, background=capture.background)

    def begin(self, trainer: Trainer, config: RunConfig) -> RunConfig:
        """Returns the settings with those that the trainer resolved."""
        resolved = {name: getattr(trainer.config, name) for name in RESOLVED_SETTINGS}
        return dataclasses.replace(config, **resolved)

    def is_extended(self, config: RunConfig) -> bool:
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class SavedRun:
    """A checkpoint of a run, from which it is resumed or evaluated; the methods are those of :class:`NewRun`.

    Attributes:
        path: The folder of the checkpoint.
        checkpoint: The newest valid checkpoint, or the one that was asked for.
        errors: Errors of the checkpoints that were skipped.
        config: The settings of the run, with the path of its scene.
    """

    path: Path
    checkpoint: Checkpoint
    errors: list[str]
    config: RunConfig

    @classmethod
    def open(
        cls,
        run: str | os.PathLike[str],
        ranks: RankGroup,
        config: RunConfig,
        *,
        force: bool,
        checkpoint: str | None,
        scene: str | None,
    ) -> Self:
        """Reads a run.

        Args:
            run: The folder of the run, or one of its checkpoints.
            ranks: Of a sharded scene, each rank reads its rows.
            config: Settings of the run, as :func:`.run_checkpoints.read_newest_settings` reads them.
            force, checkpoint: As in :func:`.run_checkpoints.read_newest`.
            scene: As in :func:`.scenes.locate_scene`.
        """
        path, newest, errors = read_newest(run, force=force, checkpoint=checkpoint, rows=rows_of_rank(config, ranks))
        saved_scene = newest.figures.get("scene", {})
        return cls(path, newest, errors, locate_scene(newest.config, saved_scene, path.parent.parent, scene))

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.path.parent.parent

    @property
    def figures(self) -> dict[str, Any]:
        """JSON values of the checkpoint."""
        return self.checkpoint.figures

    @property
    def scene(self) -> dict[str, Any]:
        """JSON values of the checkpoint about the scene; empty for older ones."""
        scene: dict[str, Any] = self.figures.get("scene", {})
        return scene

    @property
    def frame(self) -> LocalFrame:
        """The local frame of the run."""
        return saved_frame(self.figures, self.path)

    def report_skipped(self) -> None:
        """Prints a line for each checkpoint that was skipped."""
        for message in skipped_messages(self.errors, self.path):
            print(message)

    def while_reading(
        self, config: RunConfig, folder: Path, ranks: RankGroup
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def scene_change(self, description: Description, config: RunConfig) -> str:
        """Returns what has changed in the scene since the run was started; empty for nothing."""
        return difference(self.scene, description, config.scene, with_hash=not self._is_legacy)

    def settings(self, config: RunConfig, capture: Capture, ranks: RankGroup, model: Gaussians | None) -> RunConfig:
        """Returns the settings of the run; those of an older version had other units."""
        return with_relative_lengths(config, scene_extent(capture.train)) if self._is_legacy else config

    def begin(self, trainer: Trainer, config: RunConfig) -> RunConfig:
        """Restores the state of the trainer, and returns the settings."""
        trainer.restore(self.checkpoint.local_tensors(), self.figures["trainer"], is_shard=True)
        print(f"resumed from {self.path.name}: step {trainer.step} of {config.steps}, {trainer.n_gaussians} Gaussians")
        return config

    def is_extended(self, config: RunConfig) -> bool:
        """Returns whether the run is resumed with another number of steps."""
        return self.checkpoint.config.steps != config.steps

    @property
    def _is_legacy(self) -> bool:
        return self.frame is LEGACY_FRAME


def check_scene_change(change: str, *, accept: bool) -> None:
    """Raises FileError if a scene has changed, or prints a warning if that is accepted."""
    if not change:
        return
    if not accept:
        raise FileError(f"{change}; restore them, or use them as they are: --accept-changes")
    print(f"warning: {change}")


Start = NewRun | SavedRun
