"""Random numbers of strategies, from a generator on any device."""

import math

import torch
from torch import Tensor

from ..errors import ArgumentError


def standard_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Samples a standard normal distribution, on the generator's device, and moves the result to that of `like`."""
    device = like.device if generator is None else generator.device
    pinned = like.is_cuda and device.type == "cpu"  # so that nothing waits for the copy
    samples = torch.randn(shape, generator=generator, device=device, dtype=like.dtype, pin_memory=pinned)
    return samples.to(like.device, non_blocking=pinned)


@torch.no_grad()
def _multinomial_sample(
    weights: Tensor, n: int, replacement: bool = True, *, generator: torch.Generator | None = None
) -> Tensor:
    """Samples n indices [n] int64 with probabilities proportional to finite weights [N] that are not negative.

    N is not limited. Raises `ArgumentError` if weights are invalid, or too few of them are positive.
    """
    weights = weights.flatten().double()
    n_positive = int((weights > 0).sum())
    n_max = n if replacement and n_positive else n_positive
    if not 0 <= n <= n_max:
        raise ArgumentError(f"n: expected 0 to {n_max} samples of {n_positive} positive weights, found {n}")
    if not weights.isfinite().all() or (weights < 0).any():
        raise ArgumentError("weights: expected finite values that are not negative; are there invalid opacities?")
    device = weights.device if generator is None else generator.device
    uniform = torch.rand(
        n if replacement else len(weights), generator=generator, device=device, dtype=torch.float64
    ).to(weights.device)  # fmt: skip
    if not replacement:
        # The n first arrivals of Poisson processes with these rates (Efraimidis and Spirakis, 2006).
        arrivals = -torch.log1p(-uniform) / weights
        return arrivals.nan_to_num(nan=math.inf).topk(n, largest=False).indices
    cumulative = weights.cumsum(0)
    return torch.searchsorted(cumulative, uniform * cumulative[-1:], right=True).clamp_max(len(weights) - 1)
