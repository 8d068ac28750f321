"""Collective operations on rows of Gaussians that are sharded over ranks; no rank ever holds all Gaussians.

Each rank holds consecutive rows, see :meth:`.RankGroup.shard_rows`. Results, including their order, are those of a
single process. `ranks` is None for a single process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from ..errors import PeerError
from ..runtime.process_group import RankGroup
from ..support.interruption import DeferredSignals
from .gaussian_parameters import Follower, Optimizers, Parameters, State
from .rows import enlarge, replace_one_by_one, replace_rows

DIGIT = 11
"""Number of bits per digit of the radix selection in :func:`select_smallest`."""

COLUMNS = 4
"""Number of values of each row that :func:`reshard` moves at a time, through buffers."""


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


class Move(Protocol):
    """A collective function that moves rows between ranks. Returns the received rows, in `out` if it is given."""

    def __call__(self, rows: Tensor, out: Tensor | None = None) -> Tensor: ...


def route(ranks: RankGroup | None, sources: Sequence[range], targets: Sequence[range]) -> Move:
    """Returns a collective function that moves rows between ranks.

    Rows are numbered over all ranks. Rank i has the rows `sources[i]`, and receives the rows `targets[i]`; ranges are
    consecutive.
    """
    if ranks is None:
        return lambda rows, out=None: rows[: len(targets[0])] if out is None else out.copy_(rows[: len(targets[0])])
    counts = [len(_common(sources[ranks.rank], target)) for target in targets]
    received = [len(_common(source, targets[ranks.rank])) for source in sources]
    source = sources[ranks.rank]
    first = min((part.start for target in targets if (part := _common(source, target))), default=source.start)
    sent = slice(first - source.start, first - source.start + sum(counts))

    def move(rows: Tensor, out: Tensor | None = None) -> Tensor:
        if not rows.shape[1:].numel():  # gloo cannot send rows without columns
            return rows.new_empty(sum(received), *rows.shape[1:]) if out is None else out
        return ranks.all_to_all(rows[sent], counts, received, out)

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

    A single process appends rows after all others; here, each rank has appended rows to its shard. Rows are moved in
    place, a few columns at a time; their memory may be larger than the new shard. What this needs is allocated first.

    Raises:
        RuntimeError, MemoryError: There is not enough memory. Nothing has been changed on any rank.
        PeerError: The same, on ranks that do have enough memory.
    """
    lengths = torch.bincount(order.parts, minlength=order.n_parts)
    table = ranks.all_gather_stacked(lengths).tolist()  # [ranks, parts]
    n_total = sum(map(sum, table))
    own_lengths, moves, first = lengths.tolist(), [], 0
    blocks = [range(n_total)[ranks.shard_rows(n_total, rank)] for rank in range(ranks.world_size)]
    for part in range(order.n_parts):
        ends = accumulate((row[part] for row in table), initial=first)
        sources = [range(*bounds) for bounds in pairwise(ends)]
        whole = range(first, sources[-1].stop)
        targets = [_common(block, whole) for block in blocks]
        moves.append((route(ranks, sources, targets), own_lengths[part], len(targets[ranks.rank])))
        first = whole.stop

    n_before, n_after = sum(own_lengths), len(blocks[ranks.rank])
    statistics, error = dict(state), None
    try:
        append = enlarge(params, optimizers, max(0, n_after - n_before))
        replace_rows(
            {}, {}, statistics, n_before, lambda _, p: p, lambda moment: moment,
            lambda rows: rows.new_empty(n_after, *rows.shape[1:]),
        )  # fmt: skip
        moved = _ColumnMoves(moves, n_before, n_after, order.parts.device)
    except (RuntimeError, MemoryError) as raised:
        error = raised
    failed = ranks.all_gather_object(error is not None)
    if error is not None:
        raise error
    if any(failed):
        raise PeerError(f"reshard: rank {failed.index(True)} has not enough memory to move Gaussians between ranks")

    def moved_in_place(rows: Tensor) -> Tensor:
        target = append(rows) if n_after > n_before else rows[:n_after]
        moved(rows, target)
        return target

    with DeferredSignals():
        for key, target in statistics.items():
            if target is not state[key]:
                moved(state[key], target)
        replace_one_by_one(params, optimizers, moved_in_place)
        state.update(statistics)
    return Shard(ranks, n_total)


class _ColumnMoves:
    """Moves rows between ranks, :data:`COLUMNS` values of each row at a time, without allocating memory.

    Args:
        moves: The function of :func:`route` for each part of the rows, and the numbers of rows that it sends and
            receives on this rank.
        n_before, n_after: Sums of these numbers.
    """

    def __init__(
        self, moves: Sequence[tuple[Move, int, int]], n_before: int, n_after: int, device: torch.device
    ) -> None:
        self._moves, self._n_before, self._n_after = moves, n_before, n_after
        n_bytes = COLUMNS * torch.float64.itemsize
        self._sent = torch.empty(n_before * n_bytes, dtype=torch.uint8, device=device)
        self._received = torch.empty(n_after * n_bytes, dtype=torch.uint8, device=device)

    def __call__(self, rows: Tensor, target: Tensor) -> None:
        """Moves the rows of a tensor to a target, which may share its memory."""
        if not rows.shape[1:].numel():
            return
        columns, targets = (t.flatten(1) if t.dim() > 1 else t[:, None] for t in (rows, target))
        for some, received in zip(torch.split(columns, COLUMNS, 1), torch.split(targets, COLUMNS, 1), strict=True):
            sent, buffer = _as(self._sent, some).copy_(some), _as(self._received, received)
            begin = first = 0
            for move, n_sent, n_received in self._moves:
                move(sent[begin : begin + n_sent], buffer[first : first + n_received])
                begin, first = begin + n_sent, first + n_received
            received.copy_(buffer)


def _as(memory: Tensor, like: Tensor) -> Tensor:
    """Returns memory, [n] uint8, as a contiguous tensor in the shape and dtype of another one."""
    return memory[: like.numel() * like.itemsize].view(like.dtype).view(like.shape)


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
