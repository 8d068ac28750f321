"""The lazy values of ``meta`` of a replayed call, which are computed when they are read."""

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
from .arenas import AllocatedBase, View
from .traced_calls import TracedCall


class LentArena:
    """The saved arena of a call in the memory of a CUDA graph. A later call may reclaim this memory.

    Attributes:
        memory: [n] uint8, the memory of the graph, or a copy once a later call has reclaimed it.
        values: The other tensors that backward passes read. A later call overwrites their copies in the graph.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.values = memory, list[Tensor]()


class ForwardState(NamedTuple):
    """The state after a forward pass, without the bases, which autograd frees after the backward pass.

    Attributes:
        needed: The required sizes of lists and the overflow flag, see :class:`tsplat.data.Intersections`; None if the
            caller gave a capacity.
        n_packed: The number of packed rows, which are first in tensors of rows; None if rows are not packed.
        lent: The saved arena, if a later call may reclaim its memory. Otherwise, the arena is one of the bases.
        read_n_slots: Waits for the forward pass, and returns the number of slots that the backward pass of images
            needs, see :attr:`.BackwardPass.slots`. None if it allocates all slots: on a CPU, in graphs, and for few
            entries.
    """

    needed: list[int] | None
    n_packed: int | None
    lent: LentArena | None = None
    read_n_slots: Callable[[], int] | None = None

    def rows(self, values: Tensor) -> Tensor:
        """Returns the values of packed rows, without the remaining rows of the capacity; all if not packed."""
        return values if self.n_packed is None else values[: self.n_packed]

    def tensor(self, view: View, bases: Any) -> Tensor:
        """Returns the tensor of a view. A base of None stands for the lent arena."""
        base = bases[view.base]
        return view.of(self.lent.memory if base is None and self.lent is not None else base)


class MetaSource(NamedTuple):
    """The source of the lazy values of ``meta``.

    Attributes:
        traced: The traced call.
        bases: The bases of the forward pass that ``meta`` reads, by number.
        state: See :class:`ForwardState`.
        carriers: See `calls`; empty without gradients.
    """

    traced: TracedCall
    bases: dict[int, Any]
    state: ForwardState
    carriers: list[Tensor]

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return self.state.tensor(view, self.bases)


@functools.lru_cache(maxsize=64)
def lazy_values(traced: TracedCall) -> dict[str, Callable[[MetaSource], Any]]:
    """Returns key -> function of a source that computes the value of ``meta``."""
    functions: dict[str, Callable[[MetaSource], Any]] = {
        name: functools.partial(_row, name) for name in traced.meta.rows
    }
    return functions | {name: functools.partial(_description, name) for name in LAZY}


def _row(name: str, source: MetaSource) -> Tensor:
    """Returns a value of ``meta`` with one row per projected Gaussian."""
    traced = source.traced
    # A copy: a view would keep the whole arena alive, and changes to it would affect the backward pass.
    value = source.state.rows(source.tensor(traced.meta.rows[name])).clone()
    if source.carriers and traced.handover is not None and name in traced.handover.v_rows:
        view, v_carriers = traced.handover.v_rows[name], traced.handover.v_carriers
        i = [v_carrier.base for v_carrier in v_carriers].index(view.base)
        row: Tensor = apply(_Row, v_carriers[i], view, source.state, value, source.carriers[i])
        return row
    return value


def _description(name: str, source: MetaSource) -> Any:
    return LAZY[name](_meta_inputs(source))


def _meta_inputs(source: MetaSource) -> MetaInputs:
    """Returns the inputs of the lazy values of the stages."""
    inputs: MetaInputs = map_tree(source.traced.meta.inputs, View, source.tensor)
    intersections: Any = _ReplayedIntersections(source, inputs.intersections)
    rows = source.state.rows
    projected, received = inputs.projected.map_rows(rows), inputs.received.map_rows(rows)
    return inputs._replace(projected=projected, received=received, intersections=intersections)


class _ReplayedIntersections:
    """The intersections of a replayed call, with the interface of :class:`.BandedIntersections` that ``meta`` uses."""

    def __init__(self, source: MetaSource, whole: Any) -> None:
        self._whole: Intersections = whole
        self.bands, self.budget = source.traced.meta.bands, copy.copy(source.traced.meta.budget)
        # As in the stages, a packed call without a visible Gaussian has no capacity.
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
    """The autograd node of a value of ``meta``, whose gradient is a part of that of a carrier."""

    @staticmethod
    def forward(
        ctx: Any, v_carrier: AllocatedBase, view: View, state: ForwardState, value: Tensor, _carrier: Tensor
    ) -> Tensor:
        ctx.v_carrier, ctx.view, ctx.state = v_carrier, view, state
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Tensor, ...], v: Tensor) -> Gradients:
        v_carrier = ctx.v_carrier.zeros(v.device)
        target = ctx.state.rows(ctx.view.of(v_carrier))
        target.copy_(v.reshape(target.shape))
        return None, None, None, None, v_carrier
