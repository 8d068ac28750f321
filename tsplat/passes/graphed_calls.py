"""``graphed``: rendering functions that replay CUDA graphs, one forward and up to two backward per cache key."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, UnsupportedError
from ..runtime.compilation import is_plain_call
from ..runtime.cuda_graphs import GraphRecorder
from ..stages.options import IMMUTABLE_TYPES, unsupported
from .calls import Runner
from .captured_calls import GraphRunner
from .replay_cache import CacheEntry, ReplayCache

ENTRIES_MAX = 4
"""Maximum number of cache keys whose graphs are kept."""

RECORDERS: dict[str, Callable[[], Any]] = {"cuda": GraphRecorder}
"""Device type -> class that captures graphs. On a CPU, the function itself replays its calls."""


def graphed(rasterization: Callable[..., Any]) -> Graphed:
    """Makes a rendering function replay CUDA graphs of its calls, which takes a fraction of the time in Python.

    The returned function has the same arguments and results, with the same bits, and works in any training loop. Graphs
    are captured for each cache key: sizes, dtypes and devices of tensors, which of them require gradients, and all
    other arguments. The first call with a key counts intersections. The second is captured, with capacities of 1.06
    times the required sizes. Later calls are replayed. Without a ``capacity``, each call waits once, to check that its
    lists fit.
    If they do not, the call runs again without a graph, and the next one is captured with capacities of 1.25 times the
    sizes required by that call. Calls also run without a graph inside of ``torch.compile``, another capture, gradient
    checkpointing, anomaly detection or a ``TorchDispatchMode``. Graphs of the four most recently used keys are kept,
    until the number of Gaussians changes. If a capture fails, a warning says why, and calls with this key run without
    graphs.

    On a CPU, there are no graphs: the function itself replays its calls.

    Args:
        rasterization: :func:`tsplat.rasterization` or :func:`tsplat.rasterization_2dgs`.

    Returns:
        A function with the same arguments, with the default ``packed=False``, and with a method ``clear()`` that
        releases all graphs. Images, gradients and ``meta`` are those of the function, with one difference: an input on
        which only unused images depend gets a gradient of zero instead of None.

    Raises:
        ArgumentError: ``rasterization`` is another function.
        UnsupportedError: Raised by a call with ``sparse_grad``, ``distributed``, ``memory_budget``,
            ``validate="error"``, ``capacity="auto"``, ``segmented``, a backend other than Triton, or lists or other
            objects as values.

    Example::

        import torch
        from tsplat import graphed, rasterization

        rasterize = graphed(rasterization)  # call this once: the result owns the graphs
        means = (torch.randn(100, 3) + torch.tensor([0, 0, 5.0])).requires_grad_()
        for _ in range(3):
            image, alpha, meta = rasterize(
                means, torch.randn(100, 4), torch.full((100, 3), 0.1), torch.full((100,), 0.8), torch.rand(100, 3),
                torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]]), 80, 60,
            )
            image.mean().backward()
    """
    if not hasattr(rasterization, "stages"):
        name = getattr(rasterization, "__name__", type(rasterization).__name__)
        raise ArgumentError(f"rasterization: expected tsplat.rasterization or tsplat.rasterization_2dgs, found {name}")
    return Graphed(rasterization)


class Graphed:
    """A rendering function that replays graphs, made by :func:`graphed`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._names = tuple(inspect.signature(function).parameters)
        self._cache = _GraphCache(function.stages)  # type: ignore[attr-defined]
        self._means_shape: torch.Size | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self._names, args))
        if len(args) > len(given) or given.keys() & kwargs.keys():
            return self._function(*args, **kwargs)  # raises
        arguments = {"packed": False, **given, **kwargs}
        means = arguments.get("means")
        rendered = None
        if isinstance(means, Tensor) and is_plain_call() and means.device.type in RECORDERS:
            with self._lock:
                if means.shape != self._means_shape:
                    self._cache.clear()
                    self._means_shape = means.shape
                rendered = self._cache.replay((), arguments)
        if rendered is not None:
            return rendered
        _check_values(arguments)
        return self._function(**arguments)

    def __reduce__(self) -> Any:
        """Copying or pickling makes a new object without graphs."""
        return Graphed, (self._function,)

    def clear(self) -> None:
        """Releases all graphs. Their memory is freed when no pending backward pass uses it."""
        with self._lock:
            self._cache.clear()


