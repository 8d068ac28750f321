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
from ..stages.intersection import without_room
from ..stages.meta import LATER, Rendered
from .arenas import View
from .traced_calls import TracedCall, map_bundle


class Kept:
    """The arena of a call that is needed later, if a later call may take its memory.

    Attributes:
        memory: [n] uint8.
        values: Other tensors that backward passes read, and whose copies that call replaces as well.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.values = memory, list[Tensor]()


def tensor_of(view: View, bases: Any, kept: Kept | None) -> Tensor:
    """Returns the tensor of a view, whose base is None if it is the arena that is kept."""
    base = bases[view.base]
    return view.of(kept.memory if base is None and kept is not None else base)


class Source(NamedTuple):
    """What values of ``meta`` are made of.

    Attributes:
        traced: What was replayed.
        bases: The bases of the forward pass that it reads, by number.
        kept: The arena of the call, in place of the base, if a later call may take its memory; otherwise None.
        needed: What lists needed, and 1 if they did not fit; None with a capacity.
        ids: The rows that are packed, [nnz] int64, or None.
        carrier: The tensor that stands in autograd for all that images depend on besides centers; None without
            gradients.
    """

    traced: TracedCall
    bases: dict[int, Any]
    kept: Kept | None
    needed: list[int] | None
    ids: Tensor | None
    carrier: Tensor | None

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return tensor_of(view, self.bases, self.kept)


@functools.lru_cache(maxsize=64)
def later(traced: TracedCall) -> dict[str, Callable[[Source], Any]]:
    """Returns the functions of a source that compute values of ``meta``."""
    functions: dict[str, Callable[[Source], Any]] = {name: functools.partial(_row, name) for name in traced.rows}
    functions |= {name: functools.partial(_description, name) for name in LATER}
    if traced.packed is not None:
        functions |= {name: functools.partial(_packed_description, name) for name in PACKED}
    return functions


def _row(name: str, source: Source) -> Tensor:
    """Returns what there is of each row, or packed row."""
    traced = source.traced
    value = source.tensor(traced.rows[name])
    if source.ids is None:
        value = value.clone()  # the arena is larger, and what it holds is needed
    else:
        own = value.shape[len(traced.centers.shape) - 1 :]
        value = value.reshape(-1, *own)[source.ids]
    if name in traced.v_row and source.carrier is not None:
        row: Tensor = apply(_Row, traced, name, source.ids, value, source.carrier)
        return row
    return value


def _description(name: str, source: Source) -> Any:
    return LATER[name](_rendered(source))


def _packed_description(name: str, source: Source) -> Any:
    assert source.ids is not None
    return PACKED[name](_rendered(source), source.ids)


def _rendered(source: Source) -> Rendered:
    """Returns what ``meta`` describes, with rows that are not packed."""
    rendered: Rendered = map_bundle(source.traced.rendered, View, source.tensor)
    return rendered._replace(intersections=_Lists(source, rendered.intersections))  # type: ignore[arg-type]


class _Lists:
    """The intersections of a replayed call, with what ``meta`` reads of those that stages return."""

    def __init__(self, source: Source, whole: Any) -> None:
        self._whole: Intersections = whole
        self.bands, self.budget = source.traced.bands, copy.copy(source.traced.budget)
        is_empty = source.ids is not None and not len(source.ids)
        self._has_room = source.needed is None and not is_empty
        spans, self.n_intersections, *_ = source.traced.room if self._has_room else source.needed or [0, 0]
        self.budget.admit(spans, self.n_intersections)

    def listed(self) -> Intersections:
        return without_room(self._whole)

    def overflow(self) -> Tensor | None:
        assert self._whole.needed is not None
        return self._whole.needed[-1] != 0 if self._has_room else None


def _rows_of(rendered: Rendered, ids: Tensor) -> Tensor:
    """Returns the packed row of each row, [I N] int32; -1 where there is none."""
    rows = torch.full((rendered.projected.depths.numel(),), -1, dtype=torch.int32, device=ids.device)
    rows[ids] = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
    return rows


PACKED: dict[str, Callable[[Rendered, Tensor], Any]] = {
    "batch_ids": lambda r, ids: ids // max(r.projected.n_gaussians * r.projected.n_cameras, 1),
    "camera_ids": lambda r, ids: ids // max(r.projected.n_gaussians, 1) % r.projected.n_cameras,
    "gaussian_ids": lambda r, ids: ids % max(r.projected.n_gaussians, 1),
    "flatten_ids": lambda r, ids: _rows_of(r, ids)[LATER["flatten_ids"](r)],
    "tiles_per_gauss": lambda r, ids: LATER["tiles_per_gauss"](r).view(-1)[ids],
}
"""Values of ``meta`` that depend on which rows are packed: functions of what was rendered, and of these rows."""


class _Row(torch.autograd.Function):
    """A value of ``meta``. Its gradient becomes a part of that of what stands for all else that images depend on."""

    @staticmethod
    def forward(ctx: Any, traced: TracedCall, name: str, ids: Tensor | None, value: Tensor, _carrier: Tensor) -> Tensor:
        ctx.traced, ctx.name, ctx.ids = traced, name, ids
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Tensor, ...], v: Tensor) -> Gradients:
        v_carrier = ctx.traced.v_carrier.zeros(v.device)
        own: View = ctx.traced.v_row[ctx.name]
        target = own.of(v_carrier)
        if ctx.ids is None:
            target.copy_(v.reshape(target.shape))
        else:
            target[ctx.ids] = v.reshape(-1, *target.shape[1:])
        return None, None, None, None, v_carrier
