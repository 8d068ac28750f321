"""Rendering functions that replay graphs: one for each kind of call, captured when it is called again."""

import functools
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ..arguments import kind_of
from ..config import Capacities
from ..errors import UnsupportedError
from ..stages.backend import choose
from ..stages.compilation import is_plain_call
from .captured_calls import CapturedCall
from .cuda_graphs import GraphRecorder

KINDS_MAX = 4
"""Kinds of calls whose graphs are kept."""

CALLS_MAX = 2
"""Calls of a kind that may wait for their backward passes; each has a graph and memory of its own."""

RECORDERS: dict[str, Callable[[], Any]] = {"cuda": GraphRecorder}
"""What captures calls, by kind of device. On a CPU, the function itself replays its calls."""

ONLY: dict[str, tuple[Any, ...]] = {
    "packed": (False,), "capacity": (None,), "sparse_grad": (False,), "distributed": (False,),
    "validate": ("cull", "off"), "backend": ("auto", "triton"),
}  # fmt: skip
"""Values that arguments of graphed calls may have; the first is the default."""


def graphed(rasterization: Callable[..., Any]) -> "Graphed":
    """Makes a rendering function replay graphs of its calls, so that Python takes a fraction of the time.

    The result is called like the function, in any training loop, and gives the same bits. There are graphs for each
    kind of call: sizes, dtypes and devices of tensors, which of them require gradients, and all other arguments. The
    first call of a kind counts intersections, the second is captured, with room for lists that are a quarter longer,
    and later ones are replayed. Each waits once, to know whether there was room; if not, it runs again without a graph,
    and the next one is captured with more room. Calls run without a graph as well inside of ``torch.compile``, another
    capture, gradient checkpointing, anomaly detection or a ``TorchDispatchMode``, and while two others of their kind
    wait for their backward passes. Graphs are kept of the four kinds that were called last, until the number of
    Gaussians changes. If one cannot be captured, a warning says why, and calls of its kind run without.

    On a CPU, there are no graphs: the function itself replays its calls.

    Args:
        rasterization: :func:`tsplat.rasterization` or :func:`tsplat.rasterization_2dgs`.

    Returns:
        A function of the same arguments, with ``packed=False`` by default, and with a method ``clear()`` that releases
        all graphs. Images and gradients are those of the function, but for gradients of zero in place of None where
        only images that are not used depend on an input. ``meta`` is without ``memory`` and lists of
        intersections; read it before the next call. ``meta["means2d"]``, or ``meta["gradient_2dgs"]`` of 2D Gaussians,
        has the gradients that strategies read, and ``absgrad``; no tensor of ``meta`` can be part of a loss.

    Raises:
        NotImplementedError: By a call, for ``packed=True``, a ``capacity``, ``sparse_grad``, ``distributed``,
            ``validate="error"``, another backend than Triton, and objects that are not hashed by their content; by
            ``meta`` of an earlier call; and by a backward pass, from tensors of ``meta``, or if later calls have
            replaced what it needs.

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
        parameters = inspect.signature(function).parameters.values()
        self._names = tuple(parameter.name for parameter in parameters)
        self._numbers = {parameter.name for parameter in parameters if "Tensor" not in str(parameter.annotation)}
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._size: torch.Size | None = None
        self._has_warned = False
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self._names, args))
        if len(args) > len(given) or given.keys() & kwargs.keys():
            return self._function(*args, **kwargs)  # raises
        arguments = {"packed": False, **given, **kwargs}
        means = arguments.get("means")
        if not isinstance(means, Tensor) or not can_capture(means):
            _check_values(arguments)
            return self._function(**arguments)
        with self._lock:
            found = self._render(arguments, means)
        return self._function(**arguments) if found is None else found

    def __reduce__(self) -> Any:
        """A copy, as of a model that is copied, has graphs of its own."""
        return Graphed, (self._function,)

    def clear(self) -> None:
        """Releases all graphs; their memory is free once no backward pass needs it."""
        with self._lock:
            self._kinds.clear()

    def _render(self, arguments: dict[str, Any], means: Tensor) -> Any:
        """Renders by a graph, or for the first time; None if the function has to be called."""
        if means.shape != self._size:
            self._kinds.clear()
            self._size = means.shape
        described = [_describe(value) for value in arguments.values()]
        if None in described:
            _check_values(arguments)
            return None  # the function has to look at other tensors first
        tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
        addresses = [tensor.data_ptr() for tensor in tensors]
        if 0 in addresses and any(tensor.numel() for tensor, address in zip(tensors, addresses) if not address):
            return None  # memory that was freed
        key = (torch.is_grad_enabled(), _stream(means), *arguments, *described)
        try:
            kind = self._kinds.get(key)
        except TypeError:  # a value that is not hashed
            kind = None
        if kind is None:
            _check_values(arguments)
            if any(isinstance(arguments.get(name), Tensor) for name in self._numbers):
                return None  # the function reads a number in a tensor
            if any(tensor.device != means.device for tensor in tensors):
                return None
            rendered = self._function(**arguments)
            memory = rendered[-1]["memory"]
            # What takes several bands has no room in one.
            self._kinds[key] = _Kind(memory["n_intersections"] if memory["bands"] == 1 else None, tensors)
            if len(self._kinds) > KINDS_MAX:
                self._kinds.popitem(last=False)
            return rendered
        self._kinds.move_to_end(key)
        kind.follow(addresses)
        call = next((call for call in kind.calls if call.is_free()), None)
        if call is None:
            if kind.n_intersections is None or len(kind.calls) == CALLS_MAX:
                return None
            try:
                with torch.cuda.device_of(means):  # type: ignore[no-untyped-call]
                    recorder = RECORDERS[means.device.type]()
                    in_place = [address is not None for address in kind.addresses]
                    call = CapturedCall(self._function, arguments, in_place, kind.n_intersections, kind.room, recorder)
            except Exception as error:  # what cannot be captured works without a graph
                kind.n_intersections = None
                if not self._has_warned:
                    logging.getLogger("tsplat").warning("tsplat: rendering without a graph: %s", error)
                self._has_warned = True
                return None
            kind.calls.append(call)
            kind.room = call.room
        rendered = call.render(tensors)
        if rendered is None:
            kind.room, kind.calls = call.needed_room(call.room), []
        return rendered


class _Kind:
    """The graphs of a kind of call; the intersections of its first one, None for no other graph; the least that another
    graph has room for; and the address of each tensor, None if it has changed or graphs cannot read it in place."""

    def __init__(self, n_intersections: int | None, tensors: list[Tensor]) -> None:
        self.n_intersections = n_intersections
        self.room: Capacities | None = None
        self.calls: list[CapturedCall] = []
        self.addresses = [None if t.is_inference() or not t.is_contiguous() else t.data_ptr() for t in tensors]

    def follow(self, addresses: list[int]) -> None:
        """Drops the graphs if what they read in place has moved; others will copy it."""
        if addresses != self.addresses:
            same = [own if own == address else None for own, address in zip(self.addresses, addresses, strict=True)]
            if same != self.addresses:
                self.addresses, self.calls = same, []


def can_capture(means: Tensor) -> bool:
    """Returns whether calls on these means can be captured in a graph."""
    # The function refuses most of what is not plain.
    if not is_plain_call() or not means.numel():
        return False
    if means.device.type not in RECORDERS or (means.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    return _is_compiled(means.device)


@functools.cache
def _is_compiled(device: torch.device) -> bool:
    """Returns whether Triton's kernels run on a device."""
    return choose(device)[0] == "triton"


def _stream(tensor: Tensor) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0


def _describe(value: Any) -> Any:
    """Returns what a graph depends on; None for a tensor that the function has to look at first."""
    if isinstance(value, Tensor):
        kind = kind_of(value)
        return kind and (kind, value.is_contiguous())
    return type(value), value


def _check_values(arguments: dict[str, Any]) -> None:
    """Raises if an argument other than a tensor is not allowed, or not hashed by its content."""
    for name, allowed in ONLY.items():
        if arguments.get(name, allowed[0]) not in allowed:
            values = " or ".join(map(repr, allowed))
            raise UnsupportedError(
                f"{name}: must be {values} in a graphed call, found {arguments[name]!r}; call the function itself"
            )
    for name, value in arguments.items():
        if isinstance(value, Tensor | None):
            continue
        try:
            hash(value)
            by_content = type(value).__hash__ is not object.__hash__  # type: ignore[comparison-overlap]
        except TypeError:
            by_content = False
        if not by_content:
            raise UnsupportedError(
                f"{name}: a graphed call needs a value that is hashed by its content, found a {type(value).__name__}; "
                "call the function itself"
            )
