"""The parameters that training optimizes: Gaussians and per-view corrections, each tensor with an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, UnsupportedError
from ..ops.adam import MOMENTS, Adam
from ..precision import fp32
from ..runtime.process_group import RankGroup
from ..runtime.spare_rows import with_spare_rows
from ..scene.cameras import Camera
from ..scene.capture.views import View
from ..scene.gaussians import FLAT, GSPLAT_NAMES, Gaussians
from .configuration import FROZEN_NAMES, Config
from .needles import limits_needles, shorten_needles
from .view_corrections import Lenses, identity_exposures, identity_motions, move_poses

DECAY_START = 0.8
"""Fraction of the run after which `rates_decay` lowers learning rates."""

WARM_UP_POWER = 3
"""Power of the step with which learning rates rise during warm-up. A linear rise would move the parameters of a trained
model too far in the first steps: its gradients are noise, but Adam's steps do not depend on their magnitude."""


def check_geometry(gaussians: Gaussians, views: Sequence[View], config: Config) -> None:
    """Raises ArgumentError for settings that do not apply to 2D or to 3D Gaussians, or to the cameras.

    Raises UnsupportedError for 3D Gaussians and normal priors if cameras are not pinholes without distortion, as
    normals are then computed from depth maps.
    """
    if config.lens_refinement and gaussians.surfels:
        raise ArgumentError("lens_refinement: only for 3D Gaussians; use lens_refinement=False")
    if config.lens_refinement and any(view.camera.is_panorama for view in views):
        raise ArgumentError("lens_refinement: panoramas have no lens to refine; use lens_refinement=False")
    with_normals = [view.camera for view in views if view.normal_prior is not None]
    if not gaussians.surfels:
        names = ["distortion_weight", *([] if with_normals else ["normal_weight"])]
        for name in (name for name in names if getattr(config, name)):
            raise ArgumentError(f"{name}: only for 2D Gaussians, found {getattr(config, name)}; use primitive 2dgs")
        if any(camera.model != "pinhole" or camera.distortion is not None for camera in with_normals):
            raise UnsupportedError("normal_prior: expected pinhole cameras without distortion; undistort photographs")
    elif config.antialiased:
        raise ArgumentError("antialiased: 2D Gaussians have no blur to compensate for; use antialiased=False")
    elif (
        (strategy := config.strategy) is not None
        and strategy.reads_rendering
        and (strategy.key_for_gradient == "means2d" or strategy.absgrad)
    ):
        raise ArgumentError(
            "strategy: 2D Gaussians are densified by gradients of their centers; use key_for_gradient='gradient_2dgs' "
            "and absgrad=False"
        )


