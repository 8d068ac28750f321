"""Ranks as threads of one process, for tests of code that works on shards."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tsplat.runtime.process_group import RankGroup


class ThreadRanks(RankGroup):
    """A rank whose collectives exchange objects with other threads."""

    def __init__(self, rank, world_size, barrier, values):
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self._barrier, self._values = barrier, values

    def all_gather_object(self, value):
        self._values[self.rank] = value
        self._barrier.wait(60)
        values = list(self._values)
        self._barrier.wait(60)
        return values

    def all_gather_stacked(self, tensor):
        return torch.stack(self.all_gather_object(tensor))

    def all_reduce(self, tensor):
        return self.all_gather_stacked(tensor).sum(0)

    def all_to_all(self, rows, counts, received_counts, out=None):
        assert sum(counts) == len(rows)
        with _disable_current_modes():  # process groups use memory of their own
            received = [sent[self.rank] for sent in self.all_gather_object(rows.clone().split(counts))]
            assert [len(rows) for rows in received] == received_counts
            if out is None:
                return torch.cat(received)
            assert out.is_contiguous()
            return out.copy_(torch.cat(received))


def on_ranks(world_size, function):
    """Calls a function on all ranks at the same time, and returns the result of each."""
    barrier, values = threading.Barrier(world_size), [None] * world_size

    def run(rank):
        try:
            return function(ThreadRanks(rank, world_size, barrier, values))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
    errors = [future.exception() for future in futures]
    real = [error for error in errors if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    return [future.result() for future in futures]
