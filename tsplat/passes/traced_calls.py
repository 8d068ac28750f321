"""Traces a rendering call while the stages run it, and makes its passes and the views of its results."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .. import output_maps
from ..config import Capacities
from ..errors import UnsupportedError
from ..precision import full_precision
from ..runtime.bundles import leaves, map_tree
from ..runtime.tracing import Step, Trace, TracedTensor, storage_of
from ..stages.capacity import deferred
from ..stages.intersection import BandedIntersections, described_by_meta
from ..stages.meta import MetaInputs
from .arenas import (
    FOREVER,
    SPECIALIZED_ALIGNMENT,
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
    live_steps,
    tensors_of,
    view_of_output,
)
from .replay import Pass, runs_on_gpu

ROW_FIELDS = {
    "depths": "depths",
    "opacities": "opacities",
    "conics": "shapes",
    "ray_transforms": "shapes",
    "normals": "normals",
}
"""Keys of ``meta`` that are differentiable, besides ``means2d`` -> field of ``ProjectedGaussians``."""

ABSGRAD = -1
"""Input number that stands for ``absgrad`` of ``means2d``."""


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
        carrier: The output that is the gradient of the carrier, see `calls`; or None.
    """

    steps: Pass
    inputs: list[int]
    gradients: list[View | None]
    outputs: list[AllocatedBase]
    scratch: Arena
    slots: ArenaSlots | None
    saved: list[int]
    incoming: dict[int, int]
    carrier: AllocatedBase | None

    @property
    def results(self) -> list[int]:
        """The bases that hold its results: its outputs, and the bases of gradients."""
        outputs = [output.base for output in self.outputs]
        return list(dict.fromkeys(outputs + [view.base for view in self.gradients if view is not None]))

    def allocate_outputs(self, device: torch.device) -> list[Tensor]:
        """Allocates the bases of ``outputs``."""
        outputs = [output.allocate(device) for output in self.outputs]
        if self.carrier is not None and torch.is_anomaly_enabled():  # it checks all elements for NaN, also unused ones
            outputs[self.outputs.index(self.carrier)].zero_()
        return outputs


class _ForwardTrace(NamedTuple):
    """The results of a traced rendering function.

    Attributes:
        images: The returned values except ``meta``, then the images in ``meta``.
        n_images: The number of returned values except ``meta``.
        in_meta: Key of ``meta`` -> index of the image.
        values: The values of ``meta`` that are not lazy.
        meta_inputs: The source of the lazy values.
        needed: See :class:`tsplat.data.Intersections`.
    """

    images: list[Tensor | None]
    n_images: int
    in_meta: dict[str, int]
    values: dict[str, Any]
    meta_inputs: Any
    needed: Tensor


class _BackwardTrace(NamedTuple):
    """The gradients of a traced rendering function.

    Attributes:
        split: The number of steps before those from ``means2d`` to the inputs.
        v_images: The incoming gradients of images.
        gradients: Number of an input, or ``ABSGRAD`` -> its gradient or None.
        v_means2d, v_rows: Gradients of ``means2d``, and of the other results of the projection by name.
        zeros: Name -> gradient of the results of the projection that images do not depend on.
    """

    split: int
    v_images: list[Tensor]
    gradients: dict[int, Tensor | None]
    v_means2d: Tensor | None
    v_rows: dict[str, Tensor]
    zeros: dict[str, Tensor]


class _CallTrace(NamedTuple):
    """The trace of a call, without dead steps.

    Attributes:
        steps: The steps of the forward pass, of the backward pass from images to ``means2d``, and of the backward pass
            from ``means2d`` to the inputs.
        n_forward, split: The indices of the first steps of the two backward passes.
        inputs: The tensors among the arguments.
        forward: The results. Its ``meta_inputs`` have intersections instead of :class:`.BandedIntersections`.
        banded: The :class:`.BandedIntersections`.
        backward: The gradients.
        on_gpu: Whether kernels run on a real or emulated GPU.
        slot_usage: See :class:`.Trace`.
    """

    steps: list[Step]
    n_forward: int
    split: int
    inputs: list[Tensor]
    forward: _ForwardTrace
    banded: BandedIntersections
    backward: _BackwardTrace
    on_gpu: bool
    slot_usage: dict[int, tuple[TracedTensor, int]]


