"""The optimizer step: sums, unscales, checks and clips gradients, and updates all Gaussians or the visible ones."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendError
from ..ops.adam import Adam, RepeatedStep, step_all
from ..runtime.process_group import RankGroup
from ..scene.cameras import Camera, project_points
from ..scene.capture.views import View
from .configuration import Precision, Switch
from .observers import DivergedError
from .parameters import Parameters

CHECK_INTERVAL = 100
"""Number of steps between checks for non-finite values, each of which synchronizes with a GPU."""

SKIPPED_MAX = 10
"""Number of consecutive steps with non-finite gradients after which training has diverged."""

VISIBLE_SHARE_MAX = 1 / 3
"""Mean fraction of the Gaussians that a view shows, below which "auto" updates only the visible Gaussians of a step."""

N_CENTERS, N_VIEWS = 5000, 100
"""Approximate numbers of centers and views from which :func:`visible_share` is estimated."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(precision: Precision, device: torch.device) -> torch.dtype | None:
    """Returns the dtype for autocast; None for fp32. "auto" is bf16 on GPUs that support it, and fp32 elsewhere.

    The rasterizer, the loss and Adam always compute in fp32. Raises BackendError for a device without autocast.
    """
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else None
    if precision == "fp32":
        return None
    if not torch.amp.is_autocast_available(device.type):
        raise BackendError(f"precision: {precision} needs autocast, which {device.type} does not support; use fp32")
    return DTYPES[precision]


def resolve_visible_adam(visible_adam: Switch, means: Tensor, views: Sequence[View], ranks: RankGroup) -> Switch:
    """Returns "on" or "off": whether a step updates only the Gaussians that its views show.

    For ``"auto"``, which is a collective call, this rank's initial centers, `means` [N, 3] in the world frame, are
    projected to training views.
    """
    if visible_adam != "auto":
        return visible_adam
    return "on" if visible_share(means, [view.camera for view in views], ranks) < VISIBLE_SHARE_MAX else "off"


