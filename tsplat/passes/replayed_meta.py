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
from ..stages.intersection import trim_to_count
from ..stages.meta import LAZY, MetaInputs
from .arenas import View
from .traced_calls import TracedCall, map_bundle


class LentArena:
    """The saved arena of a call whose memory is lent by a CUDA graph: a later call may take it back.

    Attributes:
        memory: [n] uint8.
        values: Other tensors that backward passes read, and whose copies that call replaces as well.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.values = memory, list[Tensor]()


def saved_tensor(view: View, bases: Any, lent: LentArena | None) -> Tensor:
    """Returns the tensor of a view, whose base is None if it is an arena that is lent."""
    base = bases[view.base]
    return view.of(lent.memory if base is None and lent is not None else base)


class MetaSource(NamedTuple):
    """What values of ``meta`` are made of.

    Attributes:
        traced: What was replayed.
        bases: The bases of the forward pass that it reads, by number.
        lent: The saved arena, in place of the base, if a later call may take its memory; otherwise None.
        needed: The sizes that lists needed, and 1 if any exceeded its capacity; None with a capacity of the caller.
        packed_ids: The rows that are packed, [nnz] int64, or None.
        carrier: The tensor that stands in autograd for all that images depend on besides centers; None without
            gradients.
    """

    traced: TracedCall
    bases: dict[int, Any]
    lent: LentArena | None
    needed: list[int] | None
    packed_ids: Tensor | None
    carrier: Tensor | None

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return saved_tensor(view, self.bases, self.lent)


@functools.lru_cache(maxsize=64)
def lazy_values(traced: TracedCall) -> dict[str, Callable[[MetaSource], Any]]:
    """Returns the functions of a source that compute values of ``meta``."""
    functions: dict[str, Callable[[MetaSource], Any]] = {name: functools.partial(_row, name) for name in traced.rows}
    functions |= {name: functools.partial(_description, name) for name in LAZY}
    if traced.packed is not None:
        functions |= {name: functools.partial(_packed_description, name) for name in PACKED}
    return functions


def _row(name: str, source: MetaSource) -> Tensor:
    """Returns a value that each row, or packed row, has."""
    traced = source.traced
    value = source.tensor(traced.rows[name])
    if source.packed_ids is None:
        value = value.clone()  # a view would keep the whole arena, and the backward pass would see changes to it
    else:
        row_shape = value.shape[len(traced.centers.shape) - 1 :]
        value = value.reshape(-1, *row_shape)[source.packed_ids]
    if name in traced.v_row and source.carrier is not None:
        row: Tensor = apply(_Row, traced, name, source.packed_ids, value, source.carrier)
        return row
    return value


def _description(name: str, source: MetaSource) -> Any:
    return LAZY[name](_meta_inputs(source))


def _packed_description(name: str, source: MetaSource) -> Any:
    assert source.packed_ids is not None
    return PACKED[name](_meta_inputs(source), source.packed_ids)


def _meta_inputs(source: MetaSource) -> MetaInputs:
    """Returns what ``meta`` describes, with rows that are not packed."""
    inputs: MetaInputs = map_bundle(source.traced.meta_inputs, View, source.tensor)
    return inputs._replace(intersections=_ReplayedIntersections(source, inputs.intersections))  # type: ignore[arg-type]


class _ReplayedIntersections:
    """The intersections of a replayed call, with what ``meta`` reads of :class:`.BandedIntersections`."""

    def __init__(self, source: MetaSource, whole: Any) -> None:
        self._whole: Intersections = whole
        self.bands, self.budget = source.traced.bands, copy.copy(source.traced.budget)
        is_empty = source.packed_ids is not None and not len(source.packed_ids)
        self._has_capacity = source.needed is None and not is_empty
        spans, self.n_intersections, *_ = source.traced.capacities if self._has_capacity else source.needed or [0, 0]
        self.budget.admit(spans, self.n_intersections)

    def trimmed(self) -> Intersections:
        return trim_to_count(self._whole)

    def overflow(self) -> Tensor | None:
        assert self._whole.needed is not None
        return self._whole.needed[-1] != 0 if self._has_capacity else None


def _packed_rows(inputs: MetaInputs, packed_ids: Tensor) -> Tensor:
    """Returns the packed row of each row, [I N] int32; -1 where there is none."""
    rows = torch.full((inputs.projected.depths.numel(),), -1, dtype=torch.int32, device=packed_ids.device)
    rows[packed_ids] = torch.arange(len(packed_ids), dtype=torch.int32, device=packed_ids.device)
    return rows


PACKED: dict[str, Callable[[MetaInputs, Tensor], Any]] = {
    "batch_ids": lambda m, ids: ids // max(m.projected.n_gaussians * m.projected.n_cameras, 1),
    "camera_ids": lambda m, ids: ids // max(m.projected.n_gaussians, 1) % m.projected.n_cameras,
    "gaussian_ids": lambda m, ids: ids % max(m.projected.n_gaussians, 1),
    "flatten_ids": lambda m, ids: _packed_rows(m, ids)[LAZY["flatten_ids"](m)],
    "tiles_per_gauss": lambda m, ids: LAZY["tiles_per_gauss"](m).view(-1)[ids],
}
"""Values of ``meta`` that depend on which rows are packed: functions of what it describes, and of these rows."""


class _Row(torch.autograd.Function):
    """A value of ``meta``. Its gradient is a part of the carrier's."""

    @staticmethod
    def forward(
        ctx: Any, traced: TracedCall, name: str, packed_ids: Tensor | None, value: Tensor, _carrier: Tensor
    ) -> Tensor:
        ctx.traced, ctx.name, ctx.packed_ids = traced, name, packed_ids
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Tensor, ...], v: Tensor) -> Gradients:
        v_carrier = ctx.traced.v_carrier.zeros(v.device)
        view: View = ctx.traced.v_row[ctx.name]
        target = view.of(v_carrier)
        if ctx.packed_ids is None:
            target.copy_(v.reshape(target.shape))
        else:
            target[ctx.packed_ids] = v.reshape(-1, *target.shape[1:])
        return None, None, None, None, v_carrier
