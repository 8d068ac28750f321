"""Traces a rendering call and its backward pass while the stages run them."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .. import output_maps
from ..errors import UnsupportedError
from ..runtime.bundles import leaves
from ..runtime.tracing import Step, Trace, TracedTensor, storage_of
from ..stages.intersection import BandedIntersections, described_by_meta
from ..stages.overflow_checks import deferred
from .arenas import (
    SPECIALIZED_ALIGNMENT,
    live_steps,
)
from .replay import runs_on_gpu

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


class ForwardTrace(NamedTuple):
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

    @property
    def means2d(self) -> Tensor:
        means2d: Tensor = self.values["means2d"]
        return means2d

    @property
    def gradient_2dgs(self) -> Tensor | None:
        return self.values.get("gradient_2dgs")


class BackwardTrace(NamedTuple):
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


class CallTrace(NamedTuple):
    """The trace of a call, without dead steps.

    Attributes:
        forward_steps: The steps of the forward pass.
        images_backward_steps: The steps of the backward pass from images to ``means2d``.
        means2d_backward_steps: The steps of the backward pass from ``means2d`` to the inputs.
        inputs: The tensors among the arguments.
        forward: The results. Its ``meta_inputs`` have intersections instead of :class:`.BandedIntersections`.
        banded: The :class:`.BandedIntersections`.
        backward: The gradients.
        on_gpu: Whether kernels run on a real or emulated GPU.
        slot_usage: See :class:`.Trace`.
    """

    forward_steps: list[Step]
    images_backward_steps: list[Step]
    means2d_backward_steps: list[Step]
    inputs: list[Tensor]
    forward: ForwardTrace
    banded: BandedIntersections
    backward: BackwardTrace
    on_gpu: bool
    slot_usage: dict[int, tuple[TracedTensor, int]]


def trace_call(
    function: Callable[..., Any], arguments: dict[str, Any], v_strides: Mapping[int, tuple[int, ...]]
) -> CallTrace:
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
    bounds = itertools.pairwise([0, n_forward, backward.split, len(trace.steps)])
    first, second, third = [
        list(itertools.compress(trace.steps[begin:end], is_live[begin:end])) for begin, end in bounds
    ]
    return CallTrace(first, second, third, inputs, forward, banded, backward, on_gpu, trace.slot_usage)


def _trace_forward(trace: Trace, function: Callable[..., Any], arguments: dict[str, Any]) -> ForwardTrace:
    """Traces a rendering function without its backward pass."""
    with deferred() as checks:
        *images, meta = trace.record(functools.partial(function, **arguments))
    (check,) = checks
    values, n_images = dict(dict.items(meta)), len(images)
    named = [output.meta for output in output_maps.IN_META if output.meta in values]
    extra = {n: values[n] for n in named if values[n].shape[:-1] == images[0].shape[:-1]}  # or values of rows
    images += [image for image in extra.values() if all(image is not other for other in images)]
    in_meta = {name: next(i for i, other in enumerate(images) if other is image) for name, image in extra.items()}
    return ForwardTrace(images, n_images, in_meta, values, meta.source, check.needed)


def _trace_backward(
    trace: Trace, forward: ForwardTrace, inputs: list[Tensor], v_strides: Mapping[int, tuple[int, ...]]
) -> BackwardTrace:
    """Traces the backward pass from all images to the inputs."""
    images, means2d = forward.images, forward.means2d
    differentiable = {i: image for i, image in enumerate(images) if image is not None and image.requires_grad}
    roots = list(differentiable.values())
    v_images = [_zeros_like(root, v_strides.get(i)) for i, root in differentiable.items()]
    rows = {name: getattr(forward.meta_inputs.projected, name) for name in set(ROW_FIELDS.values())} | {
        "means2d": means2d
    }
    rows = {name: row for name, row in rows.items() if row is not None and row.requires_grad}
    targets: dict[Any, Tensor] = {
        i: t for i, t in enumerate([*inputs, forward.gradient_2dgs]) if t is not None and t.requires_grad
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
                means2d.register_hook(lambda _: splits.append(len(trace.steps)))  # type: ignore[no-untyped-call]
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
    return BackwardTrace(min(splits, default=len(trace.steps)), v_images, v_targets, v_means2d, v_rows, zeros)


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


def with_own_storages(arguments: dict[str, Any], enabled: bool) -> dict[str, Any]:
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