def _trace_call(
    function: Callable[..., Any], arguments: dict[str, Any], v_strides: Mapping[int, tuple[int, ...]]
) -> _CallTrace:
    """Traces a rendering function and its backward pass."""
    inputs = [value for value in arguments.values() if isinstance(value, Tensor)]
    on_gpu = runs_on_gpu(inputs[0])
    trace = Trace(runs_kernels=False, tracks_slots=on_gpu)
    forward = _trace_forward(trace, function, arguments)
    n_forward = len(trace.steps)
    backward = _trace_backward(trace, forward, inputs, v_strides)
    banded: BandedIntersections = forward.meta_inputs.intersections
    assert banded.whole is not None
    described = forward.meta_inputs._replace(intersections=described_by_meta(banded.whole))
    forward = forward._replace(meta_inputs=described)
    results = [
        *leaves((forward.images, forward.meta_inputs, list(forward.values.values()), forward.needed), Tensor),
        *leaves((list(backward.gradients.values()), backward.v_means2d, list(backward.v_rows.values())), Tensor),
    ]
    needed = {storage_of(result) for result in results} | {n.storage for n, _ in trace.slot_usage.values()}
    is_live = live_steps(trace.steps, needed)
    steps = list(itertools.compress(trace.steps, is_live))
    split = sum(is_live[: backward.split])
    return _CallTrace(
        steps, sum(is_live[:n_forward]), split, inputs, forward, banded, backward, on_gpu, trace.slot_usage
    )


def _trace_forward(trace: Trace, function: Callable[..., Any], arguments: dict[str, Any]) -> _ForwardTrace:
    """Traces a rendering function without its backward pass."""
    with deferred() as checks:
        *images, meta = trace.record(functools.partial(function, **arguments))
    (check,) = checks
    values, n_images = dict(dict.items(meta)), len(images)
    named = [output.meta for output in output_maps.IN_META if output.meta in values]
    extra = {n: values[n] for n in named if values[n].shape[:-1] == images[0].shape[:-1]}  # or values of rows
    images += [image for image in extra.values() if all(image is not other for other in images)]
    in_meta = {name: next(i for i, other in enumerate(images) if other is image) for name, image in extra.items()}
    return _ForwardTrace(images, n_images, in_meta, values, meta.source, check.needed)


def _trace_backward(
    trace: Trace, forward: _ForwardTrace, inputs: list[Tensor], v_strides: Mapping[int, tuple[int, ...]]
) -> _BackwardTrace:
    """Traces the backward pass from all images to the inputs."""
    images, values, means2d = forward.images, forward.values, forward.values["means2d"]
    differentiable = {i: image for i, image in enumerate(images) if image is not None and image.requires_grad}
    roots = list(differentiable.values())
    v_images = [_zeros_like(root, v_strides.get(i)) for i, root in differentiable.items()]
    rows = {name: getattr(forward.meta_inputs.projected, name) for name in set(ROW_FIELDS.values())} | {
        "means2d": means2d
    }
    rows = {name: row for name, row in rows.items() if row is not None and row.requires_grad}
    targets: dict[Any, Tensor] = {
        i: t for i, t in enumerate([*inputs, values.get("gradient_2dgs")]) if t is not None and t.requires_grad
    }
    v_targets: dict[Any, Tensor | None] = {}
    zeros: dict[str, Tensor] = {}
    splits: list[int] = []
    if roots:
        with torch.autograd.set_multithreading_enabled(False):
            # Rows that images do not depend on get gradients of zero, to which callers may add.
            reached = _edges_from(roots)
            zeros = {n: torch.zeros_like(row) for n, row in rows.items() if get_gradient_edge(row)[:2] not in reached}
            if "means2d" in rows:
                # The first backward pass ends with the gradient of means2d.
                means2d.register_hook(lambda _: splits.append(len(trace.steps)))
            targets |= {name: row for name, row in rows.items() if name not in zeros}
            outputs, v_outputs = [*roots, *[rows[name] for name in zeros]], [*v_images, *zeros.values()]
            sources = list(targets.values())
            gradients = trace.record(lambda: torch.autograd.grad(outputs, sources, v_outputs, allow_unused=True))
        v_targets = dict(zip(targets, gradients, strict=True)) | zeros
        if any(v_targets[name] is None for name in rows):
            raise UnsupportedError("a backward pass computes no gradient for rows that images depend on")
    if not trace.external.keys() <= {storage_of(tensor) for tensor in (*inputs, *v_images, *zeros.values())}:
        raise UnsupportedError("a tensor is neither an argument nor created by the call")
    v_means2d = v_targets.pop("means2d", None)
    v_rows = {name: v for name in rows if (v := v_targets.pop(name, None)) is not None}
    if (absgrad := getattr(means2d, "absgrad", None)) is not None:
        v_targets[ABSGRAD] = absgrad
    return _BackwardTrace(min(splits, default=len(trace.steps)), v_images, v_targets, v_means2d, v_rows, zeros)


