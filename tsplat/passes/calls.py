"""A replayed call: runs the passes, and connects their results to the inputs by two autograd nodes.

The first node maps inputs to ``means2d``, whose gradient strategies read, and to carriers. The second node maps
``means2d``, the first carrier, and the inputs that only compositing reads, to images. A *carrier* is a tensor without
content. Its gradient is an arena. That of the first one holds the other gradients that the backward pass of images
hands over to the backward pass of ``means2d``, such as those of conics, opacities and colors of rows. A second carrier,
if needed, stands for the values of ``meta`` that images do not depend on. It has a gradient only if the loss reads one
of these.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..config import Size
from ..runtime.async_copies import read_async
from ..runtime.autograd import Gradients, apply, once_differentiable
from ..stages.meta import Meta
from .arenas import SPECIALIZED_ALIGNMENT, View, acquire_scratch, release_scratch, shared_zeros, tensor_of_view
from .call_traces import ABSGRAD
from .replayed_meta import ForwardState, MetaSource, lazy_values
from .traced_calls import BackwardPass, Handover, TracedCall


class ForwardResult(NamedTuple):
    """The results of a forward pass.

    Attributes:
        bases: The bases by number: inputs, outputs, and the saved arena.
        state: See :class:`.ForwardState`.
    """

    bases: list[Any]
    state: ForwardState


class Runner(Protocol):
    """Runs the passes of a traced call. Implemented by :class:`ReplayRunner` and :class:`.GraphRunner`."""

    traced: TracedCall

    def forward(self, tensors: Sequence[Tensor]) -> ForwardResult: ...

    def backward(
        self,
        backward_pass: BackwardPass,
        saved: Sequence[Tensor | None],
        incoming: Sequence[Tensor | None],
        state: ForwardState,
    ) -> dict[int, Tensor]: ...


class ReplayRunner:
    """Replays the passes of a traced call at new addresses."""

    def __init__(self, traced: TracedCall) -> None:
        self.traced = traced

    def forward(self, tensors: Sequence[Tensor]) -> ForwardResult:
        """Runs the forward pass."""
        traced, forward = self.traced, self.traced.forward
        arena = torch.empty(forward.saved_arena.size, dtype=torch.uint8, device=traced.device)
        outputs = [output.allocate(traced.device) for output in forward.outputs]
        until_counted, *rest = forward.parts
        scratch = acquire_scratch(forward.scratch.size, traced.device)
        bases: list[Any] = [*tensors, *outputs, arena, scratch]
        until_counted.run(bases)
        needed, n_packed = read_counts(traced, arena, on_gpu=traced.on_gpu)
        for replayed in rest:
            replayed.run(bases)
        release_scratch(scratch)
        del bases[-1]
        slots = traced.images_backward.slots
        read_n_slots = None if slots is None else read_async(slots.n_used.of(bases[slots.n_used.base]))
        return ForwardResult(bases, ForwardState(needed, n_packed, read_n_slots=read_n_slots))

    def backward(
        self,
        backward_pass: BackwardPass,
        saved: Sequence[Tensor | None],
        incoming: Sequence[Tensor | None],
        state: ForwardState,
    ) -> dict[int, Tensor]:
        """Runs a backward pass.

        Args:
            backward_pass: The pass.
            saved: The bases ``backward_pass.saved`` of the forward pass; None for a saved arena that is lent.
            incoming: The incoming gradients, for the bases ``backward_pass.incoming``; None for zeros.
            state: The state of the forward pass.

        Returns:
            Bases by number, with at least ``backward_pass.results``.
        """
        device, steps = self.traced.device, backward_pass.steps
        given = [
            shared_zeros(n_bytes, device, steps.stream()) if v is None else _aligned(v)
            for n_bytes, v in zip(backward_pass.incoming.values(), incoming, strict=True)
        ]
        if state.n_packed is not None and backward_pass is self.traced.means2d_backward:
            given[0] = _with_rows(given[0], self.traced.means2d.shape[0])
        tensors: list[Any] = [*saved, *given, *backward_pass.allocate_outputs(device)]
        size = backward_pass.scratch.size
        if backward_pass.slots is not None and state.read_n_slots is not None:
            size = backward_pass.slots.arena_size(state.read_n_slots())
        scratch = acquire_scratch(size, device)
        steps.run([*tensors, scratch])
        release_scratch(scratch)
        return dict(zip(steps.order, tensors))


class _BackwardContext(NamedTuple):
    """The state shared by both autograd nodes of a call.

    Attributes:
        runner: Runs the passes of the call.
        state: The state of its forward pass.
    """

    runner: Runner
    state: ForwardState

    def run(
        self, backward_pass: BackwardPass, saved: Sequence[Tensor], incoming: Sequence[Tensor | None]
    ) -> dict[int, Tensor]:
        """Runs a backward pass; see :meth:`ReplayRunner.backward`. `saved` may have additional tensors at the end."""
        saved = saved[: len(backward_pass.saved)]
        return self.runner.backward(backward_pass, saved, incoming, self.state)


def read_counts(traced: TracedCall, arena: Tensor, *, on_gpu: bool) -> tuple[list[int] | None, int | None]:
    """Reads ``needed`` and ``n_packed`` of :class:`.ForwardState`. Waits for the device, unless both are None."""
    if not traced.counts_lists and not traced.is_packed:
        return None, None
    needed = traced.needed.of(arena).tolist() if on_gpu else list(_integers_on_cpu(traced.needed, arena))
    return needed if traced.counts_lists else None, needed[Size.ROWS] if traced.is_packed else None


def _integers_on_cpu(view: View, base: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Returns the values of a view [n] int64 on a CPU by ctypes, which is faster than PyTorch operators."""
    return (ctypes.c_int64 * view.shape.numel()).from_address(base.data_ptr() + view.offset)


