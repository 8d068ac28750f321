"""Cache of passes: computes the cache keys of calls, and replays calls whose passes are known."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..arguments import tensor_key
from ..config import Capacities
from ..errors import UnsupportedError
from ..runtime.backend import launchers
from ..runtime.compilation import is_plain_call
from ..stages.capacity import UNCOUNTED, capacities_for
from ..stages.options import IMMUTABLE_TYPES, Options, unsupported, with_capacities
from ..stages.overflow_checks import any_overflow, are_checks_deferred, check_replayed, deferred, max_needed
from ..support.interruption import DeferredSignals
from .calls import ReplayedCall, ReplayRunner, Runner
from .replay import specializations
from .traced_calls import TracedCall

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

ENTRIES_MAX = 256
"""Maximum number of entries of a cache. The least recently used entry is evicted."""


def replayed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a rendering function to replay passes if a call has the cache key of earlier ones.

    The first call with a key runs the stages, that is, the function. The second call is traced. If grad mode is off and
    no capacity is given, so is the third one. Some calls always run the stages; see :func:`is_plain_call` and
    :meth:`ReplayCache.replay`.
    """
    cache = ReplayCache(function)
    _caches.append(cache)

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        rendered = cache.replay(args, kwargs) if is_plain_call() else None
        return function(*args, **kwargs) if rendered is None else rendered

    run.stages = function  # type: ignore[attr-defined]
    return run


def clear_caches() -> None:
    """Clears all caches of passes."""
    for cache in _caches:
        cache.clear()


def _field_values(value: Any) -> tuple[Any, ...] | None:
    """Returns the field values of a dataclass with immutable fields, such as an f-theta lens; None for other values."""
    if not dataclasses.is_dataclass(value):
        return None
    fields = tuple(vars(value).values())
    each = itertools.chain.from_iterable(field if type(field) is tuple else (field,) for field in fields)
    return fields if IMMUTABLE_TYPES.issuperset(map(type, each)) else None


class CacheEntry:
    """The state of the calls with one cache key.

    Attributes:
        is_replayable: Whether passes support these calls.
        last_used: The number of calls of the function before the last one with this key.
        options: The options of the calls; None before the first call.
        capacities: The capacities of lists in passes; None before the first call.
        is_measured: Whether ``capacities`` follow from the required sizes of a call. Those of the first call follow
            from its number of intersections, which bounds the sizes.
        min_capacities: Capacities that were exceeded: lower bounds for the next trace; or None.
        v_strides: Image index -> strides of the incoming gradient in the first call; C order if absent.
        runner: Runs the passes; None before the call is traced.
    """

    def __init__(self, is_replayable: bool) -> None:
        self.is_replayable, self.last_used = is_replayable, 0
        self.options: Options | None = None
        self.capacities: Capacities | None = None
        self.is_measured = False
        self.min_capacities: Capacities | None = None
        self.v_strides: dict[int, tuple[int, ...]] = {}
        self.runner: Runner | None = None


