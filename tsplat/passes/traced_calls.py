"""The passes of a traced call, and the views of its results: memory is assigned to the tensors of its trace."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import Capacities
from ..errors import UnsupportedError
from ..precision import full_precision
from ..runtime.bundles import leaves, map_tree
from ..runtime.memory import MemoryBudget
from ..runtime.tracing import Step, TracedTensor, storage_of
from ..stages.meta import MetaInputs
from .arenas import (
    FOREVER,
    AllocatedBase,
    Arena,
    ArenaSlots,
    Bases,
    Lifetime,
    View,
    add_arena,
    add_arena_with_tail,
    add_output,
    add_saved_and_scratch,
    assign_offsets,
    lifetimes_of,
    tensors_of,
    view_of_output,
)
from .call_traces import ROW_FIELDS, BackwardTrace, CallTrace, trace_call, with_own_storages
from .replay import Pass


class ForwardPass(NamedTuple):
    """The forward pass, and the bases that it allocates.

    Attributes:
        parts: Its steps. On a GPU, there are two parts: after the first one, the required sizes of lists and the number
            of packed rows are known. Both take all bases: the inputs, and those below in this order.
        outputs: The bases of images, ``means2d`` and ``gradient_2dgs``.
        saved_arena: The arena that backward passes and ``meta`` read.
        scratch: The arena that is not needed after the forward pass.
    """

    parts: list[Pass]
    outputs: list[AllocatedBase]
    saved_arena: Arena
    scratch: Arena


class BackwardPass(NamedTuple):
    """A backward pass: its steps, and the bases that they read and write.

    Attributes:
        steps: The steps. They take the bases ``saved``, ``incoming``, the bases of ``outputs``, and ``scratch``.
        inputs: The numbers of the inputs whose gradients it completes. The number after the last input stands for
            ``gradient_2dgs``, and ``ABSGRAD`` for absgrad.
        gradients: The view of each of these gradients; None if images do not depend on the input.
        outputs: The bases that it allocates: gradients, and data for the other backward pass.
        scratch: The arena of internal tensors.
        slots: The slots of compositing at the tail of ``scratch``; or None.
        saved: The bases of the forward pass that it reads.
        incoming: The bases of the incoming gradients -> their sizes in bytes.
        v_carrier: The output that is the gradient of the first carrier, see `calls`; or None.
    """

    steps: Pass
    inputs: list[int]
    gradients: list[View | None]
    outputs: list[AllocatedBase]
    scratch: Arena
    slots: ArenaSlots | None
    saved: list[int]
    incoming: dict[int, int]
    v_carrier: AllocatedBase | None

    @property
    def results(self) -> list[int]:
        """The bases that hold its results: its outputs, and the bases of gradients."""
        outputs = [output.base for output in self.outputs]
        return list(dict.fromkeys(outputs + [view.base for view in self.gradients if view is not None]))

    def allocate_outputs(self, device: torch.device) -> list[Tensor]:
        """Allocates the bases of ``outputs``."""
        outputs = [output.allocate(device) for output in self.outputs]
        if self.v_carrier is not None and torch.is_anomaly_enabled():  # anomaly mode checks unused elements, too
            outputs[self.outputs.index(self.v_carrier)].zero_()
        return outputs


class Handover(NamedTuple):
    """The gradients that the backward pass of images hands over to the backward pass of ``means2d``.

    Attributes:
        v_means2d: The base of the gradient of ``means2d``.
        images_use_means2d: Whether images depend on ``means2d``. Otherwise, its gradient is zero.
        v_carriers: The bases of the gradients of carriers, see `calls`: arenas of the dtype of ``means2d``.
        v_rows: Key of ``meta`` -> view of its gradient in one of ``v_carriers``.
        carrier: A carrier before it is expanded. Its value does not matter.
        bases: The numbers of the bases above.
    """

    v_means2d: AllocatedBase
    images_use_means2d: bool
    v_carriers: list[AllocatedBase]
    v_rows: dict[str, View]
    carrier: Tensor
    bases: set[int]


class TracedMeta(NamedTuple):
    """The values of ``meta``, with views instead of tensors.

    Attributes:
        keys: The keys whose values are not lazy, in their order.
        constants: Key -> value, for values that are not tensors.
        rows: Key -> view, for values that are tensors with rows of Gaussians.
        inputs: The source of the lazy values.
        bands, budget: The bands and the memory budget of the intersections.
        bases: The bases that ``meta`` reads.
    """

    keys: list[str]
    constants: dict[str, Any]
    rows: dict[str, View]
    inputs: MetaInputs
    bands: Sequence[Any]
    budget: MemoryBudget
    bases: list[int]


class TracedCall:
    """The passes of a call, and the views of its results.

    Args:
        function: The rendering function, which runs the stages.
        arguments: The arguments of a call with capacities for its lists (``with_capacities``).
        v_strides: Image index -> strides of its gradient; C order if absent.
        counts_lists: Whether calls wait for the required sizes of lists, because the caller gave no capacity.

    Attributes:
        capacities: The capacities of lists.
        counts_lists: As given.
        n_inputs: The number of tensors among the arguments. They are the first bases.
        device: The device of the call.
        on_gpu: Whether kernels run on a real or emulated GPU.
        is_packed: Whether rows are packed. Tensors of rows then have as many rows as the capacity.
        forward: The forward pass.
        images, n_images, in_meta: As in :class:`.ForwardTrace`, with views.
        differentiable: The indices of differentiable images.
        means2d, gradient_2dgs: The views of ``means2d``, and of ``gradient_2dgs`` or None.
        needed: The view of ``needed``, [N_NEEDED] int64, see :class:`tsplat.data.Intersections`.
        meta: The other values of ``meta``.
        v_images, v_views: The bases of the gradients of images; and their views, or None for C order.
        images_backward: The backward pass from images to ``means2d``, and to the inputs of compositing.
        handover, means2d_backward: The backward pass from ``means2d`` to the other inputs, and the gradients that it
            gets; None if no input depends on ``means2d``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        v_strides: Mapping[int, tuple[int, ...]],
        *,
        counts_lists: bool,
    ) -> None:
        enabled = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(enabled), full_precision():
            call = trace_call(function, with_own_storages(arguments, enabled), v_strides)
        forward, backward = call.forward, call.backward
        self.capacities: Capacities = forward.meta_inputs.options.capacity
        self.counts_lists, self.is_packed = counts_lists, forward.meta_inputs.options.packed
        self.device, self.on_gpu = forward.means2d.device, call.on_gpu
        self.n_inputs = len(call.inputs)

        bases = Bases()
        for tensor in call.inputs:
            bases.add(TracedTensor.of(tensor))
        self.forward = _forward_pass(call, bases)
        outputs = self.forward.outputs
        self.images = [None if t is None else view_of_output(bases, t.detach(), outputs) for t in forward.images]
        self.n_images, self.in_meta = forward.n_images, forward.in_meta
        self.differentiable = [i for i, t in enumerate(forward.images) if t is not None and t.requires_grad]
        self.means2d = view_of_output(bases, forward.means2d, outputs)
        self.gradient_2dgs = None if forward.gradient_2dgs is None else bases.view(forward.gradient_2dgs)
        self.needed = bases.view(forward.needed)
        self.meta = _traced_meta(call, bases, also_read=[self.needed, self.means2d])

        n_forward = bases.n
        _check_gradients(backward, bases)
        self.v_images = [add_output(bases, v) for v in backward.v_images]
        self.v_views = [None if v.is_contiguous() else bases.view(v) for v in backward.v_images]
        self.handover = None if backward.v_means2d is None else _hand_over(call, bases, backward.v_means2d)
        given = [] if self.handover is None else [self.handover.v_means2d, *self.handover.v_carriers]
        in_second = {tensor.storage for step in call.means2d_backward_steps for tensor in tensors_of(step)}
        first, second = dict[int, Tensor | None](), dict[int, Tensor | None]()
        for i, g in backward.gradients.items():
            (second if g is not None and storage_of(g) in in_second else first)[i] = g
        self.images_backward = _backward_pass(
            call, bases, call.images_backward_steps, self.v_images, given[:2], first, n_forward
        )
        self.means2d_backward = None
        if self.handover is not None:
            self.means2d_backward = _backward_pass(
                call, bases, call.means2d_backward_steps, given, [], second, n_forward
            )


