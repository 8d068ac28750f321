"""Presets: named settings of a run, adapted to its number of steps and to 2D Gaussians."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from ..scalars import check_choice, check_size
from .configuration import Config, RunConfig, to_json

if TYPE_CHECKING:
    from ..strategies import DefaultStrategy, MCMCStrategy, Strategy

Preset = Literal["standard", "compact", "mcmc", "adaptive", "fixed", "refine"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
DEFAULT_PRESET: Preset = "standard"
INIT_PRESET: Preset = "refine"
"""Preset of runs that start from a model, if none is named."""

SCHEDULE_STEPS = 30_000
"""Number of steps for which the strategies' schedules and the default learning rates are designed."""

MAX_SIZE = 1600
"""Maximum longer side of photographs in presets, in pixels, as in other trainers."""

SHORT_STEPS = 1500
"""Number of steps below which the preset "standard" raises learning rates further."""

MAX_ELONGATION = 3.0
"""`max_elongation` of the preset "standard"."""

REFINE_RATE = 0.2
"""Ratio of the learning rates of the preset "refine" to those of a run from points."""

WARM_UP = 100
"""Number of steps, at most a tenth of the run, in which the learning rates of the preset "refine" rise."""

PRUNE_START, PRUNE_STOP = 0.3, 0.6
"""Fractions of a run after which the first and the last pruning of the preset "compact" come."""

REFINEMENTS_MIN = 24
"""Minimum number of refinements in a shorter run."""

RESET_INTERVAL_MIN = 100
"""Minimum number of steps between resets of opacities in a shorter run. An opacity recovers in about this many steps at
the default learning rate; until then, Gaussians are too faint to have gradients, and are pruned."""


def for_surfels(config: RunConfig) -> RunConfig:
    """Returns a configuration for 2D Gaussians, with the losses and the densification thresholds of 2DGS."""
    strategy = config.strategy and config.strategy.for_surfels()
    return dataclasses.replace(
        config, primitive="2dgs", strategy=strategy, antialiased=False, normal_weight=config.normal_weight or 0.05
    )


def preset(name: Preset = DEFAULT_PRESET, steps: int = Config.steps) -> RunConfig:
    """Returns the configuration of a preset.

    Runs of "standard" with s < 30,000 steps have higher learning rates than :class:`Config`: that of the means is
    multiplied by (30,000 / s)^(1/3), those of the scales and of the spherical harmonics by (30,000 / s)^(1/2). With
    s < 1,500, those of the means, rotations and opacities are multiplied by (1,500 / s)^(1/2) as well. With s > 1,500,
    the weight of scales in the loss is multiplied by (1,500 / s)^(1/2), at least by 1/2.

    Args:
        name: "standard" for :class:`LongAxisStrategy` with opaque, small initial Gaussians, antialiasing and learning
            rates for the number of steps, which fall at the end; "compact" for the same with :class:`CompactStrategy`,
            which ends with a quarter of the Gaussians; "mcmc" for :class:`MCMCStrategy` and "adaptive" for
            :class:`DefaultStrategy` as gsplat's trainer runs them; "fixed" for one Gaussian per sparse point, without
            densification; "refine" for the Gaussians of a model, without densification, with low learning rates.
        steps: Number of steps. The strategies' schedules are designed for 30,000; see :func:`scale_schedule`.

    Raises:
        ArgumentError: An unknown preset, or an invalid number of steps.

    Example::

        import dataclasses
        from tsplat.training import preset

        config = dataclasses.replace(preset(steps=2000), scene="SCENE", downscale=4)
    """
    return dataclasses.replace(preset_settings(name, steps), strategy=_strategy(name, steps))