class ReplayCache:
    """The passes of a rendering function, by cache key.

    Args:
        function: Runs the stages.
        entries_max: The maximum number of entries, by default :data:`ENTRIES_MAX`.
    """

    entry_type: type[CacheEntry] = CacheEntry
    """The class of entries."""

    def __init__(self, function: Callable[..., Any], entries_max: int | None = None) -> None:
        self._function, self._entries_max = function, entries_max
        parameters = inspect.signature(function).parameters
        self._names = tuple(parameters)
        self._tensors = {name for name, parameter in parameters.items() if "Tensor" in str(parameter.annotation)}
        self._entries: dict[Hashable, CacheEntry] = {}
        self._calls = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Renders a call, by passes if its cache key is known. Returns None if the caller must run the stages.

        For the first call with a key, runs the stages and initializes the entry (``_render_first``). These calls are
        not replayed: compiled, transformed or observed ones (``is_plain_call``, ``specializations``); calls with
        mutable arguments (below), or with options that passes do not support (``OPTIONS`` of ``stages/options.py``);
        calls on a backend other than Triton, or in several bands (``_render_first``); calls that cannot be traced
        (``_trace``), or whose passes do not fit into memory.
        """
        arguments = dict(zip(self._names, args), **kwargs) if args else kwargs
        if len(args) > len(self._names) or len(arguments) < len(args) + len(kwargs):
            return None  # the function raises
        key: list[Any] = []
        tensors: list[Tensor] = []
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                described = tensor_key(value)
                if described is None or not value.data_ptr() or name not in self._tensors:
                    return None
                tensors.append(value)
                key += [name, described, value.is_contiguous() or value.stride()]
            elif type(value) in IMMUTABLE_TYPES:
                key += [name, type(value), value]
            elif (fields := _field_values(value)) is not None:
                key += [name, type(value), fields]
            else:
                return None
        specialized = specializations(tensors) if tensors else None
        if specialized is None:
            return None
        key += specialized + self._modes()
        entry = self._entries.get(tuple(key)) or self._add(
            tuple(key), self.entry_type(not any(unsupported("passes", arguments)))
        )
        entry.last_used = next(self._calls)
        if not entry.is_replayable:
            return None
        if entry.capacities is None:
            return self._render_first(entry, arguments)
        try:
            runner = self._runner(entry, arguments)
            if runner is None:
                return None
            call = ReplayedCall(runner, tensors)
        except (MemoryError, RuntimeError) as error:
            if not _is_memory_error(error):
                raise
            return None  # the stages may need less memory, or render in bands
        traced = runner.traced
        if not traced.counts_lists:
            # On a CPU, the overflow flag is known at once.
            if traced.on_gpu or are_checks_deferred() or call.overflows():
                check_replayed(call.tensor(traced.needed), traced.capacities)
        elif (sizes := call.state.needed) is not None and (sizes[-1] or not entry.is_measured):
            needed, used = Capacities(*sizes[:-1]), entry.capacities
            if sizes[-1]:  # a capacity was exceeded
                entry.capacities, entry.min_capacities = capacities_for(needed, used), used
                entry.is_measured, entry.runner = False, None
                return None
            # The next call is traced again, with smaller lists.
            entry.capacities, entry.is_measured, entry.runner = capacities_for(needed), True, None
        return call.results()

    def _modes(self) -> list[Any]:
        """Returns the PyTorch modes that passes depend on, for the cache key."""
        return [
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()
        ]  # fmt: skip

    def _runner(self, entry: CacheEntry, arguments: dict[str, Any]) -> Runner | None:
        """Returns the runner of an entry. Traces the call if necessary; returns None if that fails.

        If grad mode is off, a trace takes less time than a rendered image, so the sizes of lists are not measured
        before: the first replay has long lists, and measures them.
        """
        if entry.runner is None:
            traced = self._trace(entry, arguments, measures=torch.is_grad_enabled())
            entry.runner = None if traced is None else ReplayRunner(traced)
        return entry.runner

    def _add(self, key: Hashable, entry: CacheEntry) -> CacheEntry:
        with self._lock:
            if len(self._entries) >= (self._entries_max or ENTRIES_MAX):
                del self._entries[min(self._entries, key=lambda other: self._entries[other].last_used)]
            self._entries[key] = entry
        return entry

    def _render_first(self, entry: CacheEntry, arguments: dict[str, Any]) -> Any:
        """Renders by the stages, and initializes the entry with the options and the number of intersections."""
        rendered, device = self._function(**arguments), arguments["means"].device
        meta = rendered[-1].source
        entry.options, capacity = meta.options, meta.options.capacity
        by_kernels = launchers(device, entry.options.backend).__name__ == "tsplat.kernels"
        entry.is_replayable = by_kernels and len(meta.intersections.bands) == 1
        n = meta.intersections.n_intersections
        counted = capacities_for(Capacities(n, n, UNCOUNTED * n, n, rows=meta.projected.depths.numel()))
        entry.capacities = Capacities.of_lists(capacity) if isinstance(capacity, int) else counted
        self._observe_gradients(entry, rendered[:-1])
        return rendered

    def _observe_gradients(self, entry: CacheEntry, images: tuple[Tensor | None, ...]) -> None:
        """Records the strides of the gradients of images, so that replays need not copy them."""
        for i, image in enumerate(images):
            if image is not None and image.grad_fn is not None:
                image.grad_fn.register_prehook(functools.partial(_note_strides, entry.v_strides, i, image.output_nr))

    def _trace(self, entry: CacheEntry, arguments: dict[str, Any], *, measures: bool = True) -> TracedCall | None:
        """Traces a call, with capacities that fit its lists. Returns None if that fails.

        Args:
            measures: Whether to measure the lists, unless this has been done. After an exceeded capacity, they are
                measured in any case.
        """
        assert entry.capacities is not None and entry.options is not None
        counts_lists = entry.options.capacity is None
        try:
            with DeferredSignals():  # an interrupt would leave checks deferred
                if counts_lists and not entry.is_measured and (measures or entry.min_capacities is not None):
                    entry.capacities = capacities_for(self._measure(entry.capacities, arguments), entry.min_capacities)
                    entry.is_measured = True
                arguments = with_capacities(arguments, entry.capacities)
                return TracedCall(self._function, arguments, entry.v_strides, counts_lists=counts_lists)
        except Exception as error:  # if the trace fails, the stages run
            entry.is_replayable = False
            is_expected = isinstance(error, UnsupportedError) or _is_memory_error(error)
            level = logging.INFO if is_expected else logging.WARNING
            logging.getLogger("tsplat").log(level, "tsplat: rendering without passes: %s", error)
            return None

    @torch.no_grad()
    def _measure(self, capacities: Capacities, arguments: dict[str, Any]) -> Capacities:
        """Returns the required sizes of lists: renders with capacities, and increases them until nothing overflows."""
        with deferred() as checks:
            self._function(**with_capacities(arguments, capacities))
        needed = max_needed(checks)
        return self._measure(capacities_for(needed, capacities), arguments) if any_overflow(checks) else needed


def _is_memory_error(error: Exception) -> bool:
    """Returns whether memory ran out. On a CPU, PyTorch raises a plain RuntimeError that says so."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error))


def _note_strides(
    v_strides: dict[int, tuple[int, ...]], i: int, output: int, gradients: tuple[Tensor | None, ...]
) -> None:
    v = gradients[output]
    if v is not None and torch.ops.aten.is_non_overlapping_and_dense(v):
        v_strides[i] = v.stride()


_caches: list[ReplayCache] = []