class ReplayedCall:
    """A replayed call. The constructor runs the forward pass.

    Args:
        runner: Runs the passes.
        tensors: The inputs.

    Attributes:
        state: The state of the forward pass.
    """

    def __init__(self, runner: Runner, tensors: Sequence[Tensor]) -> None:
        self._runner, self._tensors = runner, tensors
        self._bases, self.state = runner.forward(tensors)

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return self.state.tensor(view, self._bases)

    def overflows(self) -> bool:
        """Returns whether a capacity was exceeded. For CPUs only."""
        needed = self._runner.traced.needed
        lent = self.state.lent
        arena = self._bases[needed.base] if lent is None else lent.memory
        return _integers_on_cpu(needed, arena)[-1] != 0

    def results(self) -> tuple[Any, ...]:
        """Returns the results of the rendering function."""
        traced, bases = self._runner.traced, self._bases
        images = [None if view is None else tensor_of_view(view, bases) for view in traced.images]
        means2d = tensor_of_view(traced.means2d, bases, self.state.n_packed)
        gradient_2dgs = None
        if traced.gradient_2dgs is not None:
            gradient_2dgs = torch.zeros_like(means2d, requires_grad=bool(traced.differentiable))
        carriers: list[Tensor] = []
        if traced.differentiable:
            means2d, *carriers = self._connect(images, means2d, gradient_2dgs)
        values = {**traced.meta.constants, "means2d": means2d}
        if gradient_2dgs is not None:
            values["gradient_2dgs"] = gradient_2dgs
        for name, i in traced.in_meta.items():
            values[name] = images[i]
        meta_bases = {i: bases[i] for i in traced.meta.bases}
        source = MetaSource(traced, meta_bases, self.state, carriers)
        return *images[: traced.n_images], Meta(values, lazy_values(traced), source, traced.meta.keys)

    def _connect(self, images: list[Tensor | None], means2d: Tensor, gradient_2dgs: Tensor | None) -> list[Tensor]:
        """Connects images, in place, to the inputs by autograd nodes. Returns ``means2d`` and the carriers."""
        traced, bases, inputs = self._runner.traced, self._bases, [*self._tensors, gradient_2dgs]
        context = _BackwardContext(self._runner, self.state)
        links: list[Tensor | None] = []
        carriers: list[Tensor] = []
        if traced.means2d_backward is not None:
            means2d_inputs = [inputs[i] for i in traced.means2d_backward.inputs]
            saved = [bases[i] for i in traced.means2d_backward.saved]
            means2d, *carriers = apply(_ToMeans2d, context, [means2d], saved, *means2d_inputs)
            links = [means2d, carriers[0]]
        links += [None if i == ABSGRAD else inputs[i] for i in traced.images_backward.inputs]
        roots = [images[i] for i in traced.differentiable]
        saved = [bases[i] for i in traced.images_backward.saved]
        for i, image in zip(traced.differentiable, apply(_ToImages, context, roots, saved, means2d, *links)):
            images[i] = image
        return [means2d, *carriers]