class Parameters:
    """Gaussian parameters and per-view corrections, each with an Adam optimizer, under the names that strategies use.

    Strategies replace the tensors when they add or remove Gaussians, so callers must not keep references. The initial
    Gaussians, all or this rank's shard, are copied. `extent` is the scene's extent, in world units, to which learning
    rates of lengths are relative. `n_expected` is the number of rows to which the parameters may grow in place.

    Attributes:
        of_gaussians: The parameters with a row per Gaussian, by name. Strategies change this dictionary.
        optimizers: The optimizer of each parameter, by the parameter's name.
        frozen: Names of the parameters that are not updated.
        rows: Rows of the Gaussians that have gradients, [R] int64, see :func:`.selection.select`; None for all.
        lenses: The lenses that views share.
    """

    def __init__(
        self, gaussians: Gaussians, views: Sequence[View], extent: float, config: Config, n_expected: int = 0
    ) -> None:
        self.of_gaussians: dict[str, Tensor] = {}
        self._of_views: dict[str, Tensor] = {}
        self.optimizers: dict[str, Adam] = {}
        self.rows: Tensor | None = None
        self.row_gradients: dict[str, Tensor] = {}
        self._config = config
        self._extent = extent
        self._flags: dict[str, Any] = {
            "antialiased": config.antialiased or gaussians.antialiased,
            "surfels": gaussians.surfels,
        }
        moments_dtype = torch.bfloat16 if config.adam_moments == "bf16" else None
        for name, tensor in gaussians.tensors().items():
            self._add(self.of_gaussians, GSPLAT_NAMES[name], tensor, moments_dtype, n_expected)
        self.frozen = frozenset(name for group in config.freeze for name in FROZEN_NAMES[group])
        self._cameras = [view.camera for view in views]
        self.lenses = Lenses(self._cameras)
        if config.pose_refinement:
            rolls = any(camera.viewmat_end is not None for camera in self._cameras)
            self._add(self._of_views, "motions", identity_motions(len(views), gaussians.means, rolls=rolls))
        if config.lens_refinement:
            self._add(self._of_views, "lenses", gaussians.means.new_zeros(len(self.lenses), 4))
        if config.exposure:
            self._add(self._of_views, "exposures", identity_exposures(len(views), gaussians.means))

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters of Gaussians and views by name, in a new dictionary."""
        return self.of_gaussians | self._of_views

    @property
    def gaussian_names(self) -> tuple[str, ...]:
        """Names of the parameters with a row per Gaussian."""
        return tuple(self.of_gaussians)

    def _add(
        self,
        params: dict[str, Tensor],
        name: str,
        initial: Tensor,
        moments_dtype: torch.dtype | None = None,
        n_expected: int = 0,
    ) -> None:
        n = self._config.views_per_step
        parameter = torch.nn.Parameter(with_spare_rows(initial.detach(), n_expected))
        # The epsilon of 3DGS: gradients of single Gaussians are far below Adam's default of 1e-8.
        self.optimizers[name] = Adam(
            [parameter],
            lr=0.0,
            betas=(0.9**n, 0.999**n),
            eps=1e-15 / math.sqrt(n),
            backend=self._config.backend,
            moments_dtype=moments_dtype,
        )
        params[name] = parameter

    def gaussians(self, *, detached: bool = False, params: Mapping[str, Tensor] | None = None) -> Gaussians:
        """Returns the Gaussians of `params`, or of all parameters, with gradients unless they are detached."""
        params = self.params if params is None else params
        tensors: dict[str, Any] = {name: params[gsplat_name] for name, gsplat_name in GSPLAT_NAMES.items()}
        if detached:
            tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        return Gaussians(**tensors, **self._flags)

    def reset_third_scales(self) -> None:
        """Resets the third scale of 2D Gaussians, which updates change."""
        if self._flags["surfels"] and "scales" not in self.frozen:
            self.params["scales"].detach()[:, 2] = FLAT

    def limit_needles(self, step: int) -> None:
        """Shortens needles to `max_elongation`, after those steps that :func:`limits_needles` selects."""
        limit = self._config.max_elongation
        if limit and limits_needles(step, self._config.steps):
            shorten_needles(self.params["scales"].detach(), self.params["means"].detach(), self._cameras, limit)

    def for_strategy(self) -> tuple[dict[str, Any], dict[str, torch.optim.Optimizer]]:
        """Returns the Gaussians' parameters, to be changed, and their optimizers.

        No other dictionary has the parameters, so that one that is replaced is released at once.
        """
        return self.of_gaussians, {name: self.optimizers[name] for name in self.of_gaussians}

    def gradient(self, name: str) -> Tensor:
        """Returns the gradient of a parameter, contiguous; zeros if there is none yet."""
        parameter = self.params[name]
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.contiguous()
        parameter.grad = gradient
        return gradient

    def set_row_gradients(self, rows: Tensor, gradients: Mapping[str, Tensor | None]) -> None:
        """Sets the gradients of the Gaussians in `rows`, [R, ...]; all others are zero."""
        self.rows = rows
        self.row_gradients = {name: gradient for name, gradient in gradients.items() if gradient is not None}

    def gradients(self) -> dict[str, Tensor]:
        """Returns the existing gradients, of all Gaussians or of `rows`, in the order of the parameters."""
        found = {name: self.row_gradients.get(name, p.grad) for name, p in self.params.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def clear_gradients(self) -> None:
        """Drops the gradients of all parameters."""
        self.rows, self.row_gradients = None, {}
        for parameter in self.params.values():
            parameter.grad = None

    def camera_of(self, index: int, camera: Camera) -> Camera:
        """Returns the camera of a view with its learned motion and lens."""
        if "lenses" in self.params:
            camera = self.lenses.apply(camera, self.params["lenses"])
        if "motions" in self.params:
            motions = self.params["motions"][index].view(-1, 6)
            camera = move_poses(camera, torch.cat([motions[:, :3], self._extent * motions[:, 3:]], 1))
        return camera

    @torch.no_grad()
    def center_exposures(self) -> None:
        """Shifts exposures so that their mean is the identity, as held-out views are rendered without exposures."""
        if "exposures" in self.params:
            exposures = self.params["exposures"]
            exposures -= exposures.mean(0) - torch.eye(3, 4, dtype=torch.float32, device="cpu").to(exposures)

    def set_rates(self, step: int) -> float:
        """Sets all learning rates for a step and returns that of the means, in world units."""
        config = self._config
        progress = step / config.steps
        decay: float = config.means_decay**progress
        late: float = config.rates_decay ** (max(0.0, progress - DECAY_START) / (1 - DECAY_START))
        rates = {
            "means": config.means_rate * self._extent * decay,
            "scales": config.scales_rate * late,
            "quats": config.quats_rate * late,
            "opacities": config.opacities_rate * late,
            "sh0": config.sh0_rate * late,
            "shN": config.shN_rate * late,
            "motions": config.pose_rate * decay,
            "lenses": config.lens_rate * decay,
            "exposures": config.exposure_rate * decay,
        }
        warmth = min(1.0, (step + 1) / max(config.warm_up, 1))
        factor = math.sqrt(config.views_per_step) * warmth**WARM_UP_POWER
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = rates[name] * factor
        return rates["means"] * factor

    def state(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Returns the parameters and their moments as ``params/NAME`` and ``adam/NAME/MOMENT``, and Adam's step
        counts."""
        tensors = {f"params/{name}": parameter.detach() for name, parameter in self.params.items()}
        adam_steps = {}
        for name, optimizer in self.optimizers.items():
            state = optimizer.state.get(self.params[name])
            if state:
                tensors |= {f"adam/{name}/{moment}": state[moment] for moment in MOMENTS}
                adam_steps[name] = int(state["step"])
        return tensors, adam_steps

    def restore(self, tensors: dict[str, Tensor], adam_steps: dict[str, int]) -> None:
        """Continues from a state, without copying its tensors. Raises ArgumentError if their shapes are inconsistent.

        Moments are converted to the precision `adam_moments`.
        """
        for name, optimizer in self.optimizers.items():
            parameter = torch.nn.Parameter(tensors[f"params/{name}"])
            (self.of_gaussians if name in self.of_gaussians else self._of_views)[name] = parameter
            optimizer.param_groups[0]["params"] = [parameter]
            optimizer.state.clear()
            if name not in adam_steps:
                continue
            dtype = optimizer.moments_dtype or parameter.dtype
            moments = {moment: tensors[f"adam/{name}/{moment}"].to(dtype) for moment in MOMENTS}
            for tensor in moments.values():
                if tensor.shape != parameter.shape:
                    raise ArgumentError(
                        f"checkpoint: {name} has shape {list(parameter.shape)}, its moments {list(tensor.shape)}"
                    )
            step = fp32(adam_steps[name])
            optimizer.state[parameter] = {"step": step, **moments}
        self.gaussians()  # checks that the shapes agree

    def check_names(self, tensors: dict[str, Tensor]) -> None:
        """Raises ArgumentError unless a state has exactly these parameters."""
        names = {name.removeprefix("params/") for name in tensors if name.startswith("params/")}
        if names != set(self.params):
            raise ArgumentError(
                f"checkpoint: contains the parameters {sorted(names)}, but the configuration requires "
                f"{sorted(self.params)}; resume with the configuration that it was made with"
            )


def rows_of_rank(config: Config, ranks: RankGroup) -> Callable[[int], slice]:
    """Returns a function that maps the number of Gaussians to the rows that this rank holds: its shard, or all."""
    return ranks.shard_rows if config.parallel == "shard" else lambda n: slice(0, n)


def scene_tensors(gaussians: Gaussians) -> dict[str, Tensor]:
    """Returns the tensors of Gaussians under their names in :meth:`Parameters.state`."""
    return {f"params/{GSPLAT_NAMES[name]}": tensor for name, tensor in gaussians.tensors().items()}
