"""A rendering call that is captured in CUDA graphs.

Graphs read arguments where they are, if calls pass them at the same addresses, and otherwise copies. A call replays the
forward pass and copies the images; its backward pass does the same with gradients. Two nodes of autograd stand for what
was captured. Between them are the projected centers, whose gradients strategies read.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import Capacities
from ..errors import UnsupportedError
from ..precision import full_precision
from ..stages.autograd import Gradients, apply, once_differentiable
from ..stages.capacity import any_overflow, deferred, graph_room, needed_by
from ..stages.meta import Meta
from .cuda_graphs import GraphRecorder

IDS = dict.fromkeys(("batch_ids", "camera_ids", "gaussian_ids"))
"""What ``meta`` has of rows that are not packed."""


class _Run(NamedTuple):
    """What a captured forward pass returns: images, some of which may be None; values of ``meta``; and projected
    centers, or what stands for them in gradients, which is the value of this name."""

    images: list[Tensor | None]
    values: dict[str, Any]
    centers_name: str

    @property
    def centers(self) -> Tensor:
        found: Tensor = self.values[self.centers_name]
        return found


class _Lease:
    """Lives as long as a backward pass may need what a call saved."""


class CapturedCall:
    """A captured call, with the tensors that it reads and writes.

    Args:
        function: The rendering function.
        arguments: Of a call.
        in_place: For each of its tensors, whether graphs read it where it is; other calls must have it there as well.
        n_intersections: What a call like it needed, for a first try; then lists are fitted to what it needs itself.
        least: What there is room for at least, which is tried first then.
        recorder: What captures it.

    Attributes:
        room: What there is room for.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        in_place: Sequence[bool],
        n_intersections: int,
        least: Capacities | None,
        recorder: GraphRecorder,
    ) -> None:
        self.room = graph_room(Capacities(*[n_intersections] * 4), least)
        self._function = function
        self._turn, self._is_spent = 0, False
        self._lease: weakref.ref[_Lease] | None = None
        self._v_centers: tuple[int, Tensor | None, int] = (0, None, 0)
        self._found: list[Tensor | None] | None = None
        enabled = torch.is_grad_enabled()
        own = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        with torch.inference_mode(False), torch.no_grad():
            for (name, tensor), is_read in zip(own.items(), in_place, strict=True):
                own[name] = tensor.detach() if is_read else tensor.clone()
                own[name].requires_grad_(enabled and tensor.requires_grad)
        self._arguments: dict[str, Any] = arguments | own
        self._inputs = list(own.values())
        self._in_place = [i for i, is_read in enumerate(in_place) if is_read]
        self._copied = [i for i, is_read in enumerate(in_place) if not is_read]
        self._own_copies = [self._inputs[i] for i in self._copied]
        self._needed = [i for i, tensor in enumerate(self._inputs) if tensor.requires_grad]
        with torch.inference_mode(False), torch.set_grad_enabled(enabled), full_precision():
            self._capture(recorder, least)

    def _capture(self, recorder: GraphRecorder, least: Capacities | None) -> None:
        recorder.warm_up(self._try)
        # The lists of parts may need more room than intersections, and spans need less.
        while (room := self.needed_room(self.room if any_overflow(self._calls) else least)) != self.room:
            self.room = room
            recorder.warm_up(self._try)
        # Pinned memory: freed in a capture, also of another thread, it would have an event of that, which PyTorch later
        # fails to query.
        recorder.warm_up(self._calls.clear)
        run, self._replay_forward = recorder.record(self._forward)
        self._is_zero = [True] * len(self._v)
        self._own_v_centers: Tensor | None = None
        if self._v:
            gradients, self._replay_backward = recorder.record(self._backward)
            *self._gradients, self._own_v_centers, self._absgrad = gradients
        self._keep(run)
        # What is read in place belongs to the caller.
        del self._function, self._arguments, self._inputs, self._last

    def _keep(self, run: _Run) -> None:
        """Keeps results, without what autograd keeps for them."""
        self._differentiable = [i for i, t in enumerate(run.images) if t is not None and t.requires_grad]
        self._images = [None if image is None else image.detach() for image in run.images]
        self._centers, self._centers_name = run.centers.detach(), run.centers_name
        self._is_leaf, self._requires_grad = run.centers.is_leaf, run.centers.requires_grad
        tensors = {name: value for name, value in run.values.items() if isinstance(value, Tensor)}
        self._constants = {name: value for name, value in run.values.items() if name not in tensors} | IDS
        del tensors[run.centers_name]
        self._values = {name: value.detach() for name, value in tensors.items()}
        self._dependent = {name for name, value in tensors.items() if value.requires_grad}
        self._later = {name: functools.partial(_read, name) for name in tensors}

    def _try(self) -> None:
        """Renders, and computes gradients."""
        self._v = [torch.zeros_like(image) for image in _roots(self._forward())]
        if self._v:
            self._backward()

    def _forward(self) -> _Run:
        with deferred() as self._calls:
            *images, meta = self._function(**self._arguments | {"capacity": self.room})
        # Without what depends on the number of intersections.
        values = dict(dict.items(meta)) | {name: meta[name] for name in ("n_invalid", "overflow")}
        self._last = _Run(images, values, "gradient_2dgs" if "gradient_2dgs" in values else "means2d")
        return self._last

    def _backward(self) -> list[Tensor | None]:
        """The gradients of inputs that require one, and of centers; and absgrad."""
        run = self._last
        inputs = [t for t in (*self._inputs, run.centers) if t.requires_grad]
        with torch.autograd.set_multithreading_enabled(False):
            found = torch.autograd.grad(_roots(run), inputs, self._v, allow_unused=True)
        v_centers = found if run.centers.requires_grad else (*found, None)
        return [*v_centers, getattr(run.values["means2d"], "absgrad", None)]

    def needed_room(self, least: Capacities | None) -> Capacities:
        """What another graph has to have room for, after a call."""
        return graph_room(needed_by(self._calls), least)

    def is_free(self) -> bool:
        """Whether no backward pass may need what the last call saved."""
        return self._lease is None or self._lease() is None

    def render(self, tensors: list[Tensor]) -> tuple[Any, ...] | None:
        """Renders with other tensors of the same kind; None if there was no room. Waits for the device."""
        self._turn, self._is_spent, self._found = self._turn + 1, False, None
        with torch.no_grad():
            if self._copied:
                torch._foreach_copy_(self._own_copies, [tensors[i] for i in self._copied])
            self._replay_forward()
            if any_overflow(self._calls):
                return None
            centers, *images = _copies([self._centers, *self._images])
        assert centers is not None
        if self._is_leaf:
            centers.requires_grad_(self._requires_grad)
        values = {**self._constants, self._centers_name: centers}
        if self._v:
            # The gradients of inputs follow that of the centers, or otherwise that of a tensor without elements.
            outputs = [] if self._is_leaf else [centers]
            if self._is_leaf or self._own_v_centers is None:
                outputs.insert(0, centers.new_empty(0))
            links = apply(_Inputs, self, outputs, *[tensors[i] for i in self._needed]) if self._needed else outputs
            links = (*links, centers) if self._is_leaf else links
            kept, roots = [tensors[i] for i in self._in_place], [images[i] for i in self._differentiable]
            centers = links[-1]
            values[self._centers_name] = centers
            if self._absgrad is not None and "means2d" not in values:  # 2D Gaussians
                values["means2d"] = _read("means2d", (self, self._turn))
            target = [values["means2d"]] if self._absgrad is not None else []
            for i, image in zip(self._differentiable, apply(_Images, self, roots, kept, target, *links)):
                images[i] = image
        return *images, Meta(values, self._later, (self, self._turn))

    def lend(self) -> tuple[_Lease, int]:
        """What a backward pass keeps, so that the call stays what it needs; and its turn."""
        lease = _Lease()
        self._lease = weakref.ref(lease)
        return lease, self._turn

    def differentiate(self, turn: int, v: Sequence[Tensor | None], target: list[Tensor]) -> Tensor | None:
        """Computes all gradients, given those of the images, and ``absgrad`` of a target. Returns that of centers."""
        if turn != self._turn:
            raise UnsupportedError(
                "backward: a later call has replaced what this one saved; differentiate an image once, before its loss "
                "is released, or call the function that is not graphed"
            )
        if self._is_spent:
            self._replay_forward()  # the backward pass reuses its memory
        self._is_spent = True
        for i, (own, given) in enumerate(zip(self._v, v, strict=True)):
            if given is not None:
                own.copy_(given)
            elif not self._is_zero[i]:
                own.zero_()
            self._is_zero[i] = given is None
        self._replay_backward()
        v_centers, absgrad, *self._found = _copies([self._own_v_centers, self._absgrad, *self._gradients])
        self._v_centers = turn, v_centers, 0 if v_centers is None else v_centers._version
        for tensor in target:
            tensor.absgrad = absgrad  # type: ignore[attr-defined]
        return v_centers

    def input_gradients(self, turn: int, v_centers: Tensor | None) -> list[Tensor | None]:
        """The gradients of the inputs that require one, given what :meth:`differentiate` has returned."""
        own_turn, own, version = self._v_centers
        if v_centers is not None:
            is_own = own_turn == turn and own is not None and own.data_ptr() == v_centers.data_ptr()
            if not is_own or v_centers._version != version:
                raise _refusal("means2d")
        elif own_turn != turn:
            return [None] * len(self._gradients)
        gradients = _copies(self._gradients) if self._found is None else self._found
        self._lease = self._found = None
        return gradients


