"""A replayed call: it runs passes, and two nodes of autograd stand for what they compute.

The first node goes from the inputs to the projected centers, whose gradients strategies read, and to the carrier, a
tensor of no content that stands for all else that images depend on: its gradient is the memory in which one backward
pass leaves what the other reads. The second node goes from both, and from inputs that only compositing reads, to the
images.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from ..stages.autograd import Gradients, apply, once_differentiable
from ..stages.meta import Meta
from .arenas import SPECIALIZED_ALIGNMENT, View, scratch_memory, whole
from .replayed_meta import Source, later
from .traced_calls import ABSGRAD, BackwardPass, TracedCall


class ReplayedCall:
    """A call whose forward pass has run.

    Args:
        traced: What is replayed.
        tensors: The inputs.

    Attributes:
        needed: What lists needed: spans, intersections, entries and chunks; and 1 if they did not fit. None if the
            caller gave a capacity.
    """

    def __init__(self, traced: TracedCall, tensors: list[Tensor]) -> None:
        self._traced, self._tensors = traced, tensors
        self._bases: list[Any] = [
            *tensors,
            *[torch.empty(o.shape, dtype=o.dtype, device=traced.device) for o in traced.outputs],
            torch.empty(traced.kept[1], dtype=torch.uint8, device=traced.device),
        ]
        until_counted, *rest = traced.forward  # all of it on a CPU
        with scratch_memory(traced.scratch[1], traced.device) as scratch:
            bases = [*self._bases, scratch]
            until_counted.run([bases[i] for i in until_counted.used])
            self.needed = self._read_needed() if traced.is_exact else None
            for replayed in rest:
                replayed.run([bases[i] for i in replayed.used])

    def _read_needed(self) -> list[int]:
        """Waits for the device."""
        needed = self._traced.needed
        if self._traced.device.type == "cpu":
            address = self._bases[needed.base].data_ptr() + needed.offset
            return (ctypes.c_int64 * 5).from_address(address)[:]
        found: list[int] = self.tensor(needed).tolist()
        return found

    def tensor(self, view: View) -> Tensor:
        """Returns the tensor of a view."""
        return view.of(self._bases[view.base])

    def results(self, *, packed: bool) -> tuple[Any, ...]:
        """Returns what the rendering function returns."""
        traced, bases = self._traced, self._bases
        images = [None if view is None else whole(view, bases) for view in traced.images]
        centers = whole(traced.centers, bases)
        ids = None
        if packed:
            from ..kernels.launch import indices_of

            ids = indices_of(self.tensor(traced.radii)[:, 0])
            centers = _rows(centers, ids)
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
        read = [base if i in traced.described else None for i, base in enumerate(bases)]
        source = Source(traced, read, self.needed, ids, carrier)
        return *images[: traced.n_images], Meta(values, later(traced, packed=packed), source, traced.names)

    def _connect(
        self, images: list[Tensor | None], centers: Tensor, leaf: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Connects images, in place, to the inputs by nodes of autograd. Returns the centers, and the carrier if there
        is one."""
        traced, bases, inputs = self._traced, self._bases, [*self._tensors, leaf]
        links: list[Tensor | None] = []
        carrier = None
        if traced.of_centers is not None:
            own = [inputs[i] for i in traced.of_centers.inputs]
            saved = [bases[i] for i in traced.of_centers.saved]
            centers, carrier = apply(_Centers, traced, [centers], ids, saved, *own)
            links = [centers, carrier]
        links += [None if i == ABSGRAD else inputs[i] for i in traced.of_images.inputs]
        roots = [images[i] for i in traced.differentiable]
        saved = [bases[i] for i in traced.of_images.saved]
        for i, image in zip(traced.differentiable, apply(_Images, traced, roots, ids, saved, centers, *links)):
            images[i] = image
        return centers, carrier


