"""Collective operations on rows of Gaussians that are sharded over ranks; no rank ever holds all Gaussians.

Each rank holds consecutive rows, see :meth:`.RankGroup.shard_rows`. Results, including their order, are those of a
single process. `ranks` is None for a single process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..runtime.process_group import RankGroup
from ..support.interruption import DeferredSignals
from .gaussian_parameters import Follower, Optimizers, Parameters, State
from .rows import replace_one_by_one, replace_rows

DIGIT = 11
"""Number of bits per digit of the radix selection in :func:`select_smallest`."""

COLUMNS = 4
"""Number of values of each row that :func:`reshard` moves at a time, since what it receives is copied once more."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """This rank's consecutive rows of a sharded scene.

    Attributes:
        ranks: All ranks.
        n_total: Number of Gaussians of all ranks.
    """

    ranks: RankGroup
    n_total: int

    @property
    def first(self) -> int:
        """Index of this rank's first Gaussian among all ranks' Gaussians."""
        first: int = self.ranks.shard_rows(self.n_total).start
        return first


def count(ranks: RankGroup | None, n: int) -> tuple[int, int]:
    """Returns the sum of `n` over the ranks before this one, and the sum over all ranks. A collective call."""
    if ranks is None:
        return 0, n
    counts = ranks.all_gather_object(n)
    return sum(counts[: ranks.rank]), sum(counts)


def route(ranks: RankGroup | None, sources: Sequence[range], targets: Sequence[range]) -> Callable[[Tensor], Tensor]:
    """Returns a collective function that moves rows between ranks.

    Rows are numbered over all ranks. Rank i has the rows `sources[i]`, and receives the rows `targets[i]`; ranges are
    consecutive.
    """
    if ranks is None:
        return lambda rows: rows[: len(targets[0])]
    counts = [len(_common(sources[ranks.rank], target)) for target in targets]
    received = [len(_common(source, targets[ranks.rank])) for source in sources]
    source = sources[ranks.rank]
    first = min((part.start for target in targets if (part := _common(source, target))), default=source.start)
    sent = slice(first - source.start, first - source.start + sum(counts))

    def move(rows: Tensor) -> Tensor:
        if not rows.shape[1:].numel():  # gloo cannot send rows without columns
            return rows.new_empty(sum(received), *rows.shape[1:])
        return ranks.all_to_all(rows[sent], counts, received)

    return move


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def ranges(ranks: RankGroup | None, n: int) -> list[range]:
    """Returns each rank's range of rows, numbered over all ranks; this rank has n rows. A collective call."""
    counts = [n] if ranks is None else ranks.all_gather_object(n)
    return [range(*ends) for ends in pairwise(accumulate(counts, initial=0))]


class RowOrder(Follower):
    """Records which operation appended each Gaussian of a shard, for :func:`reshard`.

    Attributes:
        parts: [n] uint8, ascending: 0 for the initial rows, i for rows that the i-th operation appended.
        n_parts: Number of parts, the same on all ranks.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        self.parts = torch.zeros(n, dtype=torch.uint8, device=device)
        self.n_parts = 1

    def _append(self, n: int) -> None:
        self.parts = torch.cat([self.parts, self.parts.new_full((n,), self.n_parts)])
        self.n_parts += 1

    def on_duplicate(self, sel: Tensor) -> None:
        self._append(len(sel))

    def on_split(self, sel: Tensor, rest: Tensor) -> None:
        self.parts = self.parts[rest]
        self._append(len(sel))
        self._append(len(sel))

    def on_remove(self, remove_mask: Tensor) -> None:
        self.parts = self.parts[~remove_mask]

    def on_relocate(self, dead_indices: Tensor, sampled_indices: Tensor) -> None:
        """Does nothing, as relocation appends no rows."""

    def on_sample_add(self, sampled_indices: Tensor) -> None:
        self._append(len(sampled_indices))


def reshard(params: Parameters, optimizers: Optimizers, state: State, order: RowOrder, ranks: RankGroup) -> Shard:
    """Redistributes rows so that each rank holds consecutive rows in the order of a single process. A collective call.

    A single process appends rows after all others; here, each rank has appended rows to its shard.
    """
    lengths = torch.bincount(order.parts, minlength=order.n_parts)
    table = ranks.all_gather_stacked(lengths).tolist()  # [ranks, parts]
    n_total = sum(map(sum, table))
    shard = Shard(ranks, n_total)
    own_lengths, moves, first = lengths.tolist(), [], 0
    blocks = [ranks.shard_rows(n_total, rank) for rank in range(ranks.world_size)]
    for part in range(order.n_parts):
        ends = accumulate((row[part] for row in table), initial=first)
        sources = [range(*bounds) for bounds in pairwise(ends)]
        whole = range(first, sources[-1].stop)
        targets = [_common(range(block.start, block.stop), whole) for block in blocks]
        moves.append(route(ranks, sources, targets))
        first = whole.stop

    block = blocks[ranks.rank]

    def moved(rows: Tensor) -> Tensor:
        columns = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
        received = columns.new_empty(block.stop - block.start, columns.shape[1])
        for some, target in zip(torch.split(columns, COLUMNS, 1), torch.split(received, COLUMNS, 1), strict=True):
            parts = torch.split(some, own_lengths)
            torch.cat([move(part) for move, part in zip(moves, parts, strict=True)], out=target)
        return received.view(len(received), *rows.shape[1:])

    with DeferredSignals():
        replace_one_by_one(params, optimizers, moved)
        replace_rows({}, {}, state, sum(own_lengths), lambda _, p: p, moved, moved)
    return shard


def select_smallest(keys: Tensor, sizes: Tensor, total: int, ranks: RankGroup | None) -> Tensor:
    """Returns a mask [n] of the Gaussians with the smallest keys of all ranks, whose sizes sum to at most `total`.

    Selected Gaussians are a prefix of all Gaussians, sorted by key and then by row. Keys [n] int64 are nonnegative, and
    sizes [n] int64 are 0, 1 or 2. Gaussians of size 0 are not selected.
    """
    left, threshold = total, 0
    rows = sizes.nonzero().squeeze(1)  # candidates for the last Gaussian that fits
    keys_left, sizes_left = keys[rows], sizes[rows]
    for shift in range(63 // DIGIT * DIGIT, -1, -DIGIT):
        digits = (keys_left >> shift) & (2**DIGIT - 1)
        ones, twos = (torch.bincount(digits[sizes_left == size], minlength=2**DIGIT) for size in (1, 2))
        sums = ones + 2 * twos
        ends = (sums if ranks is None else ranks.all_reduce(sums)).cumsum(0)
        digit = int((ends <= left).sum())
        if digit == len(ends):  # all fit
            return sizes > 0
        left -= int(ends[digit - 1]) if digit else 0
        threshold = threshold << DIGIT | digit
        same = (digits == digit).nonzero().squeeze(1)
        rows, keys_left, sizes_left = rows[same], keys_left[same], sizes_left[same]
    before, _ = count(ranks, int(sizes_left.sum()))
    selected = keys < threshold
    selected[rows[sizes_left.cumsum(0) <= left - before]] = True
    return selected & (sizes > 0)
