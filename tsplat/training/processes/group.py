"""The processes that train one scene together; one alone is a team too."""

from __future__ import annotations

import atexit
import gc
import importlib
import math
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ArgumentError
from .launcher import is_launched

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""Of what ranks do together: longer than any step or save takes; that a rank is dead is seen by its heartbeat."""


class Team:
    """The ranks of a process group, or this process alone.

    Attributes:
        rank, size: This rank and their number.
        group: None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    @property
    def leads(self) -> bool:
        """Whether this rank writes what one rank writes for all."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's items of a list that all have: every size-th."""
        return items[self.rank :: self.size]

    def rows(self, n: int, rank: int | None = None) -> slice:
        """A rank's rows of n, by default this one's: one block each, as :func:`torch.chunk` cuts them."""
        each = math.ceil(n / self.size)
        first = min((self.rank if rank is None else rank) * each, n)
        return slice(first, min(first + each, n))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def any(self, flags: Sequence[bool], device: torch.device) -> list[bool]:
        """Whether each flag is set on any rank."""
        if self.size == 1:
            return list(flags)
        return [value > 0 for value in self.sum(torch.tensor([float(flag) for flag in flags], device=device)).tolist()]

    def gather(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, however many each has, one rank after the other."""
        if self.size == 1:
            return tensor
        count = torch.tensor([len(tensor)], device=tensor.device)
        counts = [torch.empty_like(count) for _ in range(self.size)]
        dist.all_gather(counts, count, group=self.group)
        numbers = [int(n) for n in torch.cat(counts).tolist()]
        padded = tensor.new_zeros(max(numbers), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:n] for part, n in zip(parts, numbers, strict=True)])

    def collect(self, value: T) -> list[T]:
        """What each rank has, which is pickled on the way."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Until all are here."""
        self.collect(None)


def join(device: torch.device) -> Team:
    """The team that this process was started for: that of a process group that is there, of torchrun, or itself.

    Raises:
        ArgumentError: The process group cannot be made.
    """
    if not dist.is_available():
        return Team()
    if not dist.is_initialized():
        if not is_launched() or int(os.environ["WORLD_SIZE"]) < 2:
            return Team()
        # Imported later, as by torch.distributed.checkpoint, its default arguments would hold on to the group for ever.
        importlib.import_module("torch.distributed.nn.functional")
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise ArgumentError(f"ranks: the process group cannot be made ({error})") from error
        atexit.register(_leave)
    group = dist.group.WORLD
    return Team(group) if dist.get_world_size() > 1 else Team()


def _leave() -> None:
    """Ends the process group, and its threads, which may still need the interpreter to let go of a tensor."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # It ends with the last that holds it.
    gc.collect()
