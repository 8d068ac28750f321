"""Counter-based random numbers: each value is a function of a key and a Gaussian's index.

The key is drawn from a generator, so ranks with equal generators agree on all values, independent of the sharding
(docs/decisions/0037).
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..runtime.process_group import RankGroup
from ..runtime.tracing import numpy_step
from .sharding import count, select_smallest

STEP, MIX = 0x9E3779B97F4A7C15 - 2**64, ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
"""Increment, and shifts with factors, of SplitMix64 (Steele et al., 2014), as signed integers."""

OFFSETS = torch.arange(2, dtype=torch.int64, device="cpu")
"""Offsets that are added to twice a counter, to get two random numbers per counter."""

BLOCK = 2**15
"""Number of samples that are drawn at a time, so that they fit into the cache of a CPU."""

WEIGHT_BITS = 32
"""Number of fractional bits of weights, which are summed as integers so that sums do not depend on the sharding."""


def draw_key(generator: torch.Generator | None) -> int:
    """Draws a random key from a generator, by default PyTorch's global CPU generator."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device))


def random_bits(key: Any, counters: Any) -> Any:
    """Returns 64 random bits for each counter, [...] int64 -> [...] int64; counters are a tensor or an array."""
    bits = counters * STEP + key
    for shift, factor in MIX:
        bits = bits ^ _shifted(bits, shift)
        bits *= factor
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Any, n: int) -> Any:
    """Shifts signed integers to the right, filling with zeros."""
    shifted = bits >> n
    shifted &= 2 ** (64 - n) - 1
    return shifted


def uniform(key: int, counters: Tensor) -> Tensor:
    """Returns a uniform random number in [0, 1) for each counter, fp64."""
    bits: Tensor = _shifted(random_bits(key, counters), 11)
    return bits.double().mul_(2.0**-53)


def standard_normal(key: int | Tensor, counters: Tensor, like: Tensor, columns: int = 3) -> Tensor:
    """Returns samples of a standard normal distribution for each counter, [n] int64 -> [n, columns], columns <= 4.

    The dtype is that of `like`. Samples are computed by the Box-Muller transform, from 31 and 32 random bits.
    """
    if counters.device.type == "cpu" and len(counters) > BLOCK:  # the cache is five times faster than memory
        return torch.cat([standard_normal(key, block, like, columns) for block in torch.split(counters, BLOCK)])
    if counters.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        key = key if isinstance(key, Tensor) else torch.tensor(key, dtype=torch.int64, device="cpu")
        radii, angles = _polar_of_arrays(key, counters, OFFSETS, like.detach())
    else:
        radii, angles = _polar(key, counters, OFFSETS.to(counters.device), like)
    radii.log_().mul_(-2).sqrt_()
    return torch.cat([radii * angles.cos(), radii.mul_(angles.sin_())], 1)[:, :columns]


def _polar(key: Any, counters: Any, offsets: Any, like: Any) -> tuple[Any, Any]:
    """Returns uniform numbers in (0, 1] and angles in radians, two per counter, [n, 2] with the dtype of `like`."""
    bits = random_bits(key, 2 * counters[:, None] + offsets)
    high, low = _shifted(bits, 33) + 1, bits & 2**32 - 1
    if isinstance(like, Tensor):
        radii, angles = high.to(like.dtype), low.to(like.dtype)
    else:
        radii, angles = high.astype(like.dtype), low.astype(like.dtype)
    radii *= 2.0**-31
    angles *= 2 * math.pi * 2.0**-32
    return radii, angles


_polar_of_arrays = numpy_step(_polar)
""":func:`_polar` for tensors on a CPU, computed by NumPy, which takes a tenth of the time for few numbers."""


def row_indices(n: int, first: int, like: Tensor) -> Tensor:
    """Returns n consecutive indices starting at `first`, on the device of `like`. [n] int64"""
    return torch.arange(first, first + n, device=like.device)


def sample_rows(weights: Tensor, n: int, generator: torch.Generator | None, ranks: RankGroup | None) -> Tensor:
    """Samples n of all ranks' Gaussians with replacement, with probabilities proportional to weights from 0 to 1.

    Returns the ascending indices [k] of this rank's samples. `weights` are the finite weights of this rank's Gaussians.
    Raises ArgumentError if no weight of any rank is positive.
    """
    ends = (weights.double() * 2.0**WEIGHT_BITS).long().cumsum(0)
    own_total = int(ends[-1]) if len(ends) else 0
    before, total = count(ranks, own_total)
    key = draw_key(generator)
    if n and not total:
        raise ArgumentError(f"n: expected 0 samples, as no weight is positive, found {n}")
    counts = torch.zeros_like(ends)
    for first in range(0, n, BLOCK):
        samples = uniform(key, row_indices(min(BLOCK, n - first), first, ends))
        positions = (samples * total).long().clamp_max(total - 1) - before
        positions = positions[(positions >= 0) & (positions < own_total)]
        counts += torch.bincount(torch.searchsorted(ends, positions, right=True), minlength=len(ends))
    return torch.repeat_interleave(counts)


def choose_rows(
    weights: Tensor, n: int, generator: torch.Generator | None, first: int, ranks: RankGroup | None
) -> Tensor:
    """Samples n of all ranks' Gaussians without replacement. Returns the ascending indices [k] of this rank's samples.

    The samples are the first n arrivals of Poisson processes whose rates are the weights (Efraimidis and Spirakis,
    2006). `weights` are the finite weights of this rank's Gaussians, and `first` is the index of the first of them; at
    least n weights of all ranks must be positive.
    """
    samples = uniform(draw_key(generator), row_indices(len(weights), first, weights))
    arrivals = -torch.log1p(-samples) / weights.double()
    positive = weights > 0
    # Bits of nonnegative floats have the order of the floats.
    keys = arrivals.masked_fill(~positive, 0.0).abs().view(torch.int64)
    return select_smallest(keys, positive.long(), n, ranks).nonzero().squeeze(1)
