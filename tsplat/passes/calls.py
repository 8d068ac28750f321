"""A replayed call: it runs passes, and two nodes of autograd stand for what they compute.

The first node goes from the inputs to the projected centers, whose gradients strategies read, and to the carrier, a
tensor of no content that stands for all else that images depend on: its gradient is the memory in which one backward
pass leaves what the other reads. The second node goes from both, and from inputs that only compositing reads, to the
images.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..runtime.autograd import Gradients, apply, once_differentiable
from ..stages.capacity import read_later
from ..stages.meta import Meta
from .arenas import SPECIALIZED_ALIGNMENT, View, leave_scratch, take_scratch, whole
from .replayed_meta import Kept, Source, later, tensor_of
from .traced_calls import ABSGRAD, BackwardPass, TracedCall


class Forward(NamedTuple):
    """What a forward pass returns.

    Attributes:
        bases: The tensors that views are relative to, by number: inputs, outputs, and the arena that is needed later.
        needed: What lists needed: spans, intersections, entries and chunks; and 1 if they did not fit. None if the
            caller gave a capacity.
        kept: The arena that is needed later, if a later call may take its memory. Otherwise it is one of the bases.
        n_packed: The number of packed rows; None if rows are not packed.
        n_slots: Waits for the forward pass, and returns how many slots the backward pass of images needs, see
            :attr:`.BackwardPass.slots`; None if that allocates all of them: on a CPU, in graphs, and for few entries.
    """

    bases: list[Any]
    needed: list[int] | None
    kept: Kept | None
    n_packed: int | None = None
    n_slots: Callable[[], int] | None = None


class Runner(Protocol):
    """Runs the passes of a traced call: :class:`Replays`, or :class:`.CapturedCall`."""

    traced: TracedCall

    def forward(self, tensors: Sequence[Tensor]) -> Forward: ...

    def differentiate(
        self,
        backward: BackwardPass,
        saved: Sequence[Tensor | None],
        given: Sequence[Tensor],
        kept: Kept | None,
        n_packed: int | None,
        n_slots: Callable[[], int] | None,
    ) -> dict[int, Tensor]: ...


class Replays:
    """Runs the passes of a traced call at new addresses."""

    def __init__(self, traced: TracedCall) -> None:
        self.traced = traced

    def forward(self, tensors: Sequence[Tensor]) -> Forward:
        """Runs the forward pass."""
        traced = self.traced
        arena = torch.empty(traced.kept[1], dtype=torch.uint8, device=traced.device)  # that the backward pass reads
        # Packed rows are counted first, and their bases not used before.
        outputs = [arena if o.is_packed else o.allocate(traced.device) for o in traced.outputs]
        until_counted, *rest = traced.forward
        scratch = take_scratch(traced.scratch[1], traced.device)
        bases: list[Any] = [*tensors, *outputs, arena, scratch]
        until_counted.run(bases)
        needed, n_packed = read_counted(traced, arena, on_gpu=traced.on_gpu)
        for output in traced.packed or ():
            bases[output.base] = output.allocate(traced.device, n_packed)
        for replayed in rest:
            replayed.run(bases)
        leave_scratch(scratch)
        del bases[-1]
        slots = traced.of_images.slots
        n_slots = None if slots is None else read_later(slots.n.of(bases[slots.n.base]))
        return Forward(bases, needed, None, n_packed, n_slots)

    def differentiate(
        self,
        backward: BackwardPass,
        saved: Sequence[Tensor | None],
        given: Sequence[Tensor],
        _kept: Kept | None,
        n_packed: int | None,
        n_slots: Callable[[], int] | None,
    ) -> dict[int, Tensor]:
        """Runs a backward pass.

        Args:
            backward: The pass.
            saved: The bases of the forward pass that it reads, ``backward.saved``; None for the arena that is kept, if
                that is given.
            given: The bases of gradients, ``backward.given``.
            n_packed, n_slots: See :class:`Forward`.

        Returns:
            Bases, by number, among them ``backward.results``.
        """
        device = self.traced.device
        outputs = [output.allocate(device, n_packed) for output in backward.outputs]
        tensors: list[Any] = [*saved, *map(_aligned, given), *outputs]
        bases = dict(zip(backward.steps.order, tensors))
        backward.clear(bases)
        size = backward.scratch[1]
        if backward.slots is not None and n_slots is not None:
            size = backward.slots.bytes(n_slots())
        scratch = take_scratch(size, device)
        backward.steps.run([*tensors, scratch])
        leave_scratch(scratch)
        return bases


class _Differentiation(NamedTuple):
    """What both nodes of a call have in common.

    Attributes:
        runner: Runs its passes.
        ids: The rows that are packed, [nnz] int64, or None.
        kept, n_packed, n_slots: See :class:`Forward`.
    """

    runner: Runner
    ids: Tensor | None
    kept: Kept | None
    n_packed: int | None
    n_slots: Callable[[], int] | None

    def run(self, backward: BackwardPass, saved: Sequence[Tensor], given: Sequence[Tensor]) -> dict[int, Tensor]:
        """Runs a backward pass; see :meth:`Replays.differentiate`. Other tensors may follow those that it reads."""
        saved = saved[: len(backward.saved)]
        return self.runner.differentiate(backward, saved, given, self.kept, self.n_packed, self.n_slots)

    def packed(self, values: Tensor | None) -> Tensor | None:
        """Returns the rows of values [..., 2] that are packed; the values if none are."""
        return values if values is None or self.ids is None else values.view(-1, 2)[self.ids]


def read_counted(traced: TracedCall, kept: Tensor, *, on_gpu: bool) -> tuple[list[int] | None, int | None]:
    """Returns ``needed`` and ``n_packed`` of :class:`Forward`. Waits for the device, unless both are None."""
    if not traced.is_exact and traced.packed is None:
        return None, None
    counted = traced.counted
    if on_gpu:
        *needed, n_packed = counted.of(kept).tolist()
    else:
        address = kept.data_ptr() + counted.offset
        *needed, n_packed = (ctypes.c_int64 * counted.shape.numel()).from_address(address)
    return needed if traced.is_exact else None, None if traced.packed is None else n_packed


class ReplayedCall:
    """A call whose forward pass has run.

    Args:
        runner: What runs it.
        tensors: The inputs.

    Attributes:
        needed: See :class:`Forward`.
    """

    def __init__(self, runner: Runner, tensors: Sequence[Tensor]) -> None:
        self._runner, self._tensors = runner, tensors
        self._bases, self.needed, self._kept, self._n_packed, self._n_slots = runner.forward(tensors)

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return tensor_of(view, self._bases, self._kept)

    def overflows(self) -> bool:
        """Returns whether lists did not fit. Only on a CPU."""
        needed = self._runner.traced.needed
        base = self._bases[needed.base] if self._kept is None else self._kept.memory
        last = base.data_ptr() + needed.offset + (needed.shape.numel() - 1) * needed.dtype.itemsize
        return ctypes.c_int64.from_address(last).value != 0

    def results(self) -> tuple[Any, ...]:
        """Returns what the rendering function returns."""
        traced, bases = self._runner.traced, self._bases
        images = [None if view is None else whole(view, bases) for view in traced.images]
        if traced.packed is None:
            ids, centers = None, whole(traced.centers, bases)
        else:
            ids, centers = (bases[output.base] for output in traced.packed)
        leaf = None
        if traced.leaf is not None:
            leaf = torch.zeros_like(centers, requires_grad=bool(traced.differentiable))
        carrier = None
        if traced.differentiable:
            centers, carrier = self._connect(images, centers, leaf, ids)
        values = {**traced.constants, "means2d": centers}
        if leaf is not None:
            values["gradient_2dgs"] = leaf
        for name, i in traced.in_meta.items():
            values[name] = images[i]
        read = {i: bases[i] for i in traced.described}
        source = Source(traced, read, self._kept, self.needed, ids, carrier)
        return *images[: traced.n_images], Meta(values, later(traced), source, traced.names)

    def _connect(
        self, images: list[Tensor | None], centers: Tensor, leaf: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Connects images, in place, to the inputs by nodes of autograd. Returns the centers, and the carrier if there
        is one."""
        traced, bases, inputs = self._runner.traced, self._bases, [*self._tensors, leaf]
        common = _Differentiation(self._runner, ids, self._kept, self._n_packed, self._n_slots)
        links: list[Tensor | None] = []
        carrier = None
        if traced.of_centers is not None:
            own = [inputs[i] for i in traced.of_centers.inputs]
            saved = [bases[i] for i in traced.of_centers.saved]
            centers, carrier = apply(_Centers, common, [centers], saved, *own)
            links = [centers, carrier]
        links += [None if i == ABSGRAD else inputs[i] for i in traced.of_images.inputs]
        roots = [images[i] for i in traced.differentiable]
        saved = [bases[i] for i in traced.of_images.saved]
        for i, image in zip(traced.differentiable, apply(_Images, common, roots, saved, centers, *links)):
            images[i] = image
        return centers, carrier


