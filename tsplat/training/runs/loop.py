"""The loop of a run: training steps with observers, evaluations, checkpoints and warnings."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...runtime.process_group import RankGroup
from ...scene.capture.local_frame import LocalFrame
from ...scene.capture.views import Capture, View
from ...scene.gaussians import Gaussians
from ...support.interruption import Interrupted, StopRequest
from ..configuration import Config, RunConfig
from ..evaluation import Evaluation, OnView, evaluate
from ..history import History, PsnrMonitor
from ..observers import DivergedError, Observer, Progress, RunStart
from ..parameters import scene_tensors
from ..rng_state import get_rng_state, set_rng_state
from ..trainer import Trainer
from .run_checkpoints import Checkpoint, write_checkpoint
from .sessions import RunSession

N_EVALUATIONS, N_CHECKPOINTS = 12, 4
"""Default numbers of evaluations and checkpoints of a run."""


class RunLoop:
    """Trains for the steps of a run in a folder, and records its history.

    `run` is the configuration to save in checkpoints; None for a run without checkpoints. `stop` is set by signals.
    `scene` has JSON values about the scene for checkpoints. `resumed` has the JSON values (``figures``) of the
    checkpoint from which the trainer was restored; None for a new run.

    Attributes:
        history: Metrics so far.
        session: The session that measures the run.
        seconds: Duration of training so far, including earlier sessions of a resumed run, and excluding the viewer's
            rendering and pauses.
        first_step: The step at which this process started.
        frame: The local frame in which the trainer trains.
    """

    def __init__(
        self,
        trainer: Trainer,
        test_views: Sequence[View],
        folder: Path,
        run: RunConfig | None,
        *,
        stop: StopRequest,
        scene: dict[str, Any],
        session: RunSession,
        observers: Sequence[Observer],
        resumed: dict[str, Any] | None,
        frame: LocalFrame,
    ) -> None:
        self.trainer = trainer
        self.frame = frame
        self.folder = folder
        self.history = History()
        self.session = session
        self.seconds = 0.0
        self.first_step = trainer.step
        self._test_views = test_views
        self._run_config = run
        self._stop = stop
        self._scene = scene
        self._monitor = PsnrMonitor(trainer.config.steps)
        self._saved_step = -1
        self._intact: dict[Path, bool] = {}
        steps = trainer.config.steps
        self._eval_every = (run.eval_every if run else 0) or max(1, steps // N_EVALUATIONS)
        self._save_every = (run.save_every if run else 0) or max(1, steps // N_CHECKPOINTS)
        if resumed is not None:
            self.history = History(**resumed["history"])
            self.seconds = resumed["seconds"]
            self._monitor.restore(resumed["watch"])
            self._saved_step = trainer.step
            set_rng_state(resumed["random"])
        trainer.observers += [*observers, self.history]

    @property
    def config(self) -> Config:
        """The run's configuration, or the trainer's for a run without checkpoints."""
        return self.trainer.config if self._run_config is None else self._run_config

    def run(self, last: int) -> None:
        """Trains until step `last`, or until a signal asks any rank to stop, and saves the last step.

        Raises Interrupted after a signal, and DivergedError if the loss, the gradients or the Gaussians are no longer
        finite; the last state is then saved under ``inspect/``.
        """
        trainer, steps = self.trainer, self.trainer.config.steps
        seconds_before, start = self.seconds, self._clock()
        save = None if self._run_config is None else self.save_checkpoint
        earlier = list(zip(self.history.train_steps, self.history.train_psnr, strict=True))
        begin = RunStart(trainer.step, steps, self._clock, earlier, save)
        with contextlib.ExitStack() as stack:
            for observer in trainer.observers:
                stack.enter_context(observer.during(begin))
            self._complete_evaluation()
            while trainer.step < last and not self.is_stopped():
                try:
                    progress = trainer.advance()
                except DivergedError as error:
                    self._warn(str(error))
                    raise
                except Interrupted:  # by an observer
                    break
                self.seconds = seconds_before + self._clock() - start
                self._after_step(progress)
        if self._run_config is not None and self._saved_step != trainer.step:
            self.save("checkpoints")
        self.seconds = seconds_before + self._clock() - start
        if trainer.step < steps:
            print(f"stopped after {trainer.step} of {steps:,} steps", flush=True)
        self.raise_if_stopped()

    def _after_step(self, progress: Progress) -> None:
        """Prints warnings, evaluates and saves, if due."""
        for warning in (progress.warning, self._monitor.check(progress)):
            if warning is not None:
                self._warn(warning)
        self._complete_evaluation()
        if self._run_config is not None and progress.step % self._save_every == 0:
            self.save("checkpoints")

    def _complete_evaluation(self) -> None:
        """Evaluates the held-out views if that is due after this step. A signal ends the evaluation.

        A resumed run first completes an evaluation that a signal ended.
        """
        step = self.trainer.step
        is_due = step % self._eval_every == 0 and step < self.trainer.config.steps
        if not is_due or not self._test_views or step in self.history.test_steps:
            return
        with contextlib.suppress(Interrupted), self.session.measure("evaluation"):
            scores = score_views(self.trainer, self.trainer.gaussians, self._test_views, self.between_views)
            self.history.record_test(step, scores.psnr, self.trainer.n_gaussians)

    def is_stopped(self) -> bool:
        """Returns whether a signal asked any rank to stop. A collective call."""
        return self.trainer.ranks.any([self._stop.is_set], self.trainer.device)[0]

    def raise_if_stopped(self) -> None:
        """Raises :class:`Interrupted` on every rank if a signal asked any rank to stop. A collective call.

        Does nothing for a run without checkpoints, as its results could not be computed later.
        """
        if self._run_config is None or not self.is_stopped():
            return
        ranks = self.trainer.ranks
        signum = max(ranks.all_gather_object(self._stop.signum or 0))
        message = f"stopped by {signal.Signals(signum).name}; {self.describe_saved_step()}"
        raise Interrupted(signum, message if ranks.is_main else "")

    def describe_saved_step(self) -> str:
        """Returns a message that says which step is saved, and how to continue."""
        saved = self._saved_step
        if saved < 0:
            return f"no step is saved yet; to start again: tsplat train --resume {self.folder}"
        is_last = saved == self.trainer.config.steps
        state = "all steps are saved; for the results" if is_last else f"step {saved} is saved; to continue"
        return f"{state}: tsplat train --resume {self.folder}"

    def between_views(self, _done: int, _total: int) -> None:
        """Calls :meth:`raise_if_stopped` and notifies the observers. A collective call."""
        self.raise_if_stopped()
        for observer in self.trainer.observers:
            observer.between_views(self.trainer.gaussians)

    def _clock(self) -> float:
        """Returns a time in seconds that excludes the viewer's rendering and pauses."""
        return time.perf_counter() - self.session.seconds.get("viewing", 0.0)

    def save_checkpoint(self) -> str:
        """Saves the current step, unless it is already saved, and returns a message."""
        step = self.trainer.step
        if self._saved_step == step:
            return f"Step {step} is saved already"
        return f"Saved {self.save('checkpoints')}"

    def _warn(self, message: str) -> None:
        """Prints a warning, and saves a checkpoint of this step under ``inspect/``."""
        saved = "" if self._run_config is None else f"; a checkpoint of this step is saved as {self.save('inspect')}"
        print(f"warning: {message}{saved}", flush=True)

    def save(self, name: str) -> Path:
        """Writes a checkpoint of the current step, with the run's settings, into a folder of this name."""
        trainer, run = self.trainer, self._run_config
        assert run is not None
        tensors, figures = trainer.state()
        model = self.frame.gaussians_of_model(trainer.gaussians)
        # The conversion to the frame of the model rounds these tensors, so they are also saved in the local frame.
        rounded = set() if self.frame.is_model_frame else {"params/means", "params/scales"}
        left_out = scene_tensors(model).keys() - rounded
        checkpoint = Checkpoint(
            step=trainer.step,
            gaussians=model,
            tensors={name: tensor for name, tensor in tensors.items() if name not in left_out},
            figures={
                "trainer": figures,
                "history": dataclasses.asdict(self.history),
                "watch": self._monitor.state(),
                "random": get_rng_state(),
                "seconds": self.seconds,
                "scene": self._scene,
                "frame": self.frame.to_json(),
            },
            config=run,
            per_gaussian_names=trainer.per_gaussian_names,
        )
        with self.session.measure("saving"):
            path = write_checkpoint(
                self.folder / name, checkpoint, run.keep, trainer.ranks, sharded=trainer.sharded, intact=self._intact
            )
        if name == "checkpoints":
            self._saved_step = trainer.step
        return path

    def write_session(self) -> list[dict[str, Any]]:
        """Writes ``run.json`` with the sessions so far, and returns them."""
        return self.session.write(self.folder, self.trainer.device, self.trainer.ranks.world_size)


