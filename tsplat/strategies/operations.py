"""Operations on Gaussians and their optimizers: duplicate, split, remove, reset opacities.

Parameters are a dictionary of leaf tensors [N, ...]: means, scales (logarithms), quats, opacities (logits), and any
others with a row per Gaussian. Each has an optimizer of its own, with only this parameter, under the same name. The
optimizers' moments follow their Gaussians.
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

REQUIRED = ("means", "scales", "quats", "opacities")


def check_parameters(params: Parameters, optimizers: Optimizers) -> None:
    """Raises `ArgumentError` unless all required parameters exist, are trainable and have an optimizer of their own."""
    for name in REQUIRED:
        if name not in params:
            raise ArgumentError(f"params: expected {name} among {sorted(params)}")
    for name in params:
        if not params[name].requires_grad:
            raise ArgumentError(
                f"params: {name} does not require a gradient; make it a parameter or remove it from params"
            )
        if name not in optimizers:
            raise ArgumentError(f"optimizers: expected one for {name}, found {sorted(optimizers)}")
        groups = optimizers[name].param_groups
        if len(groups) != 1 or len(groups[0]["params"]) != 1 or groups[0]["params"][0] is not params[name]:
            raise ArgumentError(f"optimizers: the one for {name} must have exactly this parameter")


@torch.no_grad()
def update_parameters(
    params: Parameters,
    optimizers: Optimizers,
    new_parameter: Callable[[str, Tensor], Tensor],
    new_moment: Callable[[Tensor], Tensor],
    names: tuple[str, ...] | None = None,
) -> None:
    """Replaces parameters and their optimizers' moments.

    Args:
        new_parameter: Maps the name and the old value of a parameter to its new value.
        new_moment: Maps every tensor of the optimizer's state that has the parameter's shape to its successor.
        names: The parameters to replace; all if None.
    """
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


def _append_zeros(n: int) -> Callable[[Tensor], Tensor]:
    return lambda moment: torch.cat([moment, moment.new_zeros(n, *moment.shape[1:])])


def update_state(state: State, n: int, change: Callable[[Tensor], Tensor]) -> None:
    """Applies a function to the tensors of a strategy's state that have a row for each of n Gaussians."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == n:
            state[key] = change(value)


def duplicate(params: Parameters, optimizers: Optimizers, state: State, chosen: Tensor) -> None:
    """Appends a copy of each chosen Gaussian, [N] bool. The moments of copies are zero."""
    n = chosen.shape[0]
    update_parameters(params, optimizers, lambda _, p: torch.cat([p, p[chosen]]), _append_zeros(int(chosen.sum())))
    update_state(state, n, lambda value: torch.cat([value, value[chosen]]))


def remove(params: Parameters, optimizers: Optimizers, state: State, chosen: Tensor) -> None:
    """Removes the chosen Gaussians, [N] bool."""
    n = chosen.shape[0]
    update_parameters(params, optimizers, lambda _, p: p[~chosen], lambda moment: moment[~chosen])
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
    """Replaces chosen Gaussians by two smaller ones each, at positions sampled from the original; appends these.

    Args:
        chosen: [N] bool.
        revised_opacity: Set their opacity to 1 - sqrt(1 - o), so that two of them cover as much as one did ("Revising
            densification in Gaussian splatting", arXiv 2404.06109).
        generator: Random generator of the positions; PyTorch's global one if None.
    """
    n, k = chosen.shape[0], int(chosen.sum())
    scales = params["scales"].detach()[chosen].exp()
    offsets = rotate(
        params["quats"].detach()[chosen].repeat(2, 1),
        scales.repeat(2, 1) * standard_normal((2 * k, 3), scales, generator),
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

    def new_moment(moment: Tensor) -> Tensor:
        return torch.cat([moment[~chosen], moment.new_zeros(2 * k, *moment.shape[1:])])

    update_parameters(params, optimizers, halves, new_moment)
    update_state(state, n, lambda v: torch.cat([v[~chosen], v[chosen].repeat(2, *[1] * (v.dim() - 1))]))


@torch.no_grad()
def reset_opacities(params: Parameters, optimizers: Optimizers, opacity: float) -> None:
    """Limits opacities to a maximum and sets their moments to zero."""
    max_logit = math.log(opacity / (1 - opacity))
    update_parameters(params, optimizers, lambda _, p: p.clamp_max(max_logit), torch.zeros_like, names=("opacities",))


def rotate(quats: Tensor, vectors: Tensor) -> Tensor:
    """Rotates vectors [N, 3] by quaternions [N, 4] (wxyz, any norm)."""
    w, axis = (quats / quats.norm(dim=-1, keepdim=True)).split([1, 3], -1)
    across = 2 * axis.cross(vectors, -1)
    rotated: Tensor = vectors + w * across + axis.cross(across, -1)
    return rotated


def covariances(params: Parameters) -> Tensor:
    """Covariances of Gaussians in the world frame, without gradient. [N, 3, 3]"""
    found, _ = quat_scale_to_covar_preci(params["quats"].detach(), params["scales"].detach().exp(), compute_preci=False)
    assert found is not None
    return found


def standard_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Samples a standard normal distribution, on the generator's device, and moves the result to that of `like`."""
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, device=device, dtype=like.dtype).to(like.device)


def sample(weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Samples n indices with probabilities proportional to weights [N], with replacement. [n]

    Unlike :func:`torch.multinomial`, the number of weights is not limited.
    """
    cumulative = weights.double().cumsum(0)
    device = weights.device if generator is None else generator.device
    positions = (
        torch.rand(n, generator=generator, device=device, dtype=torch.float64).to(weights.device) * cumulative[-1]
    )
    return torch.searchsorted(cumulative, positions, right=True).clamp_max(weights.numel() - 1)