class _ToMeans2d(torch.autograd.Function):
    """The autograd node from inputs to ``means2d`` and the carriers."""

    @staticmethod
    def forward(
        ctx: Any, context: _BackwardContext, outputs: list[Tensor], saved: list[Tensor], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*saved, *inputs)  # inputs are not read: see ``once_differentiable``
        ctx.context, handover = context, context.runner.traced.handover
        assert handover is not None
        ctx.set_materialize_grads(False)
        return outputs[0], *[handover.carrier.expand(v_carrier.shape) for v_carrier in handover.v_carriers]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        saved: tuple[Tensor, ...],
        v_means2d: Tensor | None,
        v_carrier: Tensor | None,
        *v_others: Tensor | None,
    ) -> Gradients:
        context: _BackwardContext = ctx.context
        traced = context.runner.traced
        handover, backward_pass = traced.handover, traced.means2d_backward
        assert handover is not None and backward_pass is not None
        if v_means2d is None:
            v_means2d = context.state.rows(handover.v_means2d.zeros(traced.device))
        if v_carrier is None:
            v_carrier = handover.v_carriers[0].zeros(traced.device)
        results = context.run(backward_pass, saved, (v_means2d, v_carrier, *v_others))
        return None, None, None, *_gradients(backward_pass, results, handover)


class _ToImages(torch.autograd.Function):
    """The autograd node from ``means2d``, the first carrier, and inputs that only compositing reads, to images."""

    @staticmethod
    def forward(
        ctx: Any,
        context: _BackwardContext,
        outputs: list[Tensor],
        saved: list[Tensor],
        means2d: Tensor,
        *links: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*saved, *links)  # inputs are not read: see ``once_differentiable``
        ctx.context = context
        ctx.means2d = means2d if ABSGRAD in context.runner.traced.images_backward.inputs else None
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v: Tensor | None) -> Gradients:
        context: _BackwardContext = ctx.context
        traced = context.runner.traced
        backward_pass = traced.images_backward
        incoming = [
            None if v_image is None else _flat_with_strides(v_image, view)
            for view, v_image in zip(traced.v_views, v, strict=True)
        ]
        results = context.run(backward_pass, saved, incoming)
        v_links: list[Tensor | None] = []
        if (handover := traced.handover) is not None:
            v_means2d, v_carrier = results[handover.v_means2d.base], results[handover.v_carriers[0].base]
            v_links = [context.state.rows(v_means2d) if handover.images_use_means2d else None, v_carrier]
        for i, gradient in zip(backward_pass.inputs, _gradients(backward_pass, results, handover)):
            if i == ABSGRAD:
                ctx.means2d.absgrad, gradient = None if gradient is None else context.state.rows(gradient), None
            elif i == traced.n_inputs and gradient is not None:  # of ``gradient_2dgs``
                gradient = context.state.rows(gradient)
            v_links.append(gradient)
        return None, None, None, None, *v_links


def _flat_with_strides(values: Tensor, view: View | None) -> Tensor:
    """Returns values as a flat tensor, in the memory order of a view or, for None, in C order. Copies if necessary."""
    if view is None:
        return values.contiguous()
    if view.strides != values.stride():
        values = values.new_empty(values.numel()).as_strided(view.shape, view.strides).copy_(values)
    return values.as_strided((values.numel(),), (1,))


def _aligned(values: Tensor) -> Tensor:
    """Returns values in C order at an aligned address, as in the trace."""
    values = values.contiguous()
    return values.clone() if values.data_ptr() % SPECIALIZED_ALIGNMENT else values


def _with_rows(values: Tensor, n: int) -> Tensor:
    """Extends values [m, 2] in C order to [n, 2], with arbitrary other rows. Copies if memory is too small."""
    remaining = values.untyped_storage().nbytes() - values.storage_offset() * values.itemsize
    if remaining < n * 2 * values.itemsize:
        rows = values.new_empty(n, 2)
        rows[: len(values)] = values
        return rows
    return values.as_strided((n, 2), (2, 1))


def _gradients(backward_pass: BackwardPass, bases: dict[int, Tensor], handover: Handover | None) -> list[Tensor | None]:
    """Returns the gradients of inputs that a backward pass completes. Copies those in bases that are handed over."""
    handed_over = () if handover is None else handover.bases
    return [
        None if view is None
        else view.of(bases[view.base]).clone() if view.base in handed_over
        else tensor_of_view(view, bases)
        for view in backward_pass.gradients
    ]  # fmt: skip
