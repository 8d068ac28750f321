"""Stable sorting, on a CPU by radix.

PyTorch sorts integers by radix on a CPU, in parallel, if there are at least 32,768 of them; all else by comparisons,
which take several times as long. NumPy sorts 16-bit integers by radix, of any number, in one thread.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RADIX_ROWS = 32_768
"""Number of integers from which PyTorch sorts by radix."""


def stable_sort(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts values [n] without NaN, equal ones by index, and returns their indices [n] int64 as well."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.int32, torch.int16):
        return values.sort(stable=True)
    keys = values.detach().numpy()
    indices = _argsort(_ordered_bits(keys) if values.dtype == torch.float32 else keys)
    return values[indices], indices


def _argsort(keys: np.ndarray) -> Tensor:
    """Returns the order of int16 or int32 keys."""
    if keys.size >= RADIX_ROWS and torch.get_num_threads() > 1:
        return torch.from_numpy(keys).argsort(stable=True)
    if keys.dtype == np.int16:
        return torch.from_numpy(np.argsort(keys, kind="stable"))
    by_low = np.argsort(keys.astype(np.uint16), kind="stable")
    high = (keys >> 16).astype(np.int16)
    return torch.from_numpy(by_low[np.argsort(high[by_low], kind="stable")])


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """Returns int32 keys with the order of fp32 values. Zeros of both signs are equal."""
    bits = (values + np.float32(0.0)).view(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return bits