class _Centers(torch.autograd.Function):
    """From inputs to projected centers, and to the carrier."""

    @staticmethod
    def forward(
        ctx: Any, traced: TracedCall, outputs: list[Tensor], ids: Tensor | None, saved: list[Tensor], *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*saved, *inputs)  # also those that are not read, see ``once_differentiable``
        ctx.traced, ctx.ids = traced, ids
        ctx.set_materialize_grads(False)
        return outputs[0], traced.zero.expand(traced.v_carrier[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v_centers: Tensor | None, v_carrier: Tensor | None) -> Gradients:
        traced: TracedCall = ctx.traced
        backward, (base, size, _) = traced.of_centers, traced.v_carrier
        assert backward is not None and traced.v_centers is not None
        output, _ = traced.v_centers
        if v_centers is None or ctx.ids is not None or not v_centers.is_contiguous():
            dense = torch.zeros(output.shape, dtype=output.dtype, device=traced.device)
            if v_centers is not None and ctx.ids is None:
                dense.copy_(v_centers)
            elif v_centers is not None:
                _set_rows(dense, ctx.ids, v_centers)
            v_centers = dense
        if v_carrier is None:
            v_carrier = torch.zeros(size, dtype=output.dtype, device=traced.device)
        given = {output.base: _aligned(v_centers), base: _aligned(v_carrier)}
        return None, None, None, None, *_differentiate(backward, saved, given, traced.device)


class _Images(torch.autograd.Function):
    """From projected centers, the carrier, and inputs that only compositing reads, to images."""

    @staticmethod
    def forward(
        ctx: Any,
        traced: TracedCall,
        outputs: list[Tensor],
        ids: Tensor | None,
        saved: list[Tensor],
        centers: Tensor,
        *links: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*saved, *links)  # also those that are not read, see ``once_differentiable``
        ctx.traced, ctx.ids = traced, ids
        ctx.centers = centers if ABSGRAD in traced.of_images.inputs else None
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v: Tensor | None) -> Gradients:
        traced: TracedCall = ctx.traced
        given = {
            o.base: torch.zeros(o.shape, dtype=o.dtype, device=traced.device) if each is None else _aligned(each)
            for o, each in zip(traced.v_images, v, strict=True)
        }
        v_links: list[Tensor | None] = []
        if traced.v_centers is not None:
            (output, depends), (base, size, n_zeros) = traced.v_centers, traced.v_carrier
            given[output.base] = torch.empty(output.shape, dtype=output.dtype, device=traced.device)
            # Autograd must not find values that are not finite where it looks for them.
            allocate = torch.zeros if torch.is_anomaly_enabled() else torch.empty
            given[base] = allocate(size, dtype=output.dtype, device=traced.device)
            given[base][:n_zeros].zero_()
        gradients = _differentiate(traced.of_images, saved, given, traced.device)
        if traced.v_centers is not None:
            v_links = [_packed(given[output.base], ctx.ids) if depends else None, given[base]]
        for i, gradient in zip(traced.of_images.inputs, gradients):
            if i == ABSGRAD:
                ctx.centers.absgrad = _packed(gradient, ctx.ids)
            of_leaf = i == traced.n_inputs
            v_links.append(None if i == ABSGRAD else _packed(gradient, ctx.ids) if of_leaf else gradient)
        return None, None, None, None, None, *v_links


def _aligned(values: Tensor) -> Tensor:
    """Returns values in C order at an address that is aligned, as those of the trace are."""
    values = values.contiguous()
    return values.clone() if values.data_ptr() % SPECIALIZED_ALIGNMENT else values


def _rows(values: Tensor, ids: Tensor) -> Tensor:
    """Returns rows of values [..., 2]. By NumPy on a CPU, which takes less time."""
    if values.is_cpu:
        return torch.from_numpy(values.numpy().reshape(-1, 2)[ids.numpy()])
    return values.view(-1, 2)[ids]


def _set_rows(values: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Sets rows of values [..., 2]."""
    if values.is_cpu:
        values.numpy().reshape(-1, 2)[ids.numpy()] = rows.numpy()
    else:
        values.view(-1, 2)[ids] = rows


def _packed(values: Tensor | None, ids: Tensor | None) -> Tensor | None:
    """Returns the rows of values [..., 2] that are packed; the values if none are."""
    return values if values is None or ids is None else _rows(values, ids)


def _differentiate(
    backward: BackwardPass, saved: tuple[Tensor, ...], given: dict[int, Tensor], device: torch.device
) -> list[Tensor | None]:
    """Returns the gradients that a backward pass completes."""
    bases = dict(zip(backward.saved, saved))
    bases |= given
    for output in backward.outputs:
        bases[output.base] = torch.empty(output.shape, dtype=output.dtype, device=device)
    base, size = backward.scratch
    with scratch_memory(size, device) as bases[base]:
        backward.steps.run([bases[i] for i in backward.steps.used])
    return [
        None if view is None
        else view.of(given[view.base]).clone() if view.base in given  # which the other pass reads as well
        else whole(view, bases)
        for view in backward.gradients
    ]  # fmt: skip
