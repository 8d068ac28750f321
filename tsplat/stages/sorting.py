"""Stable sorts that are fast on a CPU, too.

On a CPU, PyTorch uses a parallel radix sort for at least 32,768 integers, and otherwise a comparison sort, which takes
several times as long. NumPy uses a radix sort, in one thread, for any number of 16-bit integers. So NumPy sorts
fewer 32-bit values, by their low, then by their high 16 bits. Up to 1000 values are sorted by comparison. The order is
that of PyTorch's stable sort.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..runtime.tracing import numpy_step

RADIX_MIN = 32_768
"""Number of integers from which PyTorch uses a radix sort."""

SORTED_BY_NUMPY = {torch.float64, torch.float32, torch.int64, torch.int32, torch.int16}

COMPARED_MAX = 1000
"""Number of values up to which a comparison sort is the fastest."""


def stable_sort(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts values [n] stably. They must not contain NaN or require a gradient.

    Returns the sorted values and their indices [n], int32 if NumPy sorts (on a CPU), otherwise int64.
    """
    if values.device.type != "cpu" or values.dtype not in SORTED_BY_NUMPY:
        return values.sort(stable=True)
    values_and_indices: tuple[Tensor, Tensor] = _sort(values)
    return values_and_indices


def stable_argsort(values: Tensor) -> Tensor:
    """Returns the indices [n] int64 that sort values [n] stably. Values must not contain NaN."""
    if values.device.type != "cpu" or values.dtype not in SORTED_BY_NUMPY:
        return values.argsort(stable=True)
    indices: Tensor = _argsort(values.detach())
    return indices


def _argsort_array(keys: np.ndarray) -> np.ndarray:
    """Implements :func:`stable_argsort` with NumPy, by the fastest method for the size and dtype."""
    if keys.size <= COMPARED_MAX or keys.dtype not in (np.float32, np.int32, np.int16):
        return keys.argsort(kind="stable")
    if keys.dtype == np.float32:
        keys = _ordered_bits(keys)
    if keys.size >= RADIX_MIN and torch.get_num_threads() > 1:
        return torch.from_numpy(keys).argsort(stable=True).numpy()
    if keys.dtype == np.int16:
        return keys.argsort(kind="stable")
    # Radix sort by the low, then by the high 16 bits.
    by_low = keys.astype(np.uint16).argsort(kind="stable")
    high = (keys >> 16).astype(np.int16)
    return by_low[high[by_low].argsort(kind="stable")]


@numpy_step
def _sort(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    indices = _argsort_array(keys)
    return keys.take(indices), indices.astype(np.int32)


_argsort = numpy_step(_argsort_array)


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """Maps fp32 values to int32 keys with the same order. -0 and +0 get the same key."""
    bits = (values + np.float32(0.0)).view(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return bits