def _last_use(steps: Sequence[Step], tensor: Tensor) -> int:
    """Returns the index of the last step that uses a tensor."""
    storage = storage_of(tensor)
    return max(i for i, step in enumerate(steps) if any(used.storage == storage for used in tensors_of(step)))


def _zeros_like(tensor: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """Returns zeros with the shape and dtype of a tensor, with the given strides or in C order."""
    zeros = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    return zeros if strides is None else zeros.as_strided(zeros.shape, strides)


def _edges_from(roots: list[Tensor]) -> set[tuple[Any, int]]:
    """Returns the edges, (node, output number), that gradients of roots reach in the autograd graph."""
    reached: set[tuple[Any, int]] = set()
    todo: list[Any] = [root.grad_fn for root in roots]
    while todo:
        edges = {edge for edge in todo.pop().next_functions if edge[0] is not None} - reached
        todo += [node for node, _ in edges]
        reached |= edges
    return reached


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
        on_gpu: As in :class:`_CallTrace`.
        is_packed: Whether rows are packed. Tensors of rows then have as many rows as the capacity.
        forward: The forward pass. On a GPU, it has two parts; after the first one, the required sizes of lists and the
            number of packed rows are known.
        outputs: The bases that the forward pass allocates for images, ``means2d`` and ``gradient_2dgs``.
        saved_arena, scratch: The arena that backward passes and ``meta`` read, and the arena that is not needed after
            the forward pass.
        images, n_images, in_meta: As in :class:`_ForwardTrace`, with views.
        differentiable: The indices of differentiable images.
        means2d, gradient_2dgs: The views of ``means2d``, and of ``gradient_2dgs`` or None.
        meta_keys: The keys of ``meta`` whose values are not lazy, in their order.
        meta_constants: Key -> value, for values of ``meta`` that are not tensors.
        rows: Key -> view, for values of ``meta`` that are tensors with rows of Gaussians.
        meta_inputs, bands, budget: The source of the lazy values of ``meta``, with views instead of tensors.
        needed: The view of ``needed``, [N_NEEDED] int64, see :class:`tsplat.data.Intersections`.
        meta_bases: The bases that ``meta`` reads.
        images_backward: The backward pass from images to ``means2d``, and to the inputs of compositing.
        means2d_backward: The backward pass from ``means2d`` to the other inputs; None if none depends on ``means2d``.
        v_images, v_views: The bases of the gradients of images; and their views, or None for C order.
        v_means2d: The base of the gradient of ``means2d``, and whether images depend on ``means2d``; or None.
        v_carriers: The bases of the gradients of carriers, see `calls`: arenas of the dtype of ``means2d``.
        handed_over: The bases of the gradients of ``means2d`` and of carriers, or none.
        v_row: Key of ``meta`` -> view of its gradient in one of ``v_carriers``.
        zero: A carrier before it is expanded. Its value does not matter.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        v_strides: Mapping[int, tuple[int, ...]],
        *,
        counts_lists: bool,
    ) -> None:
        self.counts_lists = counts_lists
        enabled = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(enabled), full_precision():
            call = _trace_call(function, _with_own_storages(arguments, enabled), v_strides)
        self.capacities: Capacities = call.forward.meta_inputs.options.capacity
        self.is_packed: bool = call.forward.meta_inputs.options.packed
        bases = Bases()
        self._place_forward(call, bases)
        self._place_meta(call, bases)
        self._place_backward(call, bases)

    def _place_forward(self, call: _CallTrace, bases: Bases) -> None:
        forward = call.forward
        self.n_inputs = len(call.inputs)
        for tensor in call.inputs:
            bases.add(TracedTensor.of(tensor))
        means2d, gradient_2dgs = forward.values["means2d"], forward.values.get("gradient_2dgs")
        outputs = [tensor for tensor in (*forward.images, means2d, gradient_2dgs) if tensor is not None]
        if any(bases.has(storage_of(tensor)) for tensor in outputs):
            raise UnsupportedError("an image is a view of an input")
        self.outputs = [add_output(bases, tensor) for tensor in outputs if not bases.has(storage_of(tensor))]
        steps, rest = call.steps[: call.n_forward], call.steps[call.n_forward :]
        lifetimes = lifetimes_of(steps, bases)
        saved = {tensor.storage for step in rest for tensor in tensors_of(step)}
        saved |= {
            storage_of(t) for t in leaves((forward.meta_inputs, *forward.values.values(), forward.needed), Tensor)
        }
        saved |= {n.storage for n, _ in call.slot_usage.values()}
        kept = [life._replace(last=FOREVER) for s, life in lifetimes.items() if s in saved]
        others = [life for s, life in lifetimes.items() if s not in saved]
        self.saved_arena, self.scratch = add_saved_and_scratch(bases, kept, others)
        self.images = [
            None if image is None else view_of_output(bases, image.detach(), self.outputs) for image in forward.images
        ]
        self.n_images, self.in_meta = forward.n_images, forward.in_meta
        self.differentiable = [i for i, t in enumerate(forward.images) if t is not None and t.requires_grad]
        self.means2d = view_of_output(bases, means2d, self.outputs)
        self.gradient_2dgs = None if gradient_2dgs is None else bases.view(gradient_2dgs)
        self.device, self.on_gpu = means2d.device, call.on_gpu
        # On a GPU, a call reads `needed` as soon as the last list has been counted, before it is composited.
        n = _last_use(steps, forward.needed) + 1
        parts = (steps[:n], steps[n:]) if self.on_gpu else (steps,)
        self.forward = [Pass(part, bases, range(bases.n), on_gpu=self.on_gpu) for part in parts]

    def _place_meta(self, call: _CallTrace, bases: Bases) -> None:
        forward = call.forward
        values, special = forward.values, {"means2d", "gradient_2dgs", *forward.in_meta}
        self.meta_keys = list(values)
        self.meta_constants = {n: v for n, v in values.items() if not isinstance(v, Tensor)}
        self.rows = {n: bases.view(v) for n, v in values.items() if isinstance(v, Tensor) and n not in special}
        self.budget, self.bands = copy.copy(call.banded.budget), call.banded.bands
        self.budget.limit, self.budget.peak_bytes = None, 0
        self.meta_inputs: MetaInputs = map_tree(forward.meta_inputs, Tensor, bases.view)
        self.needed = bases.view(forward.needed)
        views: list[View] = [*self.rows.values(), self.needed, self.means2d]
        map_tree(self.meta_inputs, View, views.append)
        self.meta_bases = sorted({view.base for view in views})

    def _place_backward(self, call: _CallTrace, bases: Bases) -> None:
        forward, backward = call.forward, call.backward
        n_forward, dtype = bases.n, forward.values["means2d"].dtype
        first, second = call.steps[call.n_forward : call.split], call.steps[call.split :]
        self.v_images = [add_output(bases, v) for v in backward.v_images]
        self.v_views = [None if v.is_contiguous() else bases.view(v) for v in backward.v_images]
        self.v_means2d: tuple[AllocatedBase, bool] | None = None
        if (v_means2d := backward.v_means2d) is not None:
            output = add_output(bases, v_means2d)
            self.v_means2d = output, "means2d" not in backward.zeros
            if output.shape != self.means2d.shape:
                raise UnsupportedError("the gradient of means2d is a view of another tensor")
        if any(g is not None and bases.has(storage_of(g)) for g in backward.gradients.values()):
            raise UnsupportedError("a gradient is a view of another tensor of the call")
        zeros = [v for name, v in backward.v_rows.items() if name in backward.zeros]
        of_first, of_second = lifetimes_of(first, bases), lifetimes_of(second, bases)
        handed_over = [life for storage, life in of_first.items() if storage in of_second]
        if any(life.size % dtype.itemsize for life in handed_over):
            raise UnsupportedError("a tensor between the two backward passes does not have the dtype of means2d")
        self.v_carriers = [_add_carrier(bases, handed_over, dtype)]
        if zeros:
            of_zeros = [Lifetime(t.storage, t.size, 0, FOREVER) for t in map(TracedTensor.of, zeros)]
            self.v_carriers.append(_add_carrier(bases, of_zeros, dtype))
        v_outputs = [] if self.v_means2d is None else [self.v_means2d[0], *self.v_carriers]
        self.handed_over = {base.base for base in v_outputs}
        self.v_row = {
            name: bases.view(backward.v_rows[row]) for name, row in ROW_FIELDS.items() if row in backward.v_rows
        }
        if not {view.base for view in self.v_row.values()} <= {v_carrier.base for v_carrier in self.v_carriers}:
            raise UnsupportedError("the gradient of a row is not passed to the second backward pass")
        self.zero = torch.zeros(1, dtype=dtype, device=forward.values["means2d"].device)
        passes = []
        for steps, lifetimes, is_second in ((first, of_first, False), (second, of_second, True)):
            gradients = {
                i: g
                for i, g in backward.gradients.items()
                if (g is not None and storage_of(g) in of_second) == is_second
            }
            outputs = [
                add_output(bases, g) for g in gradients.values() if g is not None and not bases.has(storage_of(g))
            ]
            v_carrier = None
            if self.v_means2d is not None and not is_second:
                v_carrier = self.v_carriers[0]
                outputs += [self.v_means2d[0], v_carrier]
            inside = [life for storage, life in lifetimes.items() if not bases.has(storage)]
            scratch, slots = _add_scratch(bases, inside, call.slot_usage)
            views = [None if g is None else view_of_output(bases, g, outputs) for g in gradients.values()]
            used = {bases.view(tensor).base for step in steps for tensor in tensors_of(step)}
            saved = sorted(base for base in used if base < n_forward)
            incoming = {
                base: math.prod(shape) * dtype.itemsize
                for base, shape, _, dtype in (v_outputs if is_second else self.v_images)
            }
            order = [*saved, *incoming, *(output.base for output in outputs), scratch.base]
            replayed = Pass(steps, bases, order, on_gpu=self.on_gpu)
            passes.append(
                BackwardPass(replayed, list(gradients), views, outputs, scratch, slots, saved, incoming, v_carrier)
            )
        self.images_backward, self.means2d_backward = passes[0], None if v_means2d is None else passes[1]


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


