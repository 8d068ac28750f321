"""Configurations of training runs: all settings with their defaults, and their JSON files."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from typing import Any, Literal, get_args

from ..config import SH_DEGREE_MAX, Backend
from ..errors import ArgumentError, FileError
from ..scalars import check_choice, check_size, describe, to_float
from ..scene.option_types import CameraKind, Color, check_test_every
from ..strategies.base import Strategy
from ..support.reading import read_json

Precision = Literal["fp32", "bf16", "fp16", "auto"]
MomentsPrecision = Literal["fp32", "bf16"]
DeviceType = Literal["auto", "cpu", "cuda"]
Parallel = Literal["shard", "replicate"]
Primitive = Literal["3dgs", "2dgs"]
Switch = Literal["auto", "on", "off"]
PriorKind = Literal["inverse", "disparity", "metric"]
DepthAlong = Literal["z", "ray"]
Part = Literal["positions", "scales", "rotations", "opacities", "colors"]
RESOLVED_SETTINGS = ("background", "views_per_step", "visible_adam", "sh_degree")
"""Settings that are resolved when a run starts, if they are not given, and that checkpoints store."""

SH_DEGREE = 3
"""Degree of the spherical harmonics of runs that start from points."""

FROZEN_NAMES: dict[str, tuple[str, ...]] = {
    "positions": ("means",),
    "scales": ("scales",),
    "rotations": ("quats",),
    "opacities": ("opacities",),
    "colors": ("sh0", "shN"),
}
"""Parameters, by their names in gsplat, that each value of `freeze` stands for."""

TYPICAL_EXTENT = 4.0
"""Extent of a scene, in world units, at which `scale_weight` and the strategy's noise apply unscaled."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of training; the default learning rates are those of 3D Gaussian Splatting (Kerbl et al., 2023).

    Attributes:
        steps: Number of optimizer steps; the schedules end with the last one.
        views_per_step: Number of views per step, over whose losses the step averages; 0 for one view per rank. Views
            are rendered one at a time and distributed over the ranks. For n views, learning rates are multiplied by
            √n, and Adam's betas are raised to the power n (Malladi et al., 2022, "On the SDEs and scaling rules").
        seed: Random seed for the order of views, the backgrounds and the strategy.
        means_rate: Learning rate of the means, in units of the scene's extent; decays exponentially by `means_decay`.
        means_decay: Ratio of the final to the initial learning rate of the means.
        scales_rate: Learning rate of the logarithms of the scales.
        opacities_rate: Learning rate of the logits of the opacities.
        quats_rate: Learning rate of the quaternions.
        sh0_rate: Learning rate of the spherical harmonics of degree 0.
        shN_rate: Learning rate of the spherical harmonics of higher degrees.
        rates_decay: Ratio of the final to the initial learning rates of all other Gaussian parameters; they decay
            exponentially in the last fifth of the run.
        warm_up: Number of steps in which all learning rates rise from zero, with the cube of the step, while Adam's
            moments are still dominated by noise.
        sh_interval: Number of steps after which the next degree of spherical harmonics is added. If the run is too
            short for all degrees, the steps are divided evenly among them. Degrees that the initial Gaussians have are
            used from the first step on.
        background: Background color, RGB from 0 to 1; None for the color that the capture specifies, or black.
        random_background: Draw a random background color in every step, so that surfaces become opaque.
        antialiased: Compensate opacities for the blur of projection (Mip-Splatting). The result is marked as
            antialiased and must be rendered so.
        backend: Rasterization backend; auto is the fastest that runs on the device.
        precision: Mixed precision by autocast. The rasterizer, the loss and Adam always compute in fp32. fp16 uses
            gradient scaling; auto is bf16 on GPUs that support it, and fp32 elsewhere.
        capacity: Size the intersection lists by earlier steps, instead of waiting for the device to count
            intersections; a step whose lists are too small is computed again. The result is the same. auto is on for
            GPUs.
        graph: Replay rendering, loss and gradients of a view as a CUDA graph, which saves most of Python's time. The
            result is the same. Requires `capacity`. auto is on for GPUs, with one view per step, if there are no masks,
            no learned corrections of views, and no losses on depths or normals.
        opacity_weight: Weight of the mean opacity in the loss.
        scale_weight: Weight of the mean scale in the loss, in units of a quarter of the scene's extent.
        max_elongation: Maximum ratio of a Gaussian's longest axis to its second longest, at least 1; 0 for no limit.
            An axis is shortened only if its standard deviation exceeds n² / 2,000 of the image, where n is the number
            of training views that see the Gaussian.
        depth_weight: Weight, in the loss, of the mean difference between the rendered inverse depth and the inverse
            depth of the sparse points and of `depth_prior`, in units of the scene's extent.
        depth_kind: Values of `depth_prior`: inverse for inverse depth up to a scale and a shift per view, disparity for
            inverse depth up to a scale per view, metric for depth in one unit.
        normal_weight: Weight, in the loss, of the mean difference between rendered normals and `normal_prior`. With 2D
            Gaussians, also of that between rendered normals and normals of the depth map, after the first 7/30 of the
            run.
        distortion_weight: Weight, in the loss of 2D Gaussians, of the mean depth distortion, in units of the scene's
            extent, after the first tenth of the run. It concentrates the Gaussians of a pixel at one depth.
        perspective_share: Share of the steps on panoramas that train on a perspective view of 90 degrees, in a
            direction that changes, in place of the panorama. Use 0 for a model that is only rendered as panoramas.
        pose_refinement: Learn a small motion of each training camera, or of both poses of a rolling shutter. Metrics of
            held-out views are then measured twice: with the given poses, and with poses fitted to the finished model.
        pose_rate: Learning rate of the rotations, in radians, and of the translations, in units of the scene's extent.
        lens_refinement: Learn the distortion of each lens, which its held-out views share.
        lens_rate: Learning rate of the distortion coefficients.
        exposure: Learn an affine map of the colors of each training view; the mean of all maps is the identity.
        exposure_rate: Learning rate of the entries of these maps.
        gains: Use a gain per color channel of each training view, for photographs with varying exposure. Gains are
            estimated from the colors of sparse points, or during training.
        visible_adam: Update only the Gaussians that a step's views show. Adam overshoots where most gradients are zero.
            auto is on if views show less than a third of the initial Gaussians on average.
        adam_moments: Precision in which Adam's moments of Gaussian parameters are stored. bf16, with stochastic
            rounding, reduces memory by a fifth. Steps are computed in fp32.
        clip_gradients: Maximum norm of each parameter's gradient; 0 for no limit.
        parallel: With several ranks, shard the Gaussians over them, or replicate all Gaussians on each.
        max_gaussians: Maximum number of Gaussians. A smaller `cap_max` of the strategy, or scarce memory, lowers it. An
            initial model that is larger is not reduced.
        freeze: Parameters of the Gaussians that training leaves unchanged, bit for bit; only without a strategy.
        strategy: Densification strategy, which adds, moves and removes Gaussians; None for a fixed number.
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
    rates_decay: float = 1.0
    warm_up: int = 0
    sh_interval: int = 1000
    background: Color | None = None
    random_background: bool = False
    antialiased: bool = False
    backend: Backend = "auto"
    precision: Precision = "fp32"
    capacity: Switch = "auto"
    graph: Switch = "auto"
    opacity_weight: float = 0.0
    scale_weight: float = 0.0
    max_elongation: float = 0.0
    depth_weight: float = 0.0
    depth_kind: PriorKind = "inverse"
    normal_weight: float = 0.0
    distortion_weight: float = 0.0
    perspective_share: float = 0.25
    pose_refinement: bool = False
    pose_rate: float = 1e-5
    lens_refinement: bool = False
    lens_rate: float = 1e-4
    exposure: bool = False
    exposure_rate: float = 1e-3
    gains: bool = False
    visible_adam: Switch = "off"
    adam_moments: MomentsPrecision = "fp32"
    clip_gradients: float = 0.0
    parallel: Parallel = "shard"
    max_gaussians: int = 1_000_000
    freeze: tuple[Part, ...] = ()
    strategy: Strategy | None = None

    @property
    def backdrop(self) -> Color:
        """Background color, RGB from 0 to 1; black if `background` is None."""
        return self.background or (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        for name in ("steps", "sh_interval", "max_gaussians", "views_per_step", "warm_up"):
            or_zero = name in ("views_per_step", "warm_up")
            object.__setattr__(self, name, check_size(name, getattr(self, name), or_zero=or_zero))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("adam_moments", self.adam_moments, get_args(MomentsPrecision))
        check_choice("parallel", self.parallel, get_args(Parallel))
        check_choice("depth_kind", self.depth_kind, get_args(PriorKind))
        for name in ("capacity", "graph", "visible_adam"):
            check_choice(name, getattr(self, name), get_args(Switch))
        if not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed: expected an integer from 0 to 2^63 - 1, found {describe(self.seed)}")
        rates = [field.name for field in dataclasses.fields(self) if field.name.endswith(("_rate", "_weight"))]
        for name in (*rates, "means_decay", "rates_decay", "clip_gradients"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name}: expected a number of at least 0, found {getattr(self, name)}")
        if not 0 <= self.perspective_share <= 1:
            raise ArgumentError(f"perspective_share: expected a number from 0 to 1, found {self.perspective_share}")
        if self.max_elongation and not 1 <= self.max_elongation < math.inf:
            raise ArgumentError(f"max_elongation: expected 0, or at least 1, found {self.max_elongation}")
        for name, value in vars(self.strategy).items() if self.strategy is not None else ():
            if isinstance(value, float) and not math.isfinite(value):
                raise ArgumentError(f"strategy.{name}: expected a finite number, found {value}")
            if name in ("cap_max", "refine_every") and value is not None:
                check_size(f"strategy.{name}", value)
        if not all(0 <= channel <= 1 for channel in self.backdrop):
            raise ArgumentError(f"background: expected three numbers from 0 to 1, found {self.background}")
        _check_freeze(self)


@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """Settings of a run: the scene to read, how to train, and what to save.

    Attributes:
        scene: Folder of photographs with cameras.
        init: Models to start from instead of the sparse points: files, or folders of runs, as for `tsplat edit`. They
            are merged, and keep their SH degree, opacities and scales. They must be in the frame of the models that
            this run writes; another run of tsplat on the same scene may use another frame.
        points: PLY, LAS, LAZ or E57 file of points to start from, instead of the scene's points; in the frame of the
            scene's files, such as the frame of a survey.
        block: Train one block of a plan that `tsplat blocks plan` has written: the plan's folder, a colon, and the
            index of the block.
        primitive: 3D Gaussians, or 2D Gaussians, which are discs that lie on surfaces and have normals.
        downscale: Factor by which the photographs are downscaled.
        max_size: Without `downscale`, photographs are downscaled until their longer side has at most this number of
            pixels; 0 for the original size.
        camera: Undistort photographs first, or train on the original photographs with the distortion of their lenses
            ("native"), which takes longer.
        strict: Refuse a scene that names photographs whose files are missing; otherwise they are skipped.
        keep_far: Keep photographs whose cameras are far from the others and show none or few of the points, which
            suggests a wrong pose; otherwise they are left out.
        depth_prior: Folder of depth maps, NumPy or PNG files named as the images; `depth_kind` says what they contain.
        depth_confidence: Folder of confidence maps for `depth_prior`, from 0 to 1, or ARKit's levels 0, 1 and 2.
        depth_along: Whether metric and disparity maps contain depth along the optical axis (z), or distance along the
            ray of each pixel (ray).
        depth_unit: Unit of metric maps in units of the scene's files, such as 0.001 for millimeters; 0 to
            estimate it from the sparse points.
        normal_prior: Folder of normal maps, in the camera frame (x right, y down).
        normalize: Move and scale the scene so that the cameras are centered at the origin and the farthest is at
            distance 1. Cameras that are far from the others are ignored. The transform from the files' frame is saved
            as `world.json`.
        test_every: Hold out every n-th view for evaluation, in the order of their names, starting with the first; 0 for
            none.
        device: Device to train on; auto is a GPU if there is one.
        sh_degree: Maximum degree of spherical harmonics, 0 to 4; None for 3, or for the degree of the models in `init`.
        start_opacity: Initial opacity of the Gaussians at points.
        start_scale: Initial scale of the Gaussians at points, in units of the mean distance to the three nearest ones.
        sky: Number of additional Gaussians on a distant sphere, for the sky of outdoor scenes. Gaussians that no view
            shows are left out.
        eval_every: Number of steps between evaluations on the held-out views; 0 for a twelfth of the run.
        save_every: Number of steps between checkpoints; 0 for a quarter of the run. The last step is always saved.
        keep: Number of checkpoints to keep.
        tensorboard: Log to TensorBoard.
        wandb: Log to Weights & Biases.
        trackio: Log to Trackio.
        deterministic: Use only deterministic algorithms of PyTorch.
    """

    scene: str = ""
    init: tuple[str, ...] = ()
    points: str = ""
    block: str = ""
    primitive: Primitive = "3dgs"
    downscale: int = 1
    max_size: int = 0
    test_every: int = 8
    camera: CameraKind = "undistorted"
    strict: bool = False
    keep_far: bool = False
    depth_prior: str = ""
    depth_confidence: str = ""
    depth_along: DepthAlong = "z"
    depth_unit: float = 0.0
    normal_prior: str = ""
    normalize: bool = False
    device: DeviceType = "auto"
    sh_degree: int | None = None
    start_opacity: float = 0.1
    start_scale: float = 1.0
    sky: int = 0
    eval_every: int = 0
    save_every: int = 0
    keep: int = 2
    tensorboard: bool = False
    wandb: bool = False
    trackio: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("downscale", "keep", "test_every", "max_size", "eval_every", "save_every"):
            or_zero = name not in ("downscale", "keep")
            object.__setattr__(self, name, check_size(name, getattr(self, name), or_zero=or_zero))
        check_test_every(self.test_every)
        if self.block and not re.fullmatch(r".+:[0-9]{1,9}", self.block, re.DOTALL):
            raise ArgumentError(f"block: expected the folder of a plan, a colon and an index, found {self.block!r}")
        if self.block and self.normalize:
            raise ArgumentError("normalize: not with block, as plans of blocks are in the frame of the files")
        if self.sky and not 2 <= self.sky < self.max_gaussians:
            raise ArgumentError(
                f"sky: expected 0, or 2 to {self.max_gaussians - 1}, fewer than max_gaussians, found {self.sky}"
            )
        if not 0 < self.start_opacity < 1:
            raise ArgumentError(f"start_opacity: expected a number between 0 and 1, found {self.start_opacity}")
        if not 0 < self.start_scale < math.inf:
            raise ArgumentError(f"start_scale: expected a positive number, found {self.start_scale}")
        check_choice("device", self.device, get_args(DeviceType))
        check_choice("camera", self.camera, get_args(CameraKind))
        check_choice("primitive", self.primitive, get_args(Primitive))
        if self.sh_degree is not None:
            object.__setattr__(self, "sh_degree", check_size("sh_degree", self.sh_degree, or_zero=True))
            check_choice("sh_degree", self.sh_degree, tuple(range(SH_DEGREE_MAX + 1)))
        _check_depth(self)
        object.__setattr__(self, "init", _check_texts("init", self.init, "paths of models"))
        if self.init and self.sky:
            raise ArgumentError("sky: not with init, whose models have all Gaussians; use sky=0")
        if self.init and self.points:
            raise ArgumentError("points: not with init, whose models are the start; use one of them")

    @property
    def plan_and_block(self) -> tuple[str, int] | None:
        """Folder of the plan and index of the block, parsed from `block`; None for a run on a whole scene."""
        folder, _, index = self.block.rpartition(":")
        return (folder, int(index)) if folder else None

    @property
    def sh_degree_of_points(self) -> int:
        """SH degree of Gaussians that are initialized at points."""
        return SH_DEGREE if self.sh_degree is None else self.sh_degree


def _check_texts(name: str, values: object, what: str) -> tuple[str, ...]:
    """Returns `values` as a tuple, or raises ArgumentError unless it is a list or tuple of nonempty strings."""
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) and value for value in values):
        raise ArgumentError(f"{name}: expected a tuple of {what}, found {describe(values)}")
    return tuple(values)