def _check_gradients(backward: BackwardTrace, bases: Bases) -> None:
    """Raises UnsupportedError if a gradient shares memory with another tensor of the call."""
    others = {storage_of(v) for v in (*backward.v_images, backward.v_means2d) if v is not None}
    storages = [storage_of(gradient) for gradient in backward.gradients.values() if gradient is not None]
    if any(storage in others or bases.has(storage) for storage in storages):
        raise UnsupportedError("a gradient is a view of another tensor of the call")


def _forward_pass(call: CallTrace, bases: Bases) -> ForwardPass:
    """Adds the bases of the forward pass, and returns it."""
    forward = call.forward
    tensors = [t for t in (*forward.images, forward.means2d, forward.gradient_2dgs) if t is not None]
    if any(bases.has(storage_of(tensor)) for tensor in tensors):
        raise UnsupportedError("an image is a view of an input")
    outputs = [add_output(bases, tensor) for tensor in tensors if not bases.has(storage_of(tensor))]
    backward_steps = (*call.images_backward_steps, *call.means2d_backward_steps)
    read_later = {tensor.storage for step in backward_steps for tensor in tensors_of(step)}
    read_later |= {
        storage_of(t) for t in leaves((forward.meta_inputs, *forward.values.values(), forward.needed), Tensor)
    }
    read_later |= {n_used.storage for n_used, _ in call.slot_usage.values()}
    lifetimes = lifetimes_of(call.forward_steps, bases)
    saved = [life._replace(last=FOREVER) for storage, life in lifetimes.items() if storage in read_later]
    others = [life for storage, life in lifetimes.items() if storage not in read_later]
    arenas = add_saved_and_scratch(bases, saved, others)
    # On a GPU, a call reads `needed` as soon as the last list has been counted, before it is composited.
    n = _last_use(call.forward_steps, forward.needed) + 1
    parts = (call.forward_steps[:n], call.forward_steps[n:]) if call.on_gpu else (call.forward_steps,)
    return ForwardPass([Pass(part, bases, range(bases.n), on_gpu=call.on_gpu) for part in parts], outputs, *arenas)