def _add_carrier(bases: Bases, storages: list[Lifetime], dtype: torch.dtype) -> AllocatedBase:
    """Adds the base of the gradient of a carrier, with storages."""
    base = bases.add()
    offsets, size = assign_offsets([life._replace(first=0, last=FOREVER) for life in storages])
    for storage, offset in offsets.items():
        bases.place(base, storage, offset)
    return AllocatedBase(base, (max(size // dtype.itemsize, 1),), (1,), dtype)


def _with_own_storages(arguments: dict[str, Any], enabled: bool) -> dict[str, Any]:
    """Returns arguments whose tensors are leaves with distinct storages, by which a trace distinguishes them.

    Copies a tensor only if it shares its storage with another one, or was made in inference mode.
    """
    n_uses = Counter(storage_of(value) for value in arguments.values() if isinstance(value, Tensor))

    def separate(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if n_uses[storage_of(value)] > 1 or value.is_inference():
            return copy_with_layout(value, enabled)
        return value.detach().requires_grad_(enabled and value.requires_grad)

    return {name: separate(value) for name, value in arguments.items()}


def copy_with_layout(tensor: Tensor, enabled: bool = False) -> Tensor:
    """Copies a tensor to a new storage, with the same strides and alignment.

    The copy requires a gradient if the tensor does and gradients are ``enabled``.
    """
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    offset = tensor.data_ptr() % SPECIALIZED_ALIGNMENT // tensor.itemsize
    with torch.no_grad():
        memory = tensor.detach().new_empty(offset + extent)
        memory[offset:].copy_(tensor.detach().as_strided((extent,), (1,)))
        copied = memory.as_strided(tensor.shape, tensor.stride(), offset).detach()
    return copied.requires_grad_(enabled and tensor.requires_grad)
