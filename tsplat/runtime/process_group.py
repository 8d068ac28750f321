"""Collectives of a ``torch.distributed`` process group, which also work without a group, for a single process."""

import math
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError

T = TypeVar("T")


class RankGroup:
    """A process group as seen by one rank. Without a group: a single process, with trivial collectives.

    Autograd graphs refer to this object. It does not keep the process group alive: otherwise the threads of a destroyed
    group would run until the interpreter exits, and abort the process if they free a tensor.
    """

    def __init__(self, group: "dist.ProcessGroup | None" = None) -> None:
        self._group = None if group is None else weakref.ref(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world_size = 1 if group is None else dist.get_world_size(group)

    @property
    def group(self) -> "dist.ProcessGroup | None":
        """The process group, or None for a single process; raises ArgumentError if it was destroyed."""
        if self._group is None:
            return None
        group = self._group()
        if group is None:
            raise ArgumentError(
                "group: the process group was destroyed; call torch.distributed.destroy_process_group() after the "
                "last backward pass"
            )
        return group

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    def shard_rows(self, n: int, rank: int | None = None) -> slice:
        """Returns the slice of n rows that a rank (default: this one) holds, with the sizes of :func:`torch.chunk`."""
        size = math.ceil(n / self.world_size)
        first = min((self.rank if rank is None else rank) * size, n)
        return slice(first, min(first + size, n))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over all ranks."""
        if self.world_size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def any(self, flags: Sequence[bool], device: torch.device) -> list[bool]:
        """Returns, for each flag, whether any rank has set it."""
        if self.world_size == 1:
            return list(flags)
        counts = self.all_reduce(torch.tensor([float(flag) for flag in flags], device=device))
        return [count > 0 for count in counts.tolist()]

    def all_gather(self, tensor: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Concatenates the rows [counts[rank], ...] of all ranks in rank order. Exchanges counts first if None."""
        if self.world_size == 1:
            return tensor
        if counts is None:
            counts = self.all_gather_stacked(torch.tensor([len(tensor)], device=tensor.device)).flatten().tolist()
        if not any(counts):
            return tensor
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        return torch.cat([rows[:n] for rows, n in zip(self.all_gather_stacked(padded), counts, strict=True)])

    def all_gather_stacked(self, tensor: Tensor) -> Tensor:
        """Stacks the tensors of all ranks, which must have the same shape. [...] -> [world_size, ...]"""
        if self.world_size == 1:
            return tensor[None]
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(tensors, tensor.contiguous(), group=self.group)
        return torch.stack(tensors)

    def all_gather_object(self, value: T) -> list[T]:
        """Gathers a picklable object from all ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def all_to_all(
        self, rows: Tensor, counts: list[int], received_counts: list[int], out: Tensor | None = None
    ) -> Tensor:
        """Sends the first ``counts[0]`` rows to rank 0, and so on. Returns the received rows in rank order.

        They are in `out`, [sum of received_counts, ...], contiguous, if it is given.
        """
        if self.world_size == 1:
            return rows if out is None else out.copy_(rows)
        received = rows.new_empty(sum(received_counts), *rows.shape[1:]) if out is None else out
        dist.all_to_all_single(received, rows.contiguous(), received_counts, counts, group=self.group)
        return received

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.all_gather_object(None)
