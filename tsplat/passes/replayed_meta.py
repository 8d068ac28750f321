"""The values of ``meta`` of a replayed call, which are made when they are read."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Intersections
from ..runtime.autograd import Gradients, apply, once_differentiable
from ..runtime.bundles import map_tree
from ..stages.intersection import trim_to_count
from ..stages.meta import LAZY, MetaInputs
from .arenas import View
from .traced_calls import TracedCall


class LentArena:
    """The saved arena of a call whose memory is lent by a CUDA graph: a later call may take it back.

    Attributes:
        memory: [n] uint8.
        values: Other tensors that backward passes read, and whose copies that call replaces as well.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.values = memory, list[Tensor]()


class ForwardState(NamedTuple):
    """Holds what is known after a forward pass, without its bases, which autograd frees after a backward pass.

    Attributes:
        needed: The sizes that lists needed: spans, intersections, entries, chunks and packed rows; and 1 if any
            exceeded its capacity. None if the caller gave a capacity.
        n_packed: The number of packed rows, the first ones of tensors of rows; None if rows are not packed.
        lent: The saved arena, if a later call may take its memory. Otherwise it is one of the bases.
        read_n_slots: Waits for the forward pass, and returns how many slots the backward pass of images needs, see
            :attr:`.BackwardPass.slots`; None if that allocates all of them: on a CPU, in graphs, and for few entries.
    """

    needed: list[int] | None
    n_packed: int | None
    lent: LentArena | None = None
    read_n_slots: Callable[[], int] | None = None

    def rows(self, values: Tensor) -> Tensor:
        """Returns the values of packed rows, which are the first ones of a capacity; all if rows are not packed."""
        return values if self.n_packed is None else values[: self.n_packed]

    def tensor(self, view: View, bases: Any) -> Tensor:
        """Returns the tensor of a view, whose base is None if it is an arena that is lent."""
        base = bases[view.base]
        return view.of(self.lent.memory if base is None and self.lent is not None else base)


class MetaSource(NamedTuple):
    """Holds what values of ``meta`` are made of.

    Attributes:
        traced: What was replayed.
        bases: The bases of the forward pass that it reads, by number.
        state: See :class:`ForwardState`.
        carrier: The tensor that stands in autograd for all that images depend on besides ``means2d``, see `calls`;
            None without gradients.
    """

    traced: TracedCall
    bases: dict[int, Any]
    state: ForwardState
    carrier: Tensor | None

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return self.state.tensor(view, self.bases)


@functools.lru_cache(maxsize=64)
def lazy_values(traced: TracedCall) -> dict[str, Callable[[MetaSource], Any]]:
    """Returns the functions of a source that compute values of ``meta``."""
    functions: dict[str, Callable[[MetaSource], Any]] = {name: functools.partial(_row, name) for name in traced.rows}
    return functions | {name: functools.partial(_description, name) for name in LAZY}


def _row(name: str, source: MetaSource) -> Tensor:
    """Returns a value that each row has."""
    traced = source.traced
    # A view would keep the whole arena, and the backward pass would see changes to it.
    value = source.state.rows(source.tensor(traced.rows[name])).clone()
    if name in traced.v_row and source.carrier is not None:
        row: Tensor = apply(_Row, traced, name, source.state, value, source.carrier)
        return row
    return value


def _description(name: str, source: MetaSource) -> Any:
    return LAZY[name](_meta_inputs(source))


def _meta_inputs(source: MetaSource) -> MetaInputs:
    """Returns what ``meta`` describes."""
    inputs: MetaInputs = map_tree(source.traced.meta_inputs, View, source.tensor)
    intersections: Any = _ReplayedIntersections(source, inputs.intersections)
    rows = source.state.rows
    projected, received = inputs.projected.map_rows(rows), inputs.received.map_rows(rows)
    return inputs._replace(projected=projected, received=received, intersections=intersections)


class _ReplayedIntersections:
    """The intersections of a replayed call, with what ``meta`` reads of :class:`.BandedIntersections`."""

    def __init__(self, source: MetaSource, whole: Any) -> None:
        self._whole: Intersections = whole
        self.bands, self.budget = source.traced.bands, copy.copy(source.traced.budget)
        # As in the stages, a packed call of which no Gaussian is visible has no capacity.
        needed, n_packed = source.state.needed, source.state.n_packed
        self._has_capacity = needed is None and n_packed != 0
        spans, self.n_intersections, *_ = source.traced.capacities if self._has_capacity else needed or [0, 0]
        self.budget.admit(spans, self.n_intersections)

    def trimmed(self) -> Intersections:
        return trim_to_count(self._whole)

    def overflow(self) -> Tensor | None:
        assert self._whole.needed is not None
        return self._whole.needed[-1] != 0 if self._has_capacity else None


class _Row(torch.autograd.Function):
    """A value of ``meta``. Its gradient is a part of the carrier's."""

    @staticmethod
    def forward(
        ctx: Any, traced: TracedCall, name: str, state: ForwardState, value: Tensor, _carrier: Tensor
    ) -> Tensor:
        ctx.traced, ctx.name, ctx.state = traced, name, state
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Tensor, ...], v: Tensor) -> Gradients:
        v_carrier = ctx.traced.v_carrier.zeros(v.device)
        view: View = ctx.traced.v_row[ctx.name]
        target = ctx.state.rows(view.of(v_carrier))
        target.copy_(v.reshape(target.shape))
        return None, None, None, None, v_carrier