class _Inputs(torch.autograd.Function):
    """From the inputs of a call to the projected centers, if they depend on them, or a tensor without elements."""

    @staticmethod
    def forward(ctx: Any, call: CapturedCall, outputs: list[Tensor], *_inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.turn = call, call._turn
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Any, ...], *v: Tensor | None) -> Gradients:
        return None, None, *ctx.call.input_gradients(ctx.turn, v[-1])


class _Images(torch.autograd.Function):
    """From projected centers, which are the last of the links, to images. The target, if there is one, gets absgrad."""

    @staticmethod
    def forward(
        ctx: Any, call: CapturedCall, outputs: list[Tensor], read: list[Tensor], target: list[Tensor], *links: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.target, ctx.n_links = call, target, len(links)
        ctx.save_for_backward(*read)  # raises if they are changed before the backward pass
        ctx.lease, ctx.turn = call.lend()
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Any, ...], *v: Tensor | None) -> Gradients:
        v_centers = ctx.call.differentiate(ctx.turn, v, ctx.target)
        return None, None, None, None, *[None] * (ctx.n_links - 1), v_centers


class _Undifferentiable(torch.autograd.Function):
    """A copy of a tensor of ``meta``, which depends on an input."""

    @staticmethod
    def forward(ctx: Any, name: str, copy: Tensor, _dependence: Tensor) -> Tensor:
        ctx.name = name
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, *_v: Tensor) -> Gradients:
        raise _refusal(ctx.name)


def _read(name: str, source: tuple[CapturedCall, int]) -> Tensor:
    """Returns a tensor of ``meta``, as it is computed when it is read."""
    call, turn = source
    if turn != call._turn:
        raise UnsupportedError(f"meta[{name!r}]: a later graphed call has replaced it; read it before the next call")
    value = call._values[name].clone()
    if name in call._dependent:
        refused: Tensor = apply(_Undifferentiable, name, value, value.new_empty(0).requires_grad_())
        return refused
    return value


def _refusal(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"meta[{name!r}]: in a graphed call only images have gradients; call the function itself for losses of others"
    )


def _roots(run: _Run) -> list[Tensor]:
    """The images that have gradients."""
    return [image for image in run.images if image is not None and image.requires_grad]


def _copies(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copies tensors that need no gradient, in one launch."""
    copies = [None if tensor is None else torch.empty_like(tensor) for tensor in tensors]
    given = [tensor for tensor in tensors if tensor is not None]
    if given:
        torch._foreach_copy_([copy for copy in copies if copy is not None], given)
    return copies
