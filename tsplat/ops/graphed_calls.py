"""Rendering calls that replay graphs: captured once for each kind of call, and replayed without their Python.

Graphs are those of CUDA; on a CPU, recorded launches. A graph reads and writes tensors of its own. A call copies its arguments there, replays the forward pass, and copies the
images; its backward pass does the same with gradients. Two nodes of autograd stand for what was captured. Between them
are the projected centers, whose gradients strategies read.
"""

import functools
import inspect
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import kind_of
from ..errors import UnsupportedError
from ..stages.autograd import Gradients, apply, once_differentiable
from ..stages.backend import choose
from ..stages.capacity import HEADROOM, deferred
from ..stages.meta import Meta
from ..stages.recording import LaunchRecorder
from .cuda_graphs import GraphRecorder

KINDS_MAX = 4
"""Kinds of calls whose graphs are kept."""

CALLS_MAX = 2
"""Calls of a kind that may wait for their backward passes; each has a graph and memory of its own."""

FEW = 20_000
"""Number of Gaussians up to which calls are recorded on a CPU. With more, Python takes little of their time."""

ONLY: dict[str, tuple[Any, ...]] = {
    "packed": (False,), "capacity": (None,), "sparse_grad": (False,), "distributed": (False,),
    "validate": ("cull", "off"), "backend": ("auto", "triton"),
}  # fmt: skip
"""Values that arguments of graphed calls may have; the first is the default."""

IDS = dict.fromkeys(("batch_ids", "camera_ids", "gaussian_ids"))
"""What ``meta`` has of rows that are not packed."""


def graphed(rasterization: Callable[..., Any]) -> "Graphed":
    """Makes a rendering function replay graphs of its calls, so that Python takes a fraction of the time.

    The result is called like the function, in any training loop, and gives the same bits. There are graphs for each
    kind of call: sizes, dtypes and devices of tensors, which of them require gradients, and all other arguments. The
    first call of a kind counts intersections, the second is captured, with room for 1.5 times as many, and later ones
    are replayed. Each waits once, to know whether there was room; if not, it runs again without a graph, and the next
    one is captured with twice the room. Calls run without a graph as well inside of ``torch.compile`` or another
    capture, and while two others of their kind wait for their backward passes. Graphs are released when the number of
    Gaussians changes. If one cannot be captured, a warning says why, and calls of its kind run without.

    On a GPU, these are CUDA graphs. On a CPU, launches and PyTorch's operators are recorded, of up to 20,000 Gaussians:
    with more, Python takes little of the time.

    Args:
        rasterization: :func:`tsplat.rasterization` or :func:`tsplat.rasterization_2dgs`.

    Returns:
        A function of the same arguments, with ``packed=False`` by default, and with a method ``clear()`` that releases
        all graphs. Images and gradients are those of the function. ``meta`` is without ``memory`` and lists of
        intersections; read it before the next call. ``meta["means2d"]``, or ``meta["gradient_2dgs"]`` of 2D Gaussians,
        has the gradients that strategies read, and ``absgrad``; no tensor of ``meta`` can be part of a loss.

    Raises:
        NotImplementedError: By a call, for ``packed=True``, a ``capacity``, ``sparse_grad``, ``distributed``,
            ``validate="error"``, another backend than Triton, and values that cannot be hashed; by ``meta`` of an
            earlier call; and by a backward pass, from tensors of ``meta``, or if later calls have replaced what it
            needs.

    Example::

        import torch
        from tsplat import graphed, rasterization

        rasterize = graphed(rasterization)  # once: it keeps the graphs
        means = (torch.randn(100, 3) + torch.tensor([0, 0, 5.0])).requires_grad_()
        for _ in range(3):
            image, alpha, meta = rasterize(
                means, torch.randn(100, 4), torch.full((100, 3), 0.1), torch.full((100,), 0.8), torch.rand(100, 3),
                torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]]), 80, 60,
            )
            image.mean().backward()
    """
    return Graphed(rasterization)