def _check_depth(config: RunConfig) -> None:
    """Raises ArgumentError for settings of depth priors that are invalid or have no effect."""
    check_choice("depth_along", config.depth_along, get_args(DepthAlong))
    if not 0 <= config.depth_unit < math.inf:
        raise ArgumentError(f"depth_unit: expected a number of at least 0, found {config.depth_unit}")
    if not config.depth_prior:
        for name in ("depth_kind", "depth_confidence", "depth_along", "depth_unit"):
            if getattr(config, name) != getattr(RunConfig, name):
                raise ArgumentError(f"{name}: has no effect without depth_prior, a folder of maps")
    if config.depth_unit and config.depth_kind != "metric":
        raise ArgumentError(f"depth_unit: only for maps of the kind metric, found {config.depth_kind!r} as depth_kind")
    if config.depth_along == "ray" and config.depth_kind == "inverse":
        raise ArgumentError(
            "depth_along: inverse distances along rays up to a shift are not inverse depths; use depth_kind metric or "
            "disparity"
        )


def _check_freeze(config: Config) -> None:
    """Makes `freeze` a tuple. Raises ArgumentError for unknown names, and settings that change frozen parameters."""
    frozen = _check_texts("freeze", config.freeze, f"some of {', '.join(FROZEN_NAMES)}")
    object.__setattr__(config, "freeze", frozen)
    for part in frozen:
        check_choice("freeze", part, tuple(FROZEN_NAMES))
    if frozen and config.strategy is not None:
        raise ArgumentError(
            f"freeze: {', '.join(frozen)} cannot stay as they are with a strategy, which adds, moves and removes "
            "Gaussians; use the preset refine or fixed (strategy=None)"
        )
    if "scales" in frozen and config.max_elongation:
        raise ArgumentError("max_elongation: shortens the scales, which freeze names; use max_elongation=0")
    others = (config.pose_refinement, config.lens_refinement, config.exposure)
    if set(frozen) == set(FROZEN_NAMES) and not any(others):
        raise ArgumentError(
            "freeze: nothing is left to train; freeze fewer parts, or learn poses, lenses or exposures "
            "(pose_refinement, lens_refinement, exposure)"
        )