def preset_settings(name: Preset, steps: int) -> RunConfig:
    """Returns the configuration of a preset without its strategy, and imports no PyTorch; raises as :func:`preset`."""
    check_choice("preset", name, PRESETS)
    check_size("steps", steps)
    fixed = RunConfig(steps=steps, max_size=MAX_SIZE)
    if name in ("adaptive", "fixed"):
        return fixed
    if name == "refine":
        return dataclasses.replace(
            fixed,
            means_rate=REFINE_RATE * fixed.means_rate,
            means_decay=0.1,
            scales_rate=REFINE_RATE * fixed.scales_rate,
            opacities_rate=REFINE_RATE * fixed.opacities_rate,
            quats_rate=REFINE_RATE * fixed.quats_rate,
            sh0_rate=REFINE_RATE * fixed.sh0_rate,
            shN_rate=REFINE_RATE * fixed.shN_rate,
            rates_decay=0.05,
            warm_up=min(WARM_UP, math.ceil(steps / 10)),
            gains=True,
            visible_adam="auto",
        )
    mcmc = dataclasses.replace(fixed, start_opacity=0.5, start_scale=0.1, opacity_weight=0.01, scale_weight=0.01)
    if name == "mcmc":
        return mcmc
    shortness = max(1.0, SCHEDULE_STEPS / steps)
    speedup = max(1.0, SHORT_STEPS / steps) ** 0.5
    return dataclasses.replace(
        mcmc,
        start_scale=0.3,
        antialiased=True,
        means_rate=mcmc.means_rate * shortness ** (1 / 3) * speedup,
        quats_rate=mcmc.quats_rate * speedup,
        opacities_rate=mcmc.opacities_rate * speedup,
        scale_weight=mcmc.scale_weight * max(0.5, min(1.0, SHORT_STEPS / steps) ** 0.5),
        scales_rate=mcmc.scales_rate * shortness**0.5,
        sh0_rate=mcmc.sh0_rate * shortness**0.5,
        shN_rate=mcmc.shN_rate * shortness**0.5,
        rates_decay=0.05,
        gains=True,
        max_elongation=MAX_ELONGATION,
        visible_adam="auto",
    )


def _strategy(name: Preset, steps: int) -> Strategy | None:
    from ..strategies import CompactStrategy, DefaultStrategy, LongAxisStrategy, MCMCStrategy

    if name == "adaptive":
        return scale_schedule(DefaultStrategy(), steps)
    if name == "mcmc":
        return scale_schedule(MCMCStrategy(), steps)
    if name in ("standard", "compact"):
        # The same total growth as that of the preset "mcmc", which adds 5 % in each refinement.
        growth = 1.05 ** max(REFINEMENTS_MIN, 245 / max(1.0, SCHEDULE_STEPS / steps))
        strategy = LongAxisStrategy(growth=growth)
        if name == "compact":
            start, stop = (math.ceil(fraction * steps) for fraction in (PRUNE_START, PRUNE_STOP))
            strategy = CompactStrategy(growth=growth, prune_start_iter=start, prune_stop_iter=stop)
        return scale_schedule(strategy, steps, 4 * REFINEMENTS_MIN)
    return None


S = TypeVar("S", "DefaultStrategy", "MCMCStrategy")


def scale_schedule(strategy: S, steps: int, refinements: int = REFINEMENTS_MIN) -> S:
    """Returns a strategy whose schedule, designed for 30,000 steps, is compressed to a shorter run.

    Start, end and resets are scaled in proportion, except that resets stay at least 100 steps apart. Refinements keep
    their interval if this gives at least `refinements` of them, and become more frequent otherwise.
    """
    factor = min(1.0, steps / SCHEDULE_STEPS)
    names = (
        "refine_start_iter", "refine_stop_iter", "reset_every", "pause_refine_after_reset", "noise_injection_stop_iter",
    )  # fmt: skip
    # A negative step means never.
    schedule = {name: getattr(strategy, name) for name in names if getattr(strategy, name, -1) >= 0}
    scaled = {name: math.ceil(factor * value) for name, value in schedule.items()}
    if "reset_every" in schedule:
        scaled["reset_every"] = min(schedule["reset_every"], max(scaled["reset_every"], RESET_INTERVAL_MIN))
    duration = scaled["refine_stop_iter"] - scaled["refine_start_iter"]
    every = min(strategy.refine_every, max(1, math.ceil(duration / refinements)))
    return dataclasses.replace(strategy, **scaled, refine_every=every)


def closest_preset(config: Config) -> Preset:
    """Returns the preset with the same type of strategy; among several, the one with the most equal settings."""
    values = to_json(config)

    def similarity(name: Preset) -> tuple[bool, int]:
        base = preset(name, config.steps)
        defaults = to_json(base)
        return type(base.strategy) is type(config.strategy), sum(values[key] == defaults[key] for key in values)

    return max(PRESETS, key=similarity)