class Graphed:
    """What :func:`graphed` returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._names = tuple(inspect.signature(function).parameters)
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._size: torch.Size | None = None
        self._has_warned = False
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self._names, args))
        if len(args) > len(given) or given.keys() & kwargs.keys():
            return self._function(*args, **kwargs)  # raises
        arguments = {"packed": False, **given, **kwargs}
        for name, allowed in ONLY.items():
            if arguments.get(name, allowed[0]) not in allowed:
                values = " or ".join(map(repr, allowed))
                raise UnsupportedError(
                    f"{name}: must be {values} in a graphed call, found {arguments[name]!r}; call the function itself"
                )
        means = arguments.get("means")
        if not isinstance(means, Tensor) or not can_capture(means):
            return self._function(**arguments)
        with self._lock:
            found = self._render(arguments, means)
        return self._function(**arguments) if found is None else found

    def clear(self) -> None:
        """Releases all graphs; their memory is free once no backward pass needs it."""
        with self._lock:
            self._kinds.clear()

    def _render(self, arguments: dict[str, Any], means: Tensor) -> Any:
        """Renders by a graph, or for the first time; None if the function has to be called."""
        if means.shape != self._size:
            self._kinds.clear()
            self._size = means.shape
        described = [_describe(name, value) for name, value in arguments.items()]
        if None in described:
            return None
        key = (torch.is_grad_enabled(), _stream(means), *arguments, *described)
        kind = self._kinds.get(key)
        if kind is None:
            rendered = self._function(**arguments)
            memory = rendered[-1]["memory"]
            # What takes several bands has no room in one.
            self._kinds[key] = _Kind(int(HEADROOM * memory["n_intersections"]) + 1 if memory["bands"] == 1 else None)
            if len(self._kinds) > KINDS_MAX:
                self._kinds.popitem(last=False)
            return rendered
        self._kinds.move_to_end(key)
        call = next((call for call in kind.calls if call.is_free()), None)
        if call is None:
            if kind.capacity is None or len(kind.calls) == CALLS_MAX:
                return None
            try:
                with torch.cuda.device_of(means):  # type: ignore[no-untyped-call]
                    recorder = GraphRecorder() if means.is_cuda else LaunchRecorder()
                    call = _Call(self._function, arguments, kind.capacity, recorder)
            except Exception as error:  # what cannot be captured works without a graph
                kind.capacity = None
                if not self._has_warned:
                    logging.getLogger("tsplat").warning("tsplat: rendering without a CUDA graph: %s", error)
                self._has_warned = True
                return None
            kind.calls.append(call)
        rendered = call.render([value for value in arguments.values() if isinstance(value, Tensor)])
        if rendered is None:
            kind.capacity, kind.calls = 2 * call.capacity, []
        return rendered


class _Kind:
    """The graphs of a kind of call, and how many intersections another one has room for; None for no other one."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.calls: list[_Call] = []


class _Run(NamedTuple):
    """What a captured forward pass returns: images, some of which may be None; values of ``meta``; and projected
    centers, or what stands for them in gradients, which is one of these values."""

    images: list[Tensor | None]
    values: dict[str, Any]
    centers: Tensor


class _Lease:
    """Lives as long as a backward pass may need what a call saved."""