def to_json(config: Config) -> dict[str, Any]:
    """Returns the configuration as JSON values; the entry `kind` of the strategy is its key in STRATEGIES."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    strategy = config.strategy
    if strategy is not None:
        from ..strategies.kinds import STRATEGIES

        kind = next((name for name, cls in STRATEGIES.items() if type(strategy) is cls), None)
        if kind is None:
            raise ArgumentError(
                f"strategy: expected one that files can name, {', '.join(STRATEGIES)}, found "
                f"{type(strategy).__name__}; train with Trainer or fit, or add it to tsplat.strategies.kinds.STRATEGIES"
            )
        fields = (field.name for field in dataclasses.fields(strategy) if field.name != "generator")
        values["strategy"] = {"kind": kind, **{name: getattr(strategy, name) for name in fields}}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def from_json(values: Any, where: str) -> RunConfig:
    """Returns the configuration from values that :func:`to_json` returned. Missing fields get their defaults.

    Raises ArgumentError for an unknown field, or a value of the wrong type or out of range; messages start with
    `where`, such as the file's name.
    """
    try:
        values = _fields(values, RunConfig)
        if values.get("strategy") is not None:
            from ..strategies.kinds import STRATEGIES

            strategy = dict(values["strategy"]) if isinstance(values["strategy"], dict) else {}
            kind = strategy.pop("kind", None)
            check_choice("strategy.kind", kind, tuple(STRATEGIES))
            values["strategy"] = STRATEGIES[kind](**_fields(strategy, STRATEGIES[kind], "strategy."))
        return RunConfig(**values)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error


def read_config(path: str | os.PathLike[str]) -> RunConfig:
    """Reads the `config.json` of a run.

    Raises:
        FileError: The file cannot be read or is not JSON.
        ArgumentError: See :func:`from_json`.
    """
    try:
        values = read_json(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    return from_json(values, str(path))


def _fields(values: Any, cls: type, prefix: str = "") -> dict[str, Any]:
    """Returns the values, after checking their types against a dataclass's defaults; messages start with `prefix`."""
    if not isinstance(values, dict):
        raise ArgumentError(f"expected a JSON object, found {type(values).__name__}")
    defaults = {field.name: field.default for field in dataclasses.fields(cls) if field.name != "generator"}
    checked = {}
    for name, value in values.items():
        if name not in defaults:
            raise ArgumentError(f"{cls.__name__} has no field {describe(name)}")
        default = defaults[name]
        if name == "background":
            is_color = isinstance(value, list) and len(value) == 3 and None not in map(to_float, value)
            valid = value is None or is_color
            value = tuple(value) if value and valid else value
        elif isinstance(default, float):
            valid = to_float(value) is not None
        elif isinstance(default, tuple):
            valid = isinstance(value, list)
        else:
            valid = default is None or type(value) is type(default)
        if not valid:
            expected = "three numbers from 0 to 1" if name == "background" else f"a value like {default!r}"
            raise ArgumentError(f"{prefix}{name}: expected {expected}, found {describe(value)}")
        checked[name] = value
    return checked
