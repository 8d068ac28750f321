"""Tensors with spare rows: their memory has room for more rows, so that rows can be appended without a copy.

On Linux, memory becomes resident when it is first written. Spare rows of tensors on a CPU thus only reserve address
space.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.utils import deterministic

from ..support.free_memory import limits_addresses

_MARK = "_has_spare_rows"
"""Attribute of storages that no other tensors use. Python keeps it as long as the storage exists."""


def with_spare_rows(rows: Tensor, n: int) -> Tensor:
    """Returns a copy of a tensor in memory for n rows, or only for its own if spare rows would take memory."""
    copy = _allocate(rows, n, rows.dtype) if n > len(rows) and _takes_only_addresses(rows) else None
    return rows.clone() if copy is None else copy.copy_(rows)


def zeros_like_with_spare_rows(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Returns zeros in the shape of a tensor, and in its dtype if None, with as many spare rows as it has."""
    n = n_rows_max(rows) if rows.dim() else 0
    zeros = _allocate(rows, n, dtype or rows.dtype) if n > len(rows) else None
    return torch.zeros_like(rows, dtype=dtype) if zeros is None else zeros.zero_()


def _allocate(like: Tensor, n: int, dtype: torch.dtype) -> Tensor | None:
    """Returns an uninitialized tensor in the shape of another one in memory for n rows; None if that is too much."""
    try:
        memory = torch.empty(n, *like.shape[1:], dtype=dtype, device=like.device)
    except (RuntimeError, MemoryError):
        return None
    setattr(memory.untyped_storage(), _MARK, True)
    return memory[: len(like)]


def _takes_only_addresses(rows: Tensor) -> bool:
    fills = torch.are_deterministic_algorithms_enabled() and getattr(deterministic, "fill_uninitialized_memory")  # noqa: B009
    return sys.platform == "linux" and rows.device.type == "cpu" and not fills and not limits_addresses()


def n_rows_max(rows: Tensor) -> int:
    """Returns the number of rows for which a tensor has memory."""
    storage, n_values = rows.untyped_storage(), rows[:1].numel()
    if not hasattr(storage, _MARK) or rows.storage_offset() or not n_values:
        return len(rows)
    return storage.nbytes() // (n_values * rows.itemsize)


def spare_rows(rows: Tensor, n: int) -> Tensor:
    """Returns the n spare rows that follow a tensor, as a view. There must be as many."""
    shape = (n, *rows.shape[1:])
    return rows.as_strided(shape, rows.stride(), rows.storage_offset() + len(rows) * rows.stride(0))


def without_spare_rows(rows: Tensor) -> Tensor:
    """Returns the tensor, or a copy if it has spare rows: copies and pickles of a tensor have all of its memory."""
    return rows.clone() if n_rows_max(rows) > len(rows) else rows
