"""The names of ``gsplat.strategy.ops``: operations on Gaussians and their optimizers, all in place.

Parameters are a dictionary of leaf tensors [N, ...]: means, scales (logarithms), quats, opacities (logits), and any
others with a row per Gaussian. Optimizers have the same names. ``state`` is the strategy's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....strategies import operations
from ....strategies.operations import Optimizers, Parameters
from .._rotations import normalized_quat_to_rotmat
from ..relocation import compute_relocation

__all__ = [
    "duplicate",
    "inject_noise_to_position",
    "normalized_quat_to_rotmat",
    "relocate",
    "remove",
    "reset_opa",
    "sample_add",
    "split",
]

State = dict[str, Any]
OPACITY_MAX = 1 - torch.finfo(torch.float32).eps


def duplicate(params: Parameters, optimizers: Optimizers, state: State, mask: Tensor) -> None:
    """Appends a copy of each chosen Gaussian, ``mask`` [N] bool."""
    operations.duplicate(params, optimizers, state, mask)


def split(
    params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, revised_opacity: bool = False
) -> None:
    """Replaces chosen Gaussians, ``mask`` [N] bool, by two smaller ones each; see `tsplat.strategies.operations`."""
    operations.split(params, optimizers, state, mask, revised_opacity=revised_opacity)


def remove(params: Parameters, optimizers: Optimizers, state: State, mask: Tensor) -> None:
    """Removes the chosen Gaussians, ``mask`` [N] bool."""
    operations.remove(params, optimizers, state, mask)


def reset_opa(params: Parameters, optimizers: Optimizers, state: State, value: float) -> None:
    """Limits opacities to a maximum, after sigmoid, and sets their moments to zero."""
    operations.reset_opacities(params, optimizers, value)


@torch.no_grad()
def relocate(
    params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, binoms: Tensor, min_opacity: float = 0.005
) -> None:
    """Moves dead Gaussians to live ones, which are sampled by opacity.

    Moments and state of the sampled Gaussians are set to zero.

    Args:
        mask: [N] bool, the dead Gaussians.
        binoms: As for `compute_relocation`.
        min_opacity: Lower bound of the new opacities.
    """
    alive = (~mask).nonzero().squeeze(1)
    opacities = params["opacities"].detach().sigmoid().flatten()
    chosen = alive[_multinomial_sample(opacities[alive], int(mask.sum()))]
    shared = _shared(params, chosen, binoms, min_opacity)

    def relocated(name: str, p: Tensor) -> Tensor:
        p = p.clone()
        p[chosen] = shared.get(name, p[chosen])
        p[mask] = p[chosen]
        return p

    def cleared(moment: Tensor) -> Tensor:
        moment[chosen] = 0
        return moment

    operations.update_parameters(params, optimizers, relocated, cleared)
    operations.update_state(state, mask.shape[0], cleared)


@torch.no_grad()
def sample_add(
    params: Parameters, optimizers: Optimizers, state: State, n: int, binoms: Tensor, min_opacity: float = 0.005
) -> None:
    """Appends copies of n Gaussians, which are sampled by opacity. Their moments and state are zero.

    Args:
        n: Number of copies.
        binoms: As for `compute_relocation`.
        min_opacity: Lower bound of the new opacities.
    """
    n_before = len(params["means"])
    chosen = _multinomial_sample(params["opacities"].detach().sigmoid().flatten(), n)
    shared = _shared(params, chosen, binoms, min_opacity)

    def grown(name: str, p: Tensor) -> Tensor:
        p = p.clone()
        p[chosen] = shared.get(name, p[chosen])
        return torch.cat([p, p[chosen]])

    def with_zeros(moment: Tensor) -> Tensor:
        return torch.cat([moment, moment.new_zeros(n, *moment.shape[1:])])

    operations.update_parameters(params, optimizers, grown, with_zeros)
    operations.update_state(state, n_before, with_zeros)


def _shared(params: Parameters, chosen: Tensor, binoms: Tensor, min_opacity: float) -> dict[str, Tensor]:
    """New logits and log scales of Gaussians chosen k times, of which there will be k + 1."""
    copies = torch.bincount(chosen, minlength=len(params["means"]))[chosen] + 1
    opacities, scales = compute_relocation(
        params["opacities"].detach()[chosen].sigmoid(), params["scales"].detach()[chosen].exp(), copies, binoms
    )
    return {"opacities": opacities.clamp(min_opacity, OPACITY_MAX).logit(), "scales": scales.log()}


@torch.no_grad()
def inject_noise_to_position(params: Parameters, optimizers: Optimizers, state: State, scaler: float) -> None:
    """Adds noise with each Gaussian's covariance to the means of those that are nearly transparent.

    Args:
        scaler: Scale of the noise, in world units.
    """
    means, opacities = params["means"], params["opacities"].detach().sigmoid().flatten()
    gate = torch.sigmoid(100 * ((1 - opacities) - 0.995))
    noise = torch.randn_like(means) * (gate * scaler)[:, None]
    means.data += (operations.covariances(params).to(noise) @ noise[..., None])[..., 0]


@torch.no_grad()
def _update_param_with_optimizer(
    param_fn: Callable[[str, Tensor], Tensor],
    optimizer_fn: Callable[[str, Tensor], Tensor],
    params: Parameters,
    optimizers: Optimizers,
    names: Sequence[str] | None = None,
) -> None:
    """Replaces parameters and the tensors in their optimizers' states.

    Args:
        param_fn: Maps the name and the old value of a parameter to the new parameter.
        optimizer_fn: Maps the name and the old value of a tensor in the state, other than ``step``, to the new value.
        names: The parameters to replace; all if None.
    """
    for name in tuple(params if names is None else names):
        old, optimizer = params[name], optimizers.get(name)
        new = torch.nn.Parameter(param_fn(name, old.detach().clone()).detach(), requires_grad=old.requires_grad)
        if optimizer is not None:
            state = optimizer.state.pop(old, {})
            changed = {key: v if key == "step" else optimizer_fn(key, v) for key, v in state.items()}
            optimizer.param_groups[0]["params"] = [new]
            if changed:
                optimizer.state[new] = changed
        params[name] = new


def _multinomial_sample(weights: Tensor, n: int, replacement: bool = True) -> Tensor:
    """Samples n indices with probabilities proportional to weights [N]. Without replacement, N is at most 2^24."""
    if replacement:
        return operations.sample(weights, n, None)
    return torch.multinomial(weights, n, replacement=False)
