"""Which calls are replayed: kinds of calls, and what is known of each."""

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

from ..arguments import kind_of
from ..config import Capacities
from ..runtime.backend import launchers
from ..runtime.compilation import is_plain_call
from ..stages.capacity import UNCOUNTED, any_overflow, deferred, is_collected, needed_by, note_call, room_for
from ..stages.options import PLAIN, Options, unsupported, with_room
from ..support.interruption import DeferredSignals
from .calls import ReplayedCall, Replays, Runner
from .replay import specializations
from .traced_calls import TracedCall

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

KINDS_MAX = 256
"""Kinds of calls that are known. Those that were called longest ago are forgotten."""


def replayed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a rendering function, which runs the stages, to replay passes of calls whose kind is known.

    The first call of a kind runs the stages, the second is traced. Calls that are not plain ones run the stages as
    well; see :func:`is_plain_call` and :meth:`Kinds.replay`.
    """
    kinds = Kinds(function)
    _all.append(kinds)

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        rendered = kinds.replay(args, kwargs) if is_plain_call() else None
        return function(*args, **kwargs) if rendered is None else rendered

    run.stages = function  # type: ignore[attr-defined]
    return run


def forget() -> None:
    """Forgets all kinds of calls, whose next calls run the stages."""
    for kinds in _all:
        kinds.clear()


def _plain_fields(value: Any) -> tuple[Any, ...] | None:
    """Returns the values of the fields of a dataclass, such as a lens; None if they are not plain values or tuples."""
    if not dataclasses.is_dataclass(value):
        return None
    fields = tuple(vars(value).values())
    each = itertools.chain.from_iterable(field if type(field) is tuple else (field,) for field in fields)
    return fields if PLAIN.issuperset(map(type, each)) else None


class Kind:
    """What is known of a kind of call.

    Attributes:
        works: Whether it is replayed.
        turn: When it was called last.
        options: Those of its calls; None before the first.
        room: What its lists have room for; None before the first call.
        least: The room of the last trace, which was too small; the next one has no less. None at first.
        v_strides: Strides of the gradients of images that the first call got, by their numbers; of others C order.
        runner: What replays its passes; None before they are traced.
        addresses: Where graphs read each tensor; None for those that are copied.
    """

    def __init__(self, works: bool) -> None:
        self.works, self.turn = works, 0
        self.options: Options | None = None
        self.room: Capacities | None = None
        self.least: Capacities | None = None
        self.v_strides: dict[int, tuple[int, ...]] = {}
        self.runner: Runner | None = None
        self.addresses: list[int | None] = []


class Kinds:
    """The kinds of calls of a rendering function, by all that passes depend on.

    Args:
        function: Runs the stages.
        most: How many kinds are known. Those that were called longest ago are forgotten.
    """

    def __init__(self, function: Callable[..., Any], most: int | None = None) -> None:
        self._function, self._most = function, most
        parameters = inspect.signature(function).parameters
        self._names = tuple(parameters)
        self._tensors = {name for name, parameter in parameters.items() if "Tensor" in str(parameter.annotation)}
        self._kinds: dict[Hashable, Kind] = {}
        self._turns = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kinds)

    def clear(self) -> None:
        with self._lock:
            self._kinds.clear()

    def replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Renders, by passes if the kind of call is known; returns None for calls that the stages must run.

        The first call of a kind runs the stages here, as passes learn from it (``_render_first``). The stages must run
        what is compiled, transformed or observed (``is_plain_call``, ``specializations``); arguments that are not plain
        (below), and options that passes do not support (``OPTIONS`` of ``stages/options.py``); on another backend
        than Triton and in several bands (``_render_first``); and for what cannot be traced (``_trace``), or has too
        little memory.
        """
        arguments = dict(zip(self._names, args), **kwargs) if args else kwargs
        if len(args) > len(self._names) or len(arguments) < len(args) + len(kwargs):
            return None  # the function raises
        key: list[Any] = []
        tensors: list[Tensor] = []
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                described = kind_of(value)
                if described is None or not value.data_ptr() or name not in self._tensors:
                    return None
                tensors.append(value)
                key += [name, described, value.is_contiguous() or value.stride()]
            elif type(value) in PLAIN:
                key += [name, type(value), value]
            elif (fields := _plain_fields(value)) is not None:
                key += [name, type(value), fields]
            else:
                return None
        device_key = specializations(tensors) if tensors else None
        if device_key is None:
            return None
        key += device_key + self._state(tensors)
        kind = self._kinds.get(tuple(key)) or self._add(tuple(key), Kind(not any(unsupported("passes", arguments))))
        kind.turn = next(self._turns)
        if not kind.works:
            return None
        if kind.room is None:
            return self._render_first(kind, arguments, tensors)
        try:
            runner = self._runner(kind, arguments, tensors)
            if runner is None:
                return None
            call = ReplayedCall(runner, tensors)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "memory" not in str(error):
                raise
            return None  # the stages may need less, or render in bands
        traced = runner.traced
        if not traced.is_exact:
            # What needs no note is known at once on a CPU.
            if traced.on_gpu or is_collected() or call.overflows():
                note_call(call.tensor(traced.needed), traced.room)
        elif call.needed is not None and call.needed[-1]:
            kind.room, kind.least, kind.runner = room_for(Capacities(*call.needed[:-1]), kind.room), kind.room, None
            return None
        return call.results()

    def _state(self, _tensors: list[Tensor]) -> list[Any]:
        """Returns what kinds depend on besides arguments."""
        return [
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()
        ]  # fmt: skip

    def _runner(self, kind: Kind, arguments: dict[str, Any], _tensors: list[Tensor]) -> Runner | None:
        """Returns what replays a kind of call, which is traced if it was not; None if that fails."""
        if kind.runner is None and (traced := self._trace(kind, arguments)) is not None:
            kind.runner = Replays(traced)
        return kind.runner

    def _add(self, key: Hashable, kind: Kind) -> Kind:
        with self._lock:
            if len(self._kinds) >= (self._most or KINDS_MAX):
                del self._kinds[min(self._kinds, key=lambda other: self._kinds[other].turn)]
            self._kinds[key] = kind
        return kind

    def _render_first(self, kind: Kind, arguments: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Renders by the stages, and learns how many intersections there are."""
        rendered, device = self._function(**arguments), tensors[0].device
        kind.options, listed = rendered[-1].source.options, rendered[-1].source.intersections
        capacity = kind.options.capacity
        by_kernels = launchers(device, kind.options.backend).__name__ == "tsplat.kernels"
        kind.works = by_kernels and len(listed.bands) == 1
        n = listed.n_intersections
        counted = room_for(Capacities(n, n, UNCOUNTED * n, n))
        kind.room = Capacities(*[capacity] * 4) if isinstance(capacity, int) else counted
        self._observe_gradients(kind, rendered[:-1])
        return rendered

    def _observe_gradients(self, kind: Kind, images: tuple[Tensor | None, ...]) -> None:
        """Lets a kind learn the strides of the gradients of images, which are not copied then."""
        for i, image in enumerate(images):
            if image is not None and image.grad_fn is not None:
                image.grad_fn.register_prehook(functools.partial(_note_strides, kind.v_strides, i, image.output_nr))

    def _trace(self, kind: Kind, arguments: dict[str, Any]) -> TracedCall | None:
        """Traces a call, with room for what its lists need; returns None if that fails."""
        assert kind.room is not None and kind.options is not None
        is_exact = kind.options.capacity is None
        is_packed = kind.options.packed
        try:
            with DeferredSignals():  # or calls after an interrupt would stay deferred
                if is_exact:
                    kind.room = room_for(self._measure(kind.room, arguments), kind.least)
                given = with_room(arguments, kind.room)
                return TracedCall(self._function, given, kind.v_strides, is_exact=is_exact, is_packed=is_packed)
        except Exception as error:  # what cannot be traced runs the stages
            kind.works = False
            logging.getLogger("tsplat").info("tsplat: rendering without passes: %s", error)
            return None

    @torch.no_grad()
    def _measure(self, room: Capacities, arguments: dict[str, Any]) -> Capacities:
        """Returns what lists need: renders with a room, and with more until nothing overflows."""
        with deferred() as calls:
            self._function(**with_room(arguments, room))
        needed = needed_by(calls)
        return self._measure(room_for(needed, room), arguments) if any_overflow(calls) else needed


def _note_strides(
    v_strides: dict[int, tuple[int, ...]], i: int, output: int, gradients: tuple[Tensor | None, ...]
) -> None:
    v = gradients[output]
    if v is not None and torch.ops.aten.is_non_overlapping_and_dense(v):
        v_strides[i] = v.stride()


_all: list[Kinds] = []
