"""Rendering functions that replay CUDA graphs: one forward and up to two backward for each kind of call."""

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
"""Cache keys of calls whose graphs are kept."""

RECORDERS: dict[str, Callable[[], Any]] = {"cuda": GraphRecorder}
"""Classes that capture calls, by type of device. On a CPU, the function itself replays its calls."""


def graphed(rasterization: Callable[..., Any]) -> Graphed:
    """Makes a rendering function replay graphs of its calls, so that Python takes a fraction of the time.

    The result is called like the function, in any training loop, and gives the same bits. There are graphs for each
    kind of call: sizes, dtypes and devices of tensors, which of them require gradients, and all other arguments. The
    first call of a kind counts intersections, the second is captured, with a capacity for a sixteenth more, and later
    ones are replayed. Each waits once, to know whether its lists fitted, unless it has a ``capacity``; if they did not,
    it runs again without a graph, and the next one is captured with a capacity for a quarter more than the lists of
    that call need. Calls run without a graph as well inside of ``torch.compile``, another capture, gradient
    checkpointing, anomaly detection or a ``TorchDispatchMode``. Graphs are kept of the four kinds that were called
    last, until the number of Gaussians changes. If one cannot be captured, a warning says why, and calls of its kind
    run without.

    On a CPU, there are no graphs: the function itself replays its calls.

    Args:
        rasterization: :func:`tsplat.rasterization` or :func:`tsplat.rasterization_2dgs`.

    Returns:
        A function of the same arguments, with ``packed=False`` by default, and with a method ``clear()`` that releases
        all graphs. Images, gradients and ``meta`` are those of the function, but for gradients of zero in place of None
        where only images that are not used depend on an input.

    Raises:
        ArgumentError: It is another function.
        UnsupportedError: By a call, for ``sparse_grad``, ``distributed``, ``memory_budget``, ``validate="error"``,
            ``capacity="auto"``, ``segmented``, another backend than Triton, and lists or other objects as values.

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
    if not hasattr(rasterization, "stages"):
        name = getattr(rasterization, "__name__", type(rasterization).__name__)
        raise ArgumentError(f"rasterization: must be tsplat.rasterization or tsplat.rasterization_2dgs, found {name}")
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
        """A copy, as of a model that is copied, has graphs of its own."""
        return Graphed, (self._function,)

    def clear(self) -> None:
        """Releases all graphs; their memory is free once no backward pass needs it."""
        with self._lock:
            self._cache.clear()


class _GraphEntry(CacheEntry):
    """Remembers as well where graphs read tensors.

    Attributes:
        addresses: Of each tensor; None for those that are copied.
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
        # That of the current GPU, on which calls are replayed.
        is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream().cuda_stream if is_used else 0
        return [*super()._modes(), stream]  # as memory of graphs is ordered on one stream only

    def _render_first(self, entry: CacheEntry, arguments: dict[str, Any]) -> Any:
        assert isinstance(entry, _GraphEntry)
        entry.addresses = _addresses(_tensors(arguments))
        return super()._render_first(entry, arguments)

    def _observe_gradients(self, entry: CacheEntry, images: tuple[Tensor | None, ...]) -> None:
        """Gradients are copied to the memory of graphs, whatever their strides."""

    def _runner(self, entry: CacheEntry, arguments: dict[str, Any]) -> Runner | None:
        """Returns the runner of an entry. Its passes are captured again if what they read in place has moved, which is
        copied from then on."""
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
        except Exception as error:  # what cannot be captured works without a graph
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
    """Returns the addresses of tensors; None for those that graphs cannot read in place."""
    return [None if t.is_inference() or not t.is_contiguous() else t.data_ptr() for t in tensors]


def _check_values(arguments: dict[str, Any]) -> None:
    """Raises if calls with an argument other than a tensor are never captured."""
    values = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
    for name, value, supported in unsupported("passes", values):
        raise UnsupportedError(
            f"{name}: must be {supported} in a graphed call, found {value!r}; call the function itself"
        )
    for name, value in values.items():
        if type(value) not in IMMUTABLE_TYPES:
            raise UnsupportedError(
                f"{name}: must be a number, a string, a tensor or None in a graphed call, found a "
                f"{type(value).__name__}; call the function itself"
            )
