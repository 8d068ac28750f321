"""The start of a run in this process: a new run, or a checkpoint that is resumed or evaluated."""

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


class Start:
    """The start of a run: a new one, :class:`NewRun`, or a checkpoint, :class:`SavedRun`."""

    @property
    def frame(self) -> LocalFrame | None:
        """The local frame of the run; None to choose one for the scene."""
        return None

    @property
    def figures(self) -> dict[str, Any] | None:
        """JSON values of the checkpoint, if there is one."""
        return None

    def report_skipped(self) -> None:
        """Prints a line for each checkpoint that was skipped."""

    def while_reading(
        self, config: RunConfig, folder: Path, ranks: RankGroup
    ) -> contextlib.AbstractContextManager[None]:
        """Returns the context in which the scene is read."""
        return contextlib.nullcontext()

    def scene_change(self, description: Description, config: RunConfig) -> str:
        """Returns a message about changes of the scene since the run was started; empty if there are none."""
        return ""

    def settings(self, config: RunConfig, capture: Capture, ranks: RankGroup, model: Gaussians | None) -> RunConfig:
        """Returns the settings, given the scene and the model to start from. A collective call."""
        raise NotImplementedError

    def begin(self, trainer: Trainer, config: RunConfig) -> RunConfig:
        """Restores the trainer from the checkpoint, if there is one, and returns the settings."""
        raise NotImplementedError

    def is_extended(self, config: RunConfig) -> bool:
        """Returns whether the run is resumed with another number of steps."""
        return False


@dataclasses.dataclass(frozen=True)
class NewRun(Start):
    """The start of a new run.

    Attributes:
        configure: Returns the settings for a number of steps, if `minutes` determine that number; otherwise None.
        minutes: Time for the steps.
    """

    configure: Configure | None = None
    minutes: float = 0.0

    def while_reading(
        self, config: RunConfig, folder: Path, ranks: RankGroup
    ) -> contextlib.AbstractContextManager[None]:
        # A run that is killed before its first checkpoint is restarted from config.json. With `minutes`, the number of
        # steps is not known yet.
        return saved_config(config, folder, ranks) if self.configure is None else contextlib.nullcontext()

    def settings(self, config: RunConfig, capture: Capture, ranks: RankGroup, model: Gaussians | None) -> RunConfig:
        if self.configure is not None:
            config = with_absolute_scene(plan(self.configure, self.minutes, capture, ranks, model))
        return dataclasses.replace(config, background=capture.background)

    def begin(self, trainer: Trainer, config: RunConfig) -> RunConfig:
        resolved = {name: getattr(trainer.config, name) for name in RESOLVED_SETTINGS}
        return dataclasses.replace(config, **resolved)


@dataclasses.dataclass(frozen=True, eq=False)
class SavedRun(Start):
    """A checkpoint of a run, from which it is resumed or evaluated.

    Attributes:
        path: The folder of the checkpoint.
        checkpoint: The newest valid checkpoint, or the one that was asked for.
        errors: Errors of the checkpoints that were skipped.
        config: The settings of the run, with the current path of its scene.
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
        """Reads a checkpoint of a run.

        Args:
            run: The folder of the run, or one of its checkpoints.
            ranks: The ranks of the run; if the scene is sharded, each reads its rows.
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
        return self.checkpoint.figures

    @property
    def scene(self) -> dict[str, Any]:
        """JSON values of the checkpoint about the scene; empty for older ones."""
        scene: dict[str, Any] = self.figures.get("scene", {})
        return scene

    @property
    def frame(self) -> LocalFrame:
        return saved_frame(self.figures, self.path)

    def report_skipped(self) -> None:
        for message in skipped_messages(self.errors, self.path):
            print(message)

    def scene_change(self, description: Description, config: RunConfig) -> str:
        return difference(self.scene, description, config.scene, with_hash=self.frame is not LEGACY_FRAME)

    def settings(self, config: RunConfig, capture: Capture, ranks: RankGroup, model: Gaussians | None) -> RunConfig:
        # Settings of older versions are in other units.
        return with_relative_lengths(config, scene_extent(capture.train)) if self.frame is LEGACY_FRAME else config

    def begin(self, trainer: Trainer, config: RunConfig) -> RunConfig:
        trainer.restore(self.checkpoint.local_tensors(), self.figures["trainer"], is_shard=True)
        print(
            f"resumed from {self.path.name}: step {trainer.step} of {config.steps}, {trainer.n_gaussians:,} Gaussians"
        )
        return config

    def is_extended(self, config: RunConfig) -> bool:
        return self.checkpoint.config.steps != config.steps


def check_scene_change(change: str, *, accept: bool) -> None:
    """Raises FileError if the scene has changed; if changes are accepted, prints a warning instead."""
    if not change:
        return
    if not accept:
        raise FileError(f"{change}; restore them, or accept the changes with --accept-changes")
    print(f"warning: {change}")