def _last_use(steps: Sequence[Step], tensor: Tensor) -> int:
    """Returns the index of the last step that uses a tensor."""
    storage = storage_of(tensor)
    return max(i for i, step in enumerate(steps) if any(used.storage == storage for used in tensors_of(step)))


def _traced_meta(call: CallTrace, bases: Bases, also_read: Sequence[View]) -> TracedMeta:
    """Returns the values of ``meta`` as views. It also reads ``also_read``."""
    values, images = call.forward.values, {"means2d", "gradient_2dgs", *call.forward.in_meta}
    constants = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    rows = {name: bases.view(v) for name, v in values.items() if isinstance(v, Tensor) and name not in images}
    inputs: MetaInputs = map_tree(call.forward.meta_inputs, Tensor, bases.view)
    budget = copy.copy(call.banded.budget)
    budget.limit, budget.peak_bytes = None, 0
    read = {view.base for view in (*rows.values(), *leaves(inputs, View), *also_read)}
    return TracedMeta(list(values), constants, rows, inputs, call.banded.bands, budget, sorted(read))


def _hand_over(call: CallTrace, bases: Bases, v_means2d: Tensor) -> Handover:
    """Adds the bases of the gradients that the backward pass of images hands over, and returns them."""
    forward, backward = call.forward, call.backward
    means2d, dtype = forward.means2d, forward.means2d.dtype
    v_output = add_output(bases, v_means2d)
    if v_output.shape != means2d.shape:
        raise UnsupportedError("the gradient of means2d is a view of another tensor")
    read_later = lifetimes_of(call.means2d_backward_steps, bases)
    between = [life for s, life in lifetimes_of(call.images_backward_steps, bases).items() if s in read_later]
    if any(life.size % dtype.itemsize for life in between):
        raise UnsupportedError("a tensor between the two backward passes does not have the dtype of means2d")
    v_carriers = [_add_carrier(bases, between, dtype)]
    if zeros := [TracedTensor.of(v) for name, v in backward.v_rows.items() if name in backward.zeros]:
        v_carriers.append(_add_carrier(bases, [Lifetime(v.storage, v.size, 0, FOREVER) for v in zeros], dtype))
    v_rows = {name: bases.view(backward.v_rows[row]) for name, row in ROW_FIELDS.items() if row in backward.v_rows}
    if not {view.base for view in v_rows.values()} <= {v_carrier.base for v_carrier in v_carriers}:
        raise UnsupportedError("the gradient of a row is not passed to the second backward pass")
    carrier = torch.zeros(1, dtype=dtype, device=means2d.device)
    numbers = {each.base for each in (v_output, *v_carriers)}
    return Handover(v_output, "means2d" not in backward.zeros, v_carriers, v_rows, carrier, numbers)


