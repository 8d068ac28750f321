"""Fits Gaussians to pictures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..backend import Backend
from ..checks import ArgumentError, check_size
from ..optimizer import Adam
from ..scene.captures import View
from ..scene.gaussians import PARAMETERS, Gaussians
from ..strategies import DefaultStrategy, MCMCStrategy
from .losses import loss, psnr
from .rendering import Color, render_with_meta

RENAMED = {"log_scales": "scales", "opacity_logits": "opacities"}

CHECKED_EVERY = 100
"""Steps between looks at whether loss and Gaussians are numbers, each of which waits for a GPU."""


@dataclasses.dataclass(frozen=True)
class Config:
    """How to train; the rates are those of 3D Gaussian Splatting (Kerbl et al., 2023).

    Attributes:
        steps: Optimiser steps, one view each.
        seed: Of the order of views.
        means_rate: Of the centres, in units of the scene's extent; decays exponentially to ``means_decay`` of it.
        scales_rate, opacities_rate, quats_rate, sh0_rate, shN_rate: Of the raw parameters.
        sh_interval: Steps after which one more degree of spherical harmonics is used; a run too short for all degrees
            shares its steps out among them.
        background: RGB behind everything.
        backend: As in :func:`tsplat.rasterization`.
        strategy: When Gaussians are added, moved and removed; None to keep them as they are.
        opacity_weight, scale_weight: Of the mean opacity and the mean scale in the loss, which the mcmc preset needs.
    """

    steps: int = 7000
    seed: int = 0
    means_rate: float = 1.6e-4
    means_decay: float = 0.01
    scales_rate: float = 5e-3
    opacities_rate: float = 5e-2
    quats_rate: float = 1e-3
    sh0_rate: float = 2.5e-3
    shN_rate: float = 1.25e-4  # noqa: N815 - the field's name
    sh_interval: int = 1000
    background: Color = (0.0, 0.0, 0.0)
    backend: Backend = "auto"
    strategy: DefaultStrategy | MCMCStrategy | None = None
    opacity_weight: float = 0.0
    scale_weight: float = 0.0

    def __post_init__(self) -> None:
        check_size("steps", self.steps)
        check_size("sh_interval", self.sh_interval)


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is after a step.

    Attributes:
        step: Steps taken, from 1.
        steps: Steps there will be.
        loss, psnr: Of the step's view before the step; [] on the device, so that waiting for it is the reader's choice.
        gaussians: As they are now; they go on changing.
    """

    step: int
    steps: int
    loss: Tensor
    psnr: Tensor
    gaussians: Gaussians


OnStep = Callable[[Progress], bool | None]
"""Called after each step; training ends early where it returns True."""


class DivergedError(ArithmeticError):
    """The loss or a Gaussian is no longer a number."""


def fit(
    gaussians: Gaussians, views: Sequence[View], config: Config | None = None, on_step: OnStep | None = None
) -> Gaussians:
    """Minimises 0.8 L1 + 0.2 (1 - SSIM) over the views by Adam; a strategy, if any, adds and removes Gaussians.

    Views come in random permutations, each once before any comes again. On one device and PyTorch build, equal
    arguments give equal results with the host backend.

    Args:
        gaussians: Where to start; not changed.
        views: Pictures and cameras, on the Gaussians' device.

    Returns:
        The Gaussians after the last step, without gradients.

    Raises:
        ArgumentError: There are no Gaussians or no views; or as :func:`tsplat.rasterization`.
        DivergedError: The loss or a Gaussian is no longer a number.
    """
    config = config or Config()
    if not len(gaussians) or not views:
        raise ArgumentError(f"training: found {len(gaussians)} Gaussians and {len(views)} views; it needs some of both")
    params: dict[str, Tensor] = {
        RENAMED.get(name, name): torch.nn.Parameter(tensor.detach().clone())
        for name, tensor in gaussians.tensors().items()
    }
    extent = scene_extent(views)
    means_rate = config.means_rate * extent
    rates = {
        "means": means_rate,
        "scales": config.scales_rate,
        "quats": config.quats_rate,
        "opacities": config.opacities_rate,
        "sh0": config.sh0_rate,
        "shN": config.shN_rate,
    }
    # Epsilon as in the field: gradients of single Gaussians are far below Adam's usual 1e-8.
    optimizers: dict[str, torch.optim.Optimizer] = {
        name: Adam([tensor], lr=rates[name], eps=1e-15, backend=config.backend) for name, tensor in params.items()
    }
    strategy = config.strategy
    state: dict[str, Any] = {}
    if strategy is not None:
        strategy.check_sanity(params, optimizers)
        state = strategy.initialize_state(extent)
    sh_interval = min(config.sh_interval, math.ceil(config.steps / (gaussians.sh_degree + 1)))
    generator = torch.Generator().manual_seed(config.seed)
    order: list[int] = []
    for step in range(config.steps):
        order = order or torch.randperm(len(views), generator=generator).tolist()
        view = views[order.pop()]
        lr = means_rate * config.means_decay ** (step / config.steps)
        optimizers["means"].param_groups[0]["lr"] = lr
        moving = _gaussians(params, gaussians.antialiased)
        image, meta = render_with_meta(
            moving,
            view.viewmat,
            view.K,
            view.width,
            view.height,
            background=config.background,
            sh_degree=min(gaussians.sh_degree, step // sh_interval),
            backend=config.backend,
        )
        truth = view.pixels
        error = loss(image, truth)
        total = error
        if config.opacity_weight:
            total = total + config.opacity_weight * moving.opacities.mean()
        if config.scale_weight:
            total = total + config.scale_weight * moving.scales.mean()
        if strategy is not None:
            strategy.step_pre_backward(params, optimizers, state, step, meta)
        total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        if isinstance(strategy, MCMCStrategy):
            strategy.step_post_backward(params, optimizers, state, step, meta, lr=lr)
        elif strategy is not None:
            strategy.step_post_backward(params, optimizers, state, step, meta)
        still = _gaussians(params, gaussians.antialiased).map(lambda tensor: tensor.detach())
        image, error = image.detach(), error.detach()
        if step % CHECKED_EVERY == 0:
            # Gaussians that are not finite are not drawn, so that the loss alone would not tell.
            unsound = int((~still.sound).sum())
            if unsound or not math.isfinite(float(error)):
                raise DivergedError(
                    f"training: at step {step} the loss is {float(error):.4g} and {unsound} of {len(still)} Gaussians "
                    "are not finite; check the rates and the data"
                )
        if on_step is not None and on_step(
            Progress(step + 1, config.steps, error, psnr(image.clamp(0, 1), truth), still)
        ):
            break
    return still


def _gaussians(params: dict[str, Tensor], antialiased: bool) -> Gaussians:
    """The parameters, which strategies know by the field's names, as Gaussians."""
    return Gaussians(**{name: params[RENAMED.get(name, name)] for name in PARAMETERS}, antialiased=antialiased)


def scene_extent(views: Sequence[View]) -> float:
    """1.1 times how far the farthest camera is from the middle of all, world units; at least a hair above zero."""
    viewmats = torch.stack([view.viewmat for view in views]).double()
    centres = torch.linalg.inv(viewmats)[:, :3, 3]
    return max(1.1 * float((centres - centres.mean(0)).norm(dim=-1).amax()), 1e-6)