class _Centers(torch.autograd.Function):
    """From inputs to projected centers, and to the carrier."""

    @staticmethod
    def forward(
        ctx: Any, common: _Differentiation, outputs: list[Tensor], saved: list[Tensor], *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*saved, *inputs)  # also those that are not read, see ``once_differentiable``
        ctx.common, traced = common, common.runner.traced
        ctx.set_materialize_grads(False)
        return outputs[0], traced.zero.expand(traced.v_carrier.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v_centers: Tensor | None, v_carrier: Tensor | None) -> Gradients:
        common: _Differentiation = ctx.common
        traced = common.runner.traced
        assert traced.of_centers is not None and traced.v_centers is not None
        of_centers, _ = traced.v_centers
        if v_centers is None:
            v_centers = of_centers.zeros(traced.device, common.n_packed)
        if v_carrier is None:
            v_carrier = traced.v_carrier.zeros(traced.device)
        results = common.run(traced.of_centers, saved, (v_centers, v_carrier))
        return None, None, None, *_gradients(traced.of_centers, results, traced.crossing)


class _Images(torch.autograd.Function):
    """From projected centers, the carrier, and inputs that only compositing reads, to images."""

    @staticmethod
    def forward(
        ctx: Any,
        common: _Differentiation,
        outputs: list[Tensor],
        saved: list[Tensor],
        centers: Tensor,
        *links: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*saved, *links)  # also those that are not read, see ``once_differentiable``
        ctx.common = common
        ctx.centers = centers if ABSGRAD in common.runner.traced.of_images.inputs else None
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v: Tensor | None) -> Gradients:
        common: _Differentiation = ctx.common
        traced = common.runner.traced
        backward = traced.of_images
        images = zip(traced.v_images, traced.v_views, v, strict=True)
        given = [o.zeros(traced.device) if each is None else _memory_of(each, view) for o, view, each in images]
        results = common.run(backward, saved, given)
        v_links: list[Tensor | None] = []
        if traced.v_centers is not None:
            (v_centers, depends), v_carrier = traced.v_centers, traced.v_carrier
            v_links = [results[v_centers.base] if depends else None, results[v_carrier.base]]
        for i, gradient in zip(backward.inputs, _gradients(backward, results, traced.crossing)):
            if i == ABSGRAD:
                ctx.centers.absgrad = common.packed(gradient)
            of_leaf = i == traced.n_inputs
            v_links.append(None if i == ABSGRAD else common.packed(gradient) if of_leaf else gradient)
        return None, None, None, None, *v_links


def _memory_of(values: Tensor, view: View | None) -> Tensor:
    """Returns the memory of values with the strides of a view: their own, or that of a copy. None is for C order."""
    if view is None:
        return values.contiguous()
    if view.strides != values.stride():
        values = values.new_empty(values.numel()).as_strided(view.shape, view.strides).copy_(values)
    return values.as_strided((values.numel(),), (1,))


def _aligned(values: Tensor) -> Tensor:
    """Returns values in C order at an address that is aligned, as those of the trace are."""
    values = values.contiguous()
    return values.clone() if values.data_ptr() % SPECIALIZED_ALIGNMENT else values


def _gradients(backward: BackwardPass, bases: dict[int, Tensor], crossing: Container[int]) -> list[Tensor | None]:
    """Returns the gradients that a backward pass completes. Those in bases that cross to the other pass are copied."""
    return [
        None if view is None
        else view.of(bases[view.base]).clone() if view.base in crossing
        else whole(view, bases)
        for view in backward.gradients
    ]  # fmt: skip