class _Call:
    """A captured call, with the tensors that it reads and writes.

    Args:
        function: The rendering function.
        arguments: Of a call; its tensors are copied.
        capacity: Number of intersections to have room for.
        recorder: What captures it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        capacity: int,
        recorder: GraphRecorder | LaunchRecorder,
    ) -> None:
        self.capacity = capacity
        self._function = function
        self._turn, self._is_spent = 0, False
        self._lease: weakref.ref[_Lease] | None = None
        self._v_centers: Tensor | None = None
        enabled = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.no_grad():
            own = {name: value.clone() for name, value in arguments.items() if isinstance(value, Tensor)}
        for name, tensor in own.items():
            tensor.requires_grad_(enabled and arguments[name].requires_grad)
        self._arguments: dict[str, Any] = {**arguments, **own, "capacity": capacity}
        self._inputs = list(own.values())
        with torch.inference_mode(False), torch.set_grad_enabled(enabled):
            self._capture(recorder)

    def _capture(self, recorder: GraphRecorder | LaunchRecorder) -> None:
        recorder.warm_up(self._try)
        self._run, self._replay_forward = recorder.record(self._forward)
        if self._v:
            gradients, self._replay_backward = recorder.record(self._backward)
            *self._gradients, self._own_v_centers, self._absgrad = gradients
        self._later = {
            name: functools.partial(_read, name)
            for name, value in self._run.values.items()
            if isinstance(value, Tensor) and value is not self._run.centers
        }

    def _try(self) -> None:
        """Renders, and computes gradients."""
        self._v = [torch.zeros_like(image) for image in _roots(self._forward())]
        if self._v:
            self._backward()

    def _forward(self) -> _Run:
        with deferred():
            *images, meta = self._function(**self._arguments)
        # Without what depends on the number of intersections.
        values = dict(dict.items(meta)) | {name: meta[name] for name in ("n_invalid", "overflow")}
        centers: Tensor = values["gradient_2dgs" if "gradient_2dgs" in values else "means2d"]
        self._last = _Run(images, values, centers)
        return self._last

    def _backward(self) -> list[Tensor | None]:
        """The gradients of inputs that require one, and of centers; and absgrad."""
        run = self._last
        inputs = [t for t in (*self._inputs, run.centers) if t.requires_grad]
        with torch.autograd.set_multithreading_enabled(False):
            found = torch.autograd.grad(_roots(run), inputs, self._v, allow_unused=True)
        v_centers = found if run.centers.requires_grad else (*found, None)
        return [*v_centers, getattr(run.centers, "absgrad", None)]

    def is_free(self) -> bool:
        """Whether no backward pass may need what the last call saved."""
        return self._lease is None or self._lease() is None

    def render(self, tensors: list[Tensor]) -> tuple[Any, ...] | None:
        """Renders with other tensors of the same kind; None if there was no room. Waits for the device."""
        self._turn, self._is_spent = self._turn + 1, False
        with torch.no_grad():
            torch._foreach_copy_(self._inputs, tensors)
        self._replay_forward()
        run = self._run
        if self._v:
            needed = [t for t, own in zip(tensors, self._inputs) if own.requires_grad]
            token, *rest = apply(_Inputs, self, *needed)
            centers = rest[0] if rest else self.copy_centers()
            roots = iter(apply(_Images, self, token, centers))
            images = [
                next(roots) if image is not None and image.requires_grad else _copy(image) for image in run.images
            ]
        else:
            images, centers = [_copy(image) for image in run.images], self.copy_centers()
        if run.values["overflow"]:
            return None
        values = {name: value for name, value in run.values.items() if name not in self._later} | IDS
        values["gradient_2dgs" if "gradient_2dgs" in values else "means2d"] = centers
        return *images, Meta(values, self._later, (self, self._turn))

    def copy_centers(self) -> Tensor:
        centers = self._run.centers
        return centers.detach().clone().requires_grad_(centers.is_leaf and centers.requires_grad)

    def lend(self) -> tuple[_Lease, int]:
        """What a backward pass keeps, so that the call stays what it needs; and its turn."""
        lease = _Lease()
        self._lease = weakref.ref(lease)
        return lease, self._turn

    def differentiate(self, turn: int, v: Sequence[Tensor | None], centers: Tensor) -> Tensor | None:
        """Computes all gradients, given those of the images. Returns that of the centers."""
        if turn != self._turn:
            raise UnsupportedError(
                "backward: a later call has replaced what this one saved; differentiate an image once, before its loss "
                "is released, or call the function that is not graphed"
            )
        if self._is_spent:
            self._replay_forward()  # the backward pass reuses its memory
        self._is_spent = True
        for own, given in zip(self._v, v, strict=True):
            own.zero_() if given is None else own.copy_(given)
        self._replay_backward()
        self._v_centers = _copy(self._own_v_centers)
        if self._absgrad is not None:
            centers.absgrad = self._absgrad.clone()  # type: ignore[attr-defined]
        return self._v_centers

    def input_gradients(self, v_centers: Tensor | None) -> list[Tensor | None]:
        """The gradients of the inputs that require one, given what :meth:`differentiate` has returned."""
        if v_centers is not None and v_centers is not self._v_centers:
            raise _refusal("means2d")
        gradients = [_copy(gradient) for gradient in self._gradients]
        self._lease = None
        return gradients


class _Inputs(torch.autograd.Function):
    """From the inputs of a call to a tensor without elements, and to the projected centers if they depend on them."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        token, centers = inputs[0].new_empty(0), call._run.centers
        return (token,) if centers.is_leaf else (token, centers.detach().clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Any, ...], *v: Tensor | None) -> Gradients:
        return None, *ctx.call.input_gradients(v[1] if len(v) > 1 else None)


