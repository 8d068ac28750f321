"""The names of ``gsplat.strategy.ops``: operations on Gaussians and their optimizers, all in place."""

import math

import torch
from torch import Tensor

from .... import ArgumentError
from ....strategies.operations import (
    duplicate,
    inject_noise_to_position,
    relocate,
    remove,
    reset_opa,
    sample_add,
    split,
)
from ....strategies.rows import _update_param_with_optimizer
from ..utils import normalized_quat_to_rotmat

__all__ = [
    "_multinomial_sample",
    "_update_param_with_optimizer",
    "duplicate",
    "inject_noise_to_position",
    "normalized_quat_to_rotmat",
    "relocate",
    "remove",
    "reset_opa",
    "sample_add",
    "split",
]


@torch.no_grad()
def _multinomial_sample(weights: Tensor, n: int, replacement: bool = True) -> Tensor:
    """Samples n indices [n] int64 with probabilities proportional to finite, nonnegative weights [N].

    N is not limited. Raises `ArgumentError` if weights are invalid, or too few of them are positive.
    """
    weights = weights.flatten().double()
    n_positive = int((weights > 0).sum())
    n_max = n if replacement and n_positive else n_positive
    if not 0 <= n <= n_max:
        raise ArgumentError(f"n: expected 0 to {n_max} samples of {n_positive} positive weights, found {n}")
    if not weights.isfinite().all() or (weights < 0).any():
        raise ArgumentError("weights: expected finite, nonnegative values; some opacities are invalid")
    samples = torch.rand(n if replacement else len(weights), device=weights.device, dtype=torch.float64)
    if not replacement:
        # Choose the first n arrivals of Poisson processes with these rates (Efraimidis and Spirakis, 2006).
        arrivals = -torch.log1p(-samples) / weights
        return arrivals.nan_to_num(nan=math.inf).topk(n, largest=False).indices
    cumulative = weights.cumsum(0)
    return torch.searchsorted(cumulative, samples * cumulative[-1:], right=True).clamp_max(len(weights) - 1)
