"""How to train: every constant of a run, presets of them, and the file that they are kept in."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..arguments import check_choice, check_size
from ..config import Backend
from ..errors import ArgumentError, FileError
from ..scene.capture.views import Color
from ..strategies import DefaultStrategy, MCMCStrategy

Preset = Literal["fixed", "default", "mcmc"]
PRESETS = ("fixed", "default", "mcmc")

Precision = Literal["fp32", "bf16", "fp16", "auto"]
PRECISIONS = ("fp32", "bf16", "fp16", "auto")

DeviceType = Literal["auto", "cpu", "cuda"]
DEVICES = ("auto", "cpu", "cuda")

Parallel = Literal["shard", "replicate"]
PARALLELS = ("shard", "replicate")

STRATEGIES: dict[str, type[DefaultStrategy] | type[MCMCStrategy]] = {"default": DefaultStrategy, "mcmc": MCMCStrategy}
SCHEDULE_STEPS, REFINEMENTS = 30_000, 24
CONFIG_BYTES_MAX = 1 << 20


@dataclasses.dataclass(frozen=True)
class Config:
    """How to fit Gaussians to views; the rates are those of 3D Gaussian Splatting (Kerbl et al., 2023).

    Attributes:
        steps: Optimiser steps that schedules are laid out for.
        views_per_step: Views whose mean loss a step follows, shared out over ranks, which render theirs one after the
            other; 0 for one a rank. Rates grow with its square root, and the moments' decay rates go by its power
            (Malladi et al., 2022, "On the SDEs and scaling rules").
        seed: Of the order of views, of backgrounds and of what strategies draw.
        means_rate: Of the centers, in units of the scene's extent; decays exponentially to `means_decay` of it.
        means_decay: See `means_rate`.
        scales_rate: Of the logarithms of the standard deviations.
        opacities_rate: Of the logits.
        quats_rate: Of the rotations.
        sh0_rate: Of the colors.
        shN_rate: Of the spherical harmonics above degree 0.
        sh_interval: Steps after which one more degree of spherical harmonics is used; a run too short for all degrees
            shares its steps out among them.
        background: RGB behind everything; None for that of the capture, or black.
        random_background: Whether a step draws a background of its own, so that nothing stays transparent.
        antialiased: Whether opacities make up for the blur of projection (Mip-Splatting); pictures are then to be
            rendered so too.
        backend: As in `tsplat.rasterization`.
        precision: What autocast is told; the rasterizer, the loss and Adam stay in fp32. fp16 comes with gradient
            scaling; auto is bf16 where the device has it, otherwise fp32.
        opacity_weight: Of the mean opacity in the loss.
        scale_weight: Of the mean standard deviation in the loss.
        depth_weight: Of the mean difference between inverse expected depth and that of the sparse points, times the
            scene's extent.
        pose_refinement: Whether to learn a small rotation and translation of each training camera.
        pose_rate: Of both, radians and units of the scene's extent.
        exposure: Whether to learn an affine map of colors for each training view.
        exposure_rate: Of its entries.
        clip_gradients: Largest norm of each parameter's gradient; 0 for none.
        parallel: What several ranks do: each holds a part of the scene, or all of it.
        max_gaussians: How many there may be; memory that runs short may say fewer.
        strategy: When Gaussians are added, moved and removed; None to keep them as they are.
    """

    steps: int = 7000
    views_per_step: int = 0
    seed: int = 0
    means_rate: float = 1.6e-4
    means_decay: float = 0.01
    scales_rate: float = 5e-3
    opacities_rate: float = 5e-2
    quats_rate: float = 1e-3
    sh0_rate: float = 2.5e-3
    shN_rate: float = 1.25e-4  # noqa: N815 - the field's name
    sh_interval: int = 1000
    background: Color | None = None
    random_background: bool = False
    antialiased: bool = False
    backend: Backend = "auto"
    precision: Precision = "fp32"
    opacity_weight: float = 0.0
    scale_weight: float = 0.0
    depth_weight: float = 0.0
    pose_refinement: bool = False
    pose_rate: float = 1e-5
    exposure: bool = False
    exposure_rate: float = 1e-3
    clip_gradients: float = 0.0
    parallel: Parallel = "shard"
    max_gaussians: int = 1_000_000
    strategy: DefaultStrategy | MCMCStrategy | None = None

    @property
    def backdrop(self) -> Color:
        """RGB behind everything, where `background` leaves that open too."""
        return self.background or (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("steps", "sh_interval", "max_gaussians"):
            check_size(name, getattr(self, name))
        if self.views_per_step:
            check_size("views_per_step", self.views_per_step)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("parallel", self.parallel, PARALLELS)
        if not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed: expected 0 up to 2^63 - 1, found {self.seed}")
        rates = [field.name for field in dataclasses.fields(self) if field.name.endswith(("_rate", "_weight"))]
        for name in (*rates, "means_decay", "clip_gradients"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name}: expected a number of at least 0, found {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """A whole run: what it reads, how it trains, and what it leaves.

    Attributes:
        scene: Folder of photographs with cameras.
        downscale: How many times smaller to make the photographs.
        normalize: Whether to move and scale the scene so that cameras lie around the origin, the farthest at 1; the
            matrix from the photographs' frame goes to `world.json`.
        test_every: Of the images sorted by name, the first and every so many after it are held out.
        device: Where to run; auto is a GPU if there is one.
        sh_degree: Highest degree of spherical harmonics, 0 to 4.
        start_opacity: Of the Gaussians at the points.
        start_scale: How many times as wide as their distance to each other they are.
        eval_every: Steps between looks at the views held out; 0 for a twelfth of all steps.
        save_every: Steps between checkpoints; 0 for a quarter of all steps. The last step is saved too.
        keep: Checkpoints to keep.
        tensorboard: Whether to write figures for TensorBoard.
        deterministic: Whether PyTorch may only use algorithms that give equal bits each time.
    """

    scene: str = ""
    downscale: int = 1
    test_every: int = 8
    normalize: bool = False
    device: DeviceType = "auto"
    sh_degree: int = 3
    start_opacity: float = 0.1
    start_scale: float = 1.0
    eval_every: int = 0
    save_every: int = 0
    keep: int = 2
    tensorboard: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("downscale", "test_every", "keep"):
            check_size(name, getattr(self, name))
        for name in ("eval_every", "save_every"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name}: expected a number of steps, found {getattr(self, name)}")
        if not 0 < self.start_opacity < 1:
            raise ArgumentError(f"start_opacity: expected a number between 0 and 1, found {self.start_opacity}")
        if not 0 < self.start_scale < math.inf:
            raise ArgumentError(f"start_scale: expected a positive number, found {self.start_scale}")
        check_choice("device", self.device, DEVICES)
        check_choice("sh_degree", self.sh_degree, (0, 1, 2, 3, 4))


def preset(name: Preset, steps: int = Config.steps) -> RunConfig:
    """The configuration of a preset: `fixed`, as many Gaussians as points; `default` and `mcmc`, with those strategies.

    The strategies' step numbers are meant for 30,000 steps. For fewer, they begin and end in proportion, and refine as
    often as then or 24 times, whichever is more.

    Raises:
        ArgumentError: Another name.
    """
    check_choice("preset", name, PRESETS)
    check_size("steps", steps)
    if name == "default":
        return RunConfig(steps=steps, strategy=laid_out(DefaultStrategy(), steps))
    if name == "mcmc":
        return RunConfig(steps=steps, strategy=laid_out(MCMCStrategy(), steps), opacity_weight=0.01, scale_weight=0.01)
    return RunConfig(steps=steps)


S = TypeVar("S", DefaultStrategy, MCMCStrategy)


def laid_out(strategy: S, steps: int) -> S:
    """A strategy with step numbers for a run of fewer than 30,000 steps, which they are taken to be meant for."""
    factor = min(1.0, steps / SCHEDULE_STEPS)
    names = ("refine_start_iter", "refine_stop_iter", "reset_every", "pause_refine_after_reset")
    numbers = {n: math.ceil(factor * getattr(strategy, n)) for n in names if hasattr(strategy, n)}
    phase = numbers["refine_stop_iter"] - numbers["refine_start_iter"]
    every = min(strategy.refine_every, max(1, math.ceil(phase / REFINEMENTS)))
    return dataclasses.replace(strategy, **numbers, refine_every=every)


def to_json(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON knows it; a strategy has its name under `kind`."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    strategy = config.strategy
    if strategy is not None:
        kind = next(name for name, cls in STRATEGIES.items() if type(strategy) is cls)
        fields = (field.name for field in dataclasses.fields(strategy) if field.name != "generator")
        values["strategy"] = {"kind": kind, **{name: getattr(strategy, name) for name in fields}}
    values["background"] = None if config.background is None else list(config.background)
    return values


def from_json(values: Any, where: str) -> RunConfig:
    """The reverse of :func:`to_json`; fields that are not there have their defaults.

    Raises:
        ArgumentError: A field that does not exist, or a value of another type, named with `where`.
    """
    values = _fields(values, RunConfig, where)
    if values.get("strategy") is not None:
        strategy = dict(values["strategy"]) if isinstance(values["strategy"], dict) else {}
        kind = strategy.pop("kind", None)
        if not isinstance(kind, str) or kind not in STRATEGIES:
            raise ArgumentError(f"{where}: strategy: expected kind to be one of {sorted(STRATEGIES)}, found {kind!r}")
        values["strategy"] = STRATEGIES[kind](**_fields(strategy, STRATEGIES[kind], f"{where}: strategy"))
    return RunConfig(**values)


def read_config(path: str | os.PathLike[str]) -> RunConfig:
    """Reads the `config.json` of a run.

    Raises:
        FileError: The file cannot be read, or is not JSON.
        ArgumentError: As :func:`from_json`.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            return from_json(json.loads(file.read(CONFIG_BYTES_MAX)), str(path))
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise FileError(f"{path}: not a configuration ({str(error)[:120]})") from error


def _fields(values: Any, cls: type, where: str) -> dict[str, Any]:
    """The values with the types of a dataclass's defaults."""
    if not isinstance(values, dict):
        raise ArgumentError(f"{where}: expected a JSON object, found {type(values).__name__}")
    defaults = {field.name: field.default for field in dataclasses.fields(cls) if field.name != "generator"}
    unknown = sorted(set(values) - set(defaults))
    if unknown:
        raise ArgumentError(f"{where}: found {', '.join(map(repr, unknown))}, which is no field of {cls.__name__}")
    found = {}
    for name, value in values.items():
        default = defaults[name]
        if name == "background":
            fits = value is None or (isinstance(value, list) and len(value) == 3 and all(map(_is_number, value)))
            value = tuple(value) if value and fits else value
        elif isinstance(default, float):
            fits = _is_number(value)
        else:
            fits = default is None or type(value) is type(default)
        if not fits:
            raise ArgumentError(f"{where}: {name}: expected something like {default!r}, found {value!r}")
        found[name] = value
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
