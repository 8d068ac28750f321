"""Settings of runs that have a time limit, are extended, or are restarted by torchrun."""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...runtime.process_group import RankGroup
from ...scalars import check_size
from ...scene.capture.views import Capture
from ...scene.gaussians import Gaussians
from ...viewing.run_files import CONFIG
from ..configuration import RESOLVED_SETTINGS, RunConfig, read_config
from ..processes.environment import is_restarted
from ..processes.group import join_ranks
from ..trainer import Trainer, expected_count
from .initial_gaussians import initial_gaussians
from .run_checkpoints import has_checkpoints
from .scenes import with_absolute_scene

Configure = Callable[[int], RunConfig]
"""Returns the configuration of a run for a number of steps, for example from :func:`tsplat.training.preset`."""

TIMED_STEPS, WARM_UP_STEPS = 40, 8
"""Number of steps of the short run that measures the time of a step, and number of its first steps to exclude."""

MEAN_GROWTH = 0.85
"""Mean number of Gaussians over a run, on a scale from 0 (the initial number) to 1 (the final number)."""

ITERATIONS = 4
"""Number of fixed-point iterations that estimate the numbers of steps and of Gaussians, which depend on each other."""


def extend(config: RunConfig, steps: int) -> RunConfig:
    """Returns the configuration of a run that is extended to more steps.

    Learning rates decay, and Gaussians are added, until the same fractions of the longer run. Other settings stay:
    initial learning rates, growth, and the intervals of refinements and of degrees of spherical harmonics.
    """
    if check_size("steps", steps) <= config.steps:
        raise ArgumentError(
            f"steps: expected more than the {config.steps:,} steps of the run, to extend it, found {steps}; to stop "
            "earlier: stop_after"
        )
    strategy = config.strategy
    if strategy is not None:
        stops = {name: getattr(strategy, name, -1) for name in ("refine_stop_iter", "noise_injection_stop_iter")}
        scaled: dict[str, Any] = {
            name: math.ceil(stop * steps / config.steps) for name, stop in stops.items() if stop >= 0
        }
        strategy = dataclasses.replace(strategy, **scaled)
    interval = min(config.sh_interval, math.ceil(config.steps / (config.sh_degree_of_points + 1)))
    return dataclasses.replace(config, steps=steps, strategy=strategy, sh_interval=interval)


def continues(configure: Configure, config: RunConfig, folder: Path) -> bool:
    """Returns whether torchrun has restarted the ranks of this run, which has saved a checkpoint and is to be resumed.

    A collective call under torchrun. It suffices that one rank was restarted, as ranks of a machine that joins later
    are not. The settings must be those of the run in the folder: torchrun also restarts a command that failed because
    the folder contains another run, which must not be resumed.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    device, _, ranks = join_ranks(config)
    exists = has_checkpoints(folder) and (folder / CONFIG).is_file()
    if not ranks.any([is_restarted()], device)[0] or not exists:
        return False
    return not changed_settings(configure, read_config(folder / CONFIG))


def changed_settings(configure: Configure, saved: RunConfig) -> list[str]:
    """Returns the names of the settings that differ from the `saved` ones, except settings that a run resolves."""
    config = with_absolute_scene(configure(saved.steps))
    names = {field.name for field in dataclasses.fields(saved)} - set(RESOLVED_SETTINGS)
    if config.sh_degree is not None:
        names.add("sh_degree")
    return sorted(name for name in names if getattr(config, name) != getattr(saved, name))


def check_timing(config: RunConfig | Configure, minutes: float | None) -> None:
    """Raises ArgumentError unless there are settings or, with `minutes`, a function that returns them."""
    if isinstance(config, RunConfig) != (minutes is None):
        raise ArgumentError("config: expected settings or, with minutes, a function that returns them for n steps")


def check_minutes(minutes: float, config: RunConfig) -> None:
    """Raises ArgumentError unless the time is positive and the strategy can predict how many Gaussians it adds."""
    if not 0 < minutes < math.inf:
        raise ArgumentError(f"minutes: expected a positive number, found {minutes}")
    if config.strategy is not None and config.strategy.expected_growth() is None:
        raise ArgumentError(
            f"minutes: cannot predict how many Gaussians {type(config.strategy).__name__} adds, and so the time of a "
            "step; give steps, or use another preset than adaptive"
        )


def plan(
    configure: Configure, minutes: float, capture: Capture, ranks: RankGroup, model: Gaussians | None = None
) -> RunConfig:
    """Returns the configuration with the number of steps that fit into a time. A collective call.

    A short run, whose Gaussians are discarded, measures the time of a step, which is fitted by a linear function of the
    number of Gaussians. Evaluations and checkpoints are not counted. `configure` returns the configuration for a number
    of steps, and `model` has the initial Gaussians, if the run starts from a model.
    """
    config = configure(TIMED_STEPS)
    trainer = Trainer(initial_gaussians(config, capture, ranks, model), capture.train, config, ranks, is_shard=True)
    n_initial = trainer.n_gaussians
    counts, seconds = [], []
    for _ in range(TIMED_STEPS):
        start, n = time.perf_counter(), trainer.n_gaussians
        float(trainer.advance().loss)  # waits for a GPU
        counts.append(n)
        seconds.append(time.perf_counter() - start)
    counts, seconds = counts[WARM_UP_STEPS:], seconds[WARM_UP_STEPS:]
    slope = float(np.polyfit(counts, seconds, 1)[0]) if counts[0] != counts[-1] else 0.0
    slope = max(slope, 0.0)
    base = float(np.mean(seconds)) - slope * float(np.mean(counts))
    steps, step_time = TIMED_STEPS, 0.0
    for _ in range(ITERATIONS):
        n_final = expected_count(configure(steps), n_initial)
        step_time = base + slope * (n_initial + MEAN_GROWTH * (n_final - n_initial))
        steps = min(ranks.all_gather_object(max(1, int(60 * minutes / step_time))))
    print(f"{steps:,} steps of about {1000 * step_time:.0f} ms fit into {minutes:g} minutes", flush=True)
    return configure(steps)