def _add_carrier(bases: Bases, storages: list[Lifetime], dtype: torch.dtype) -> AllocatedBase:
    """Adds the base of the gradient of a carrier, with storages."""
    base = bases.add()
    offsets, size = assign_offsets([life._replace(first=0, last=FOREVER) for life in storages])
    for storage, offset in offsets.items():
        bases.place(base, storage, offset)
    return AllocatedBase(base, (max(size // dtype.itemsize, 1),), (1,), dtype)


def _backward_pass(
    call: CallTrace,
    bases: Bases,
    steps: Sequence[Step],
    incoming: Sequence[AllocatedBase],
    handed_over: Sequence[AllocatedBase],
    gradients: dict[int, Tensor | None],
    n_forward: int,
) -> BackwardPass:
    """Adds the bases of a backward pass, and returns it.

    Args:
        call: The trace.
        bases: The bases of the forward pass and of incoming gradients.
        steps: The steps of the backward pass.
        incoming: The bases of incoming gradients.
        handed_over: The gradients that it hands over: that of ``means2d``, and that of the first carrier; or none.
        gradients: Number of an input -> its gradient or None, for the gradients that it completes.
        n_forward: The number of bases of the forward pass, which are the first ones.
    """
    new = [add_output(bases, g) for g in gradients.values() if g is not None and not bases.has(storage_of(g))]
    outputs = [*new, *handed_over]
    scratch, slots = _add_scratch(bases, list(lifetimes_of(steps, bases).values()), call.slot_usage)
    views = [None if g is None else view_of_output(bases, g, outputs) for g in gradients.values()]
    used = {bases.view(tensor).base for step in steps for tensor in tensors_of(step)}
    saved = sorted(base for base in used if base < n_forward)
    sizes = {base: math.prod(shape) * dtype.itemsize for base, shape, _, dtype in incoming}
    order = [*saved, *sizes, *(output.base for output in outputs), scratch.base]
    replayed = Pass(steps, bases, order, on_gpu=call.on_gpu)
    v_carrier = handed_over[-1] if handed_over else None
    return BackwardPass(replayed, list(gradients), views, outputs, scratch, slots, saved, sizes, v_carrier)


def _add_scratch(
    bases: Bases, lifetimes: list[Lifetime], slot_usage: dict[int, tuple[TracedTensor, int]]
) -> tuple[Arena, ArenaSlots | None]:
    """Adds the arena of a backward pass. Returns it, and the slots of compositing at its tail, or None."""
    tail = next((life for life in lifetimes if life.storage in slot_usage), None)
    if tail is None:
        return add_arena(bases, lifetimes), None
    arena, offset = add_arena_with_tail(bases, [life for life in lifetimes if life is not tail], tail)
    n_used, slot_size = slot_usage[tail.storage]
    slots = ArenaSlots(bases.view(n_used), arena.size, offset, slot_size)
    return Arena(arena.base, slots.arena_size(-(-tail.size // slot_size))), slots
