"""Settings of runs that are timed, extended or restarted."""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...arguments import check_size
from ...errors import ArgumentError
from ...runtime.process_group import RankGroup
from ...scene.capture.views import Capture
from ...scene.gaussians import Gaussians
from ...viewing.run_files import CONFIG
from ..configuration import FOUND_OUT, RunConfig, read_config
from ..processes.environment import is_restarted
from ..processes.group import join_ranks
from ..trainer import Trainer
from .initial_gaussians import initial_gaussians
from .run_checkpoints import has_checkpoints
from .scenes import with_absolute_scene

Configure = Callable[[int], RunConfig]
"""Returns the configuration of a run with a number of steps, such as :func:`tsplat.training.preset` does."""

REHEARSAL, WARM_UP = 40, 8
"""Number of steps whose time is measured, in a run of this length, and of those at its start that are left out."""

GROWN = 0.85
"""Mean number of Gaussians over a run, from 0, the number at its start, to 1, that at its end."""

ROUNDS = 4
"""Number of times that steps and Gaussians, which depend on each other, are estimated."""


def extend(config: RunConfig, steps: int) -> RunConfig:
    """Returns the configuration of a run that is extended to more steps.

    Learning rates decay, and Gaussians are added, until the same fractions of the longer run. All else stays: initial
    learning rates, growth, and the intervals of refinements and of degrees of spherical harmonics.
    """
    if check_size("steps", steps) <= config.steps:
        raise ArgumentError(
            f"steps: expected more than the {config.steps} steps of the run, to extend it, found {steps}; to stop "
            "earlier: stop_after"
        )
    strategy = config.strategy
    if strategy is not None:
        stops = {name: getattr(strategy, name, -1) for name in ("refine_stop_iter", "noise_injection_stop_iter")}
        later: dict[str, Any] = {
            name: math.ceil(stop * steps / config.steps) for name, stop in stops.items() if stop >= 0
        }
        strategy = dataclasses.replace(strategy, **later)
    interval = min(config.sh_interval, math.ceil(config.steps / (config.sh_degree_of_points + 1)))
    return dataclasses.replace(config, steps=steps, strategy=strategy, sh_interval=interval)


def continues(configure: RunConfig | Configure, given: RunConfig, folder: Path) -> bool:
    """Returns whether torchrun has restarted the ranks of a run with these settings that has saved a checkpoint.

    A collective call under torchrun. Ranks of a machine that joins later are not restarted, but the others are. An
    attempt to start a run in the folder of another one is restarted, too, and must not resume that one.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    device, _, ranks = join_ranks(given)
    exists = has_checkpoints(folder) and (folder / CONFIG).is_file()
    if not ranks.any([is_restarted()], device)[0] or not exists:
        return False
    return not changed_settings(configure, read_config(folder / CONFIG))


def changed_settings(configure: RunConfig | Configure, saved: RunConfig) -> list[str]:
    """Returns the names of the settings that differ from those of a run; not those that it found out by itself."""
    given = with_absolute_scene(configure if isinstance(configure, RunConfig) else configure(saved.steps))
    names = {field.name for field in dataclasses.fields(saved)} - set(FOUND_OUT)
    if given.sh_degree is not None:
        names.add("sh_degree")
    return sorted(name for name in names if getattr(given, name) != getattr(saved, name))


def check_minutes(minutes: float, config: RunConfig) -> None:
    """Raises ArgumentError unless the time is positive and the strategy says how many Gaussians it adds."""
    if not 0 < minutes < math.inf:
        raise ArgumentError(f"minutes: expected a positive number, found {minutes}")
    if config.strategy is not None and config.strategy.expected_growth() is None:
        raise ArgumentError(
            f"minutes: how many Gaussians {type(config.strategy).__name__} adds, and thus how much time a step takes, "
            "is not known before; give steps, or use another preset than adaptive"
        )


def plan(
    configure: Configure, minutes: float, capture: Capture, ranks: RankGroup, model: Gaussians | None = None
) -> RunConfig:
    """Returns the configuration with the number of steps that fit into a time. A collective call.

    Trains for a few steps, with a number of Gaussians that grows as that of a run, and measures their time, as a line
    over the number of Gaussians. What was trained is dropped. Evaluations and checkpoints are not counted.
    `configure` returns the configuration for a number of steps, and `model` is that to start from.
    """
    config = configure(REHEARSAL)
    trainer = Trainer(initial_gaussians(config, capture, ranks, model), capture.train, config, ranks, is_shard=True)
    n_initial = trainer.n_gaussians
    counts, seconds = [], []
    for _ in range(REHEARSAL):
        start, n = time.perf_counter(), trainer.n_gaussians
        float(trainer.advance().loss)  # waits for a GPU
        counts.append(n)
        seconds.append(time.perf_counter() - start)
    counts, seconds = counts[WARM_UP:], seconds[WARM_UP:]
    slope = float(np.polyfit(counts, seconds, 1)[0]) if counts[0] != counts[-1] else 0.0
    slope = max(slope, 0.0)
    base = float(np.mean(seconds)) - slope * float(np.mean(counts))
    steps, step_time = REHEARSAL, 0.0
    for _ in range(ROUNDS):
        last = _final_count(configure(steps), n_initial)
        step_time = base + slope * (n_initial + GROWN * (last - n_initial))
        steps = min(ranks.all_gather_object(max(1, int(60 * minutes / step_time))))
    print(f"{steps} steps of about {1000 * step_time:.0f} ms fit into {minutes:g} minutes", flush=True)
    return configure(steps)


def _final_count(config: RunConfig, n: int) -> float:
    """Returns the number of Gaussians after the last refinement of n initial ones."""
    strategy = config.strategy
    growth = None if strategy is None else strategy.expected_growth()
    cap = config.max_gaussians if strategy is None or strategy.cap_max is None else strategy.cap_max
    return max(n, min(config.max_gaussians, cap, (growth or 1.0) * n))