def visible_share(means: Tensor, cameras: Sequence[Camera], ranks: RankGroup) -> float:
    """Estimates the mean fraction of the centers [N, 3] of all ranks that are inside the image of a camera.

    A sample of centers and of cameras is used. Centers are projected without the distortion of lenses, by the first
    pose of a rolling shutter.
    """
    centers = means.detach()[:: max(1, len(means) // N_CENTERS)]
    cameras = cameras[:: max(1, len(cameras) // N_VIEWS)]
    shown = torch.stack([project_points(camera, centers)[3].sum() for camera in cameras]).sum()
    shown, total = ranks.all_reduce(torch.stack([shown, shown.new_tensor(len(centers) * len(cameras))])).tolist()
    return float(shown / total)


class GradientStep:
    """Updates parameters with their accumulated gradients.

    Gradients of Gaussians are summed over ranks, unless Gaussians are `sharded`, and limited to the norm `clip`, unless
    it is 0. With `visible_only`, Gaussians whose means have a zero gradient are not updated. Autocast to fp16 enables
    gradient scaling.

    Attributes:
        scaler: Gradient scaler, which is disabled unless autocast is fp16.
        n_skipped: Number of consecutive steps that were skipped because gradients were not finite.
    """

    def __init__(
        self,
        parameters: Parameters,
        ranks: RankGroup,
        *,
        sharded: bool,
        clip: float,
        visible_only: bool,
        autocast: torch.dtype | None,
    ) -> None:
        self._device = parameters.params["means"].device
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=autocast is torch.float16)
        self.n_skipped = 0
        self._parameters = parameters
        self._ranks = ranks
        self._sharded = sharded
        self._clip = clip
        self._visible_only = visible_only

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients of a loss and accumulates them on the parameters."""
        # Runs in this thread, as switching to autograd's thread takes 0.6 ms on a GPU.
        with torch.autograd.set_multithreading_enabled(False):
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def sum_and_check(self, step: int) -> str | None:
        """Sums gradients over ranks. If one is not finite, returns a warning, and the caller skips the update.

        Raises DivergedError after SKIPPED_MAX consecutive warnings.
        """
        self._sum_over_ranks()
        if not self.scaler.is_enabled():
            return self._check_finite(step) if self._device.type == "cpu" or step % CHECK_INTERVAL == 0 else None
        # The scaler finds non-finite gradients and skips the update itself.
        for optimizer in self._parameters.optimizers.values():
            self.scaler.unscale_(optimizer)
        return None

    def update(self) -> None:
        """Updates the parameters with the gradients that :meth:`sum_and_check` has checked."""
        self.clip()
        visible = self.visible()
        for group, masked in self.groups():
            rows = visible if masked else None
            if self.scaler.is_enabled():
                for optimizer in group:
                    self.scaler.step(optimizer, visible=rows)
            elif self._parameters.rows is not None:
                step = self.repeated(group)
                step.advance()
                step.launch(rows)
            else:
                step_all(group, visible=rows)
        self.scaler.update()

    def groups(self) -> list[tuple[list[Adam], bool]]:
        """Returns groups of optimizers, each with whether it updates only the rows of :meth:`visible`."""
        parameters = self._parameters
        optimizers = {name: adam for name, adam in parameters.optimizers.items() if name not in parameters.frozen}
        if not self._visible_only:
            return [([*optimizers.values()], False)]
        of_gaussians = [adam for name, adam in optimizers.items() if name in parameters.gaussian_names]
        of_views = [adam for name, adam in optimizers.items() if name not in parameters.gaussian_names]
        return [(of_gaussians, True), (of_views, False)] if of_views else [(of_gaussians, True)]

    def repeated(self, group: Sequence[Adam]) -> RepeatedStep:
        """Returns a repeatable step of these optimizers with the current gradients."""
        parameters = self._parameters
        if parameters.rows is None:
            return RepeatedStep(group)
        gradients = {parameters.params[name]: gradient for name, gradient in parameters.row_gradients.items()}
        return RepeatedStep(group, parameters.rows, gradients, updates_all=not self._visible_only)

    def visible(self) -> Tensor | None:
        """Returns which rows of the gradients to apply, [N] or [R] bool; None for all."""
        gradient = self._parameters.gradients().get("means")
        return gradient.ne(0).any(-1) if self._visible_only and gradient is not None else None

    def _sum_over_ranks(self) -> None:
        if self._ranks.world_size == 1:
            return
        for name, parameter in self._parameters.params.items():
            if name in self._parameters.row_gradients:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if not self._is_sharded(name):
                parameter.grad = self._ranks.all_reduce(parameter.grad)

    def _is_sharded(self, name: str) -> bool:
        return self._sharded and name in self._parameters.gaussian_names

    def _check_finite(self, step: int) -> str | None:
        gradients = self._parameters.gradients()
        norms = torch.stack(torch._foreach_norm(list(gradients.values())))
        flags = self._ranks.any([not math.isfinite(norm) for norm in norms.tolist()], self._device)
        names = ", ".join(name for name, flag in zip(gradients, flags, strict=True) if flag)
        self.n_skipped = self.n_skipped + 1 if names else 0
        if self.n_skipped >= SKIPPED_MAX:
            raise DivergedError(
                f"training: the gradients of {names} were not finite in {SKIPPED_MAX} consecutive steps, the last at "
                f"step {step}; check the learning rates and the data"
            )
        return f"step {step} was skipped, as the gradients of {names} are not finite" if names else None

    def clip(self) -> None:
        """Limits the norm of the gradient of each parameter to `clip`, unless it is 0."""
        if not self._clip:
            return
        for name in self._parameters.optimizers:
            gradient = self._parameters.params[name].grad
            if gradient is None:
                continue
            squared_norm = gradient.square().sum()
            if self._is_sharded(name):
                squared_norm = self._ranks.all_reduce(squared_norm)
            gradient *= (self._clip / squared_norm.sqrt().clamp_min(1e-30)).clamp_max(1)

    def state(self) -> dict[str, Any]:
        """Returns the values that :meth:`restore` takes, as JSON."""
        return {"scaler": self.scaler.state_dict(), "skipped": self.n_skipped}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state."""
        # An error may have interrupted a step between unscaling and the update, so a new scaler is made.
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=self.scaler.is_enabled())
        self.scaler.load_state_dict(state["scaler"])
        self.n_skipped = state["skipped"]