class _Images(torch.autograd.Function):
    """From projected centers to images."""

    @staticmethod
    def forward(ctx: Any, call: _Call, _token: Tensor, centers: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.centers = call, centers
        ctx.lease, ctx.turn = call.lend()
        ctx.set_materialize_grads(False)
        return tuple([image.detach().clone() for image in _roots(call._run)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _saved: tuple[Any, ...], *v: Tensor | None) -> Gradients:
        return None, None, ctx.call.differentiate(ctx.turn, v, ctx.centers)


class _Undifferentiable(torch.autograd.Function):
    """A copy of a tensor of ``meta``, which depends on an input."""

    @staticmethod
    def forward(ctx: Any, name: str, value: Tensor, _input: Tensor) -> Tensor:
        ctx.name = name
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_v: Tensor) -> Gradients:
        raise _refusal(ctx.name)


def can_capture(means: Tensor) -> bool:
    """Returns whether calls on these means can be captured in a CUDA graph, or recorded on a CPU."""
    if torch.compiler.is_compiling() or not means.numel():
        return False
    if means.is_cuda:
        return not torch.cuda.is_current_stream_capturing()
    return means.numel() <= 3 * FEW and means.is_cpu and _is_compiled()


@functools.cache
def _is_compiled() -> bool:
    """Returns whether kernels are compiled for the CPU."""
    return choose(torch.device("cpu"))[0] == "triton"


def _stream(tensor: Tensor) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0


def _describe(name: str, value: Any) -> Hashable:
    """Returns what a graph depends on; None for a tensor that the function has to look at first."""
    if isinstance(value, Tensor):
        is_freed = value.numel() and not value.data_ptr()
        return None if is_freed else kind_of(value)
    try:
        hash(value)
    except TypeError:
        raise UnsupportedError(
            f"{name}: must be hashable in a graphed call, found a {type(value).__name__}; call the function itself"
        ) from None
    return type(value), value


def _read(name: str, source: tuple[_Call, int]) -> Tensor:
    """Returns a tensor of ``meta``, as it is computed when it is read."""
    call, turn = source
    if turn != call._turn:
        raise UnsupportedError(f"meta[{name!r}]: a later graphed call has replaced it; read it before the next call")
    value: Tensor = call._run.values[name]
    if not value.requires_grad:
        return value.clone()
    read: Tensor = apply(_Undifferentiable, name, value.detach(), next(t for t in call._inputs if t.requires_grad))
    return read


def _refusal(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"meta[{name!r}]: in a graphed call only images have gradients; call the function itself for losses of others"
    )


def _roots(run: _Run) -> list[Tensor]:
    """The images that have gradients."""
    return [image for image in run.images if image is not None and image.requires_grad]


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()