def evaluation_options(config: Config, ranks: RankGroup) -> dict[str, Any]:
    """Returns the arguments of :func:`.evaluate` that a run determines: background, backend, ranks and sharding."""
    sharded = ranks.world_size > 1 and config.parallel == "shard"
    return {"background": config.backdrop, "backend": config.backend, "ranks": ranks, "sharded": sharded}


def score_views(
    trainer: Trainer,
    gaussians: Gaussians,
    views: Sequence[View],
    on_view: OnView | None,
    gains: Tensor | None = None,
) -> Evaluation:
    """Evaluates Gaussians on views, with the trainer's lenses, background, backend, ranks and sharding."""
    options = evaluation_options(trainer.config, trainer.ranks)
    scores = evaluate(gaussians, trainer.with_lenses(views), on_view=on_view, gains=gains, **options)
    return Evaluation(dataclasses.replace(score, view=view) for score, view in zip(scores, views))


def print_setup(trainer: Trainer, capture: Capture) -> None:
    """Prints the numbers of views, Gaussians, steps and ranks of a run."""
    config, ranks = trainer.config, trainer.ranks
    sizes = dict.fromkeys(f"{view.width}×{view.height}" for view in capture.train)
    size = next(iter(sizes)) if len(sizes) == 1 else f"about {next(iter(sizes))}"
    print(
        f"{len(capture.train)} training views of {size}, {len(capture.test)} held-out views; "
        f"{trainer.n_gaussians:,} Gaussians, {config.steps:,} steps",
        flush=True,
    )
    if config.views_per_step > 1:
        factor = math.sqrt(config.views_per_step)
        print(f"{config.views_per_step:,} views per step; learning rates are multiplied by {factor:.3g}")
    if ranks.world_size > 1:
        how = "sharded" if config.parallel == "shard" else "replicated"
        fewest, remainder = divmod(config.views_per_step, ranks.world_size)
        views = f"{fewest} or {fewest + 1}" if remainder else fewest
        print(f"{ranks.world_size} ranks with {how} Gaussians; {views} views per rank and step")