class _GraphEntry(CacheEntry):
    """A cache entry with the addresses at which graphs read tensors.

    Attributes:
        addresses: The address of each tensor, or None if it is copied.
    """

    def __init__(self, is_replayable: bool) -> None:
        super().__init__(is_replayable)
        self.addresses: list[int | None] = []


class _GraphCache(ReplayCache):
    """The captured passes of calls."""

    entry_type = _GraphEntry

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, ENTRIES_MAX)
        self._has_warned = False

    def _modes(self) -> list[Any]:
        # The stream of the current GPU, on which calls are replayed.
        is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream().cuda_stream if is_used else 0
        return [*super()._modes(), stream]  # accesses to the memory of graphs are ordered on one stream only

    def _render_first(self, entry: CacheEntry, arguments: dict[str, Any]) -> Any:
        assert isinstance(entry, _GraphEntry)
        entry.addresses = _addresses(_tensors(arguments))
        return super()._render_first(entry, arguments)

    def _observe_gradients(self, entry: CacheEntry, images: tuple[Tensor | None, ...]) -> None:
        """Does nothing: gradients of any strides are copied to the memory of graphs."""

    def _runner(self, entry: CacheEntry, arguments: dict[str, Any]) -> Runner | None:
        """Returns the runner of an entry, or None if the call cannot be traced or captured.

        If a tensor that is read in place has moved, captures the passes again, and copies this tensor from then on.
        """
        assert isinstance(entry, _GraphEntry)
        tensors = _tensors(arguments)
        addresses = [old if old == new else None for old, new in zip(entry.addresses, _addresses(tensors), strict=True)]
        if entry.runner is not None and addresses == entry.addresses:
            return entry.runner
        traced = self._trace(entry, arguments) if entry.runner is None else entry.runner.traced
        entry.addresses = addresses
        if traced is None:
            return None
        try:
            with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
                recorder = RECORDERS[tensors[0].device.type]()
                in_place = [address is not None for address in addresses]
                entry.runner = GraphRunner(traced, tensors, in_place, recorder)
        except Exception as error:  # if the capture fails, the call runs without a graph
            entry.is_replayable = False
            if not self._has_warned:
                logging.getLogger("tsplat").warning("tsplat: rendering without a graph: %s", error)
            self._has_warned = True
            return None
        return entry.runner


def _tensors(arguments: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors among arguments, in their order."""
    return [value for value in arguments.values() if isinstance(value, Tensor)]


def _addresses(tensors: list[Tensor]) -> list[int | None]:
    """Returns the addresses of tensors, or None if graphs cannot read a tensor in place."""
    return [None if t.is_inference() or not t.is_contiguous() else t.data_ptr() for t in tensors]


def _check_values(arguments: dict[str, Any]) -> None:
    """Raises UnsupportedError if graphs do not support the value of an argument."""
    values = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
    for name, value, supported in unsupported("passes", values):
        found = repr(value) if type(value) in IMMUTABLE_TYPES else f"a {type(value).__name__}"
        raise UnsupportedError(
            f"{name}: expected {supported} in a graphed call, found {found}; call the function itself"
        )
    for name, value in values.items():
        if type(value) not in IMMUTABLE_TYPES:
            raise UnsupportedError(
                f"{name}: expected a number, a string, a tensor or None in a graphed call, found a "
                f"{type(value).__name__}; call the function itself"
            )
