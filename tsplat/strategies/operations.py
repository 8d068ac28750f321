"""What can be done to a set of Gaussians with its optimizers: copies, splits, removals, with every row's moments.

Parameters are a dictionary of leaves [N, ...]: means, scales (logarithms), quats, opacities (logits), and any others,
whose rows go along. Each has an optimizer of its own, of one parameter, under the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..stages.projection import quat_scale_to_covar_preci

Parameters = MutableMapping[str, Any]
Optimizers = MutableMapping[str, torch.optim.Optimizer]
State = dict[str, Any]

NEEDED = ("means", "scales", "quats", "opacities")


def check_parameters(params: Parameters, optimizers: Optimizers) -> None:
    """Raises `ArgumentError` unless the parameters needed are there, trainable, and have an optimizer of their own."""
    for name in NEEDED:
        if name not in params:
            raise ArgumentError(f"params: expected {name} among {sorted(params)}")
    for name in params:
        if not params[name].requires_grad:
            raise ArgumentError(
                f"params: {name} does not require a gradient; make it a parameter, or keep it elsewhere"
            )
        if name not in optimizers:
            raise ArgumentError(f"optimizers: expected one for {name}, found {sorted(optimizers)}")
        groups = optimizers[name].param_groups
        if len(groups) != 1 or len(groups[0]["params"]) != 1 or groups[0]["params"][0] is not params[name]:
            raise ArgumentError(f"optimizers: the one for {name} must hold that parameter and no other")


@torch.no_grad()
def update(
    params: Parameters,
    optimizers: Optimizers,
    new_parameter: Callable[[str, Tensor], Tensor],
    new_moment: Callable[[Tensor], Tensor],
    names: tuple[str, ...] | None = None,
) -> None:
    """Replaces parameters, and in their optimizers' states every tensor that has a row for each Gaussian."""
    for name in names or tuple(params):
        old = params[name]
        new = torch.nn.Parameter(new_parameter(name, old.detach()).contiguous(), requires_grad=True)
        optimizer = optimizers[name]
        state = optimizer.state.pop(old, {})
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == old.shape:
                state[key] = new_moment(value)
        optimizer.param_groups[0]["params"] = [new]
        if state:
            optimizer.state[new] = state
        params[name] = new


def _with_zeros(n: int) -> Callable[[Tensor], Tensor]:
    return lambda moment: torch.cat([moment, moment.new_zeros(n, *moment.shape[1:])])


def update_state(state: State, n: int, change: Callable[[Tensor], Tensor]) -> None:
    """Changes a strategy's own figures, in place, where they have a row for each of n Gaussians."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == n:
            state[key] = change(value)


def duplicate(params: Parameters, optimizers: Optimizers, state: State, chosen: Tensor) -> None:
    """Adds a copy of each chosen Gaussian, [N] bool, behind all; copies start with moments of zero."""
    n = chosen.shape[0]
    update(params, optimizers, lambda _, p: torch.cat([p, p[chosen]]), _with_zeros(int(chosen.sum())))
    update_state(state, n, lambda value: torch.cat([value, value[chosen]]))


def remove(params: Parameters, optimizers: Optimizers, state: State, chosen: Tensor) -> None:
    """Removes the chosen Gaussians, [N] bool."""
    n = chosen.shape[0]
    update(params, optimizers, lambda _, p: p[~chosen], lambda moment: moment[~chosen])
    update_state(state, n, lambda value: value[~chosen])


@torch.no_grad()
def split(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    chosen: Tensor,
    *,
    revised_opacity: bool = False,
    generator: torch.Generator | None = None,
) -> None:
    """Replaces each chosen Gaussian, [N] bool, by two drawn from it that are 1.6 times smaller, behind all others.

    `revised_opacity` gives them the opacity 1 - sqrt(1 - o), of which two cover like one ("Revising densification in
    Gaussian splatting", arXiv 2404.06109).
    """
    n, k = chosen.shape[0], int(chosen.sum())
    scales = params["scales"].detach()[chosen].exp()
    offsets = rotate(
        params["quats"].detach()[chosen].repeat(2, 1), scales.repeat(2, 1) * normal((2 * k, 3), scales, generator)
    )

    def halves(name: str, p: Tensor) -> Tensor:
        both = p[chosen].repeat(2, *[1] * (p.dim() - 1))
        if name == "means":
            both = both + offsets
        elif name == "scales":
            both = both - math.log(1.6)
        elif name == "opacities" and revised_opacity:
            both = (1 - (1 - both.sigmoid()).sqrt()).logit()
        return torch.cat([p[~chosen], both])

    def kept(moment: Tensor) -> Tensor:
        return torch.cat([moment[~chosen], moment.new_zeros(2 * k, *moment.shape[1:])])

    update(params, optimizers, halves, kept)
    update_state(state, n, lambda v: torch.cat([v[~chosen], v[chosen].repeat(2, *[1] * (v.dim() - 1))]))


@torch.no_grad()
def reset_opacities(params: Parameters, optimizers: Optimizers, opacity: float) -> None:
    """Lowers opacities to at most this, and forgets their moments."""
    most = math.log(opacity / (1 - opacity))
    update(params, optimizers, lambda _, p: p.clamp_max(most), torch.zeros_like, names=("opacities",))


def rotate(quats: Tensor, vectors: Tensor) -> Tensor:
    """Rotates vectors [N, 3] by quaternions [N, 4] wxyz of any norm."""
    w, axis = (quats / quats.norm(dim=-1, keepdim=True)).split([1, 3], -1)
    across = 2 * axis.cross(vectors, -1)
    rotated: Tensor = vectors + w * across + axis.cross(across, -1)
    return rotated


def covariances(params: Parameters) -> Tensor:
    """[N, 3, 3], without gradient."""
    found, _ = quat_scale_to_covar_preci(params["quats"].detach(), params["scales"].detach().exp(), compute_preci=False)
    assert found is not None
    return found


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers; drawn where the generator lives."""
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, device=device, dtype=like.dtype).to(like.device)


def draw(weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n ids [n] drawn with probabilities proportional to weights [N], with replacement; of any number of weights."""
    cumulative = weights.double().cumsum(0)
    device = weights.device if generator is None else generator.device
    at = torch.rand(n, generator=generator, device=device, dtype=torch.float64).to(weights.device) * cumulative[-1]
    return torch.searchsorted(cumulative, at, right=True).clamp_max(weights.numel() - 1)
