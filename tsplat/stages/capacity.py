"""Capacity: lists of a size chosen before the device knows what they need, so that a call does not wait for it.

The device compares what lists need with their capacity, and leaves them empty if they do not fit. Python learns of it
when the device is done: on a CPU in the same call, on a GPU in a later one, or in :func:`check_overflow`.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ..config import Capacities
from ..data import Intersections, TileGrid
from ..errors import CapacityError

Capacity = int | Capacities | Literal["auto"] | None
"""Those of each list are known for graphs only."""

HEADROOM = 1.5
"""Capacity that ``"auto"`` chooses, as a multiple of what calls needed."""

UNKNOWN = 2
"""The same before the lists of parts have been counted: they may need twice as much."""

GRAPH_HEADROOM = 1.25
"""The same for each kind of list of a graph. If one does not fit, the call runs without its graph."""

FULL = 0.8
"""Share of its capacity from which a call makes ``"auto"`` choose a larger one."""

Key = tuple[torch.device, TileGrid]

_automatic: dict[Key, int] = {}
"""Capacities that ``"auto"`` has chosen."""


@dataclasses.dataclass
class _Call:
    """A call whose need Python does not know yet: [5] int64, see :class:`Intersections`, valid once the event `done`
    is, or at once if None.

    `key` is what ``"auto"`` learns from the call for, or None.
    """

    needed: Tensor
    done: Any
    room: Capacities
    key: Key | None


_unknown: list[_Call] = []
_lock = threading.Lock()
_deferred = threading.local()
"""Of each thread, the ``calls`` of :func:`deferred`."""


def choose_room(requested: Capacity, device: torch.device, grid: TileGrid) -> Capacities | None:
    """Returns what to have room for; None to count intersections first."""
    if isinstance(requested, Capacities):
        return requested
    capacity = _automatic.get((device, grid)) if requested == "auto" else requested
    return None if capacity is None else Capacities(*[capacity] * 4)


def note_need(whole: Intersections | None, requested: Capacity, grid: TileGrid) -> None:
    """Learns what calls needed, as far as the device is done with them. Call it once lists have been composited.

    `whole` are the intersections of a call; None if there are several bands. Raises CapacityError if lists of this call
    or of an earlier one did not fit.
    """
    if requested is None or whole is None:
        return
    needed, room = whole.needed, whole.room
    key = (whole.flatten_ids.device, grid) if requested == "auto" else None
    if needed is None or room is None:
        if key is not None:
            _automatic.setdefault(key, UNKNOWN * whole.flatten_ids.numel() + 1)
        return
    calls = getattr(_deferred, "calls", None)
    if needed.is_cuda and torch.cuda.is_current_stream_capturing():
        if calls is not None:
            calls.append(_Call(needed, None, room, None))  # which each replay updates
        return
    done = None
    if needed.is_cuda:
        stream = torch.cuda.current_stream(needed.device)
        pinned = torch.empty(needed.shape, dtype=torch.int64, device="cpu", pin_memory=True)
        needed = pinned.copy_(needed, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(stream)
    call = _Call(needed, done, room, key)
    if calls is not None:
        calls.append(call)
        return
    with _lock:
        _unknown.append(call)
    _collect(wait=False)


@contextlib.contextmanager
def deferred() -> Iterator[list[_Call]]:
    """Collects the calls of this thread for :func:`any_overflow`, which then do not raise :class:`CapacityError`."""
    calls: list[_Call] = []
    _deferred.calls = calls
    try:
        yield calls
    finally:
        del _deferred.calls


def any_overflow(calls: Iterable[_Call]) -> bool:
    """Waits for calls, and returns whether the lists of any did not fit."""
    return any([_settle(call)[-1] for call in calls])


def needed_by(calls: Iterable[_Call]) -> Capacities:
    """Waits for calls, and returns the most that any needed, or more than it had where lists did not fit."""
    return Capacities(*map(max, zip(*([0] * 4, *(_settle(call)[:-1] for call in calls)))))


def graph_room(needed: Capacities, least: Capacities | None = None) -> Capacities:
    """Returns what a graph has room for, of calls that needed so much; not less than another one had.

    If no list was cut into chunks, it has none, and no kernels for them.
    """
    found = [int(GRAPH_HEADROOM * n) + 1 for n in needed]
    if needed.chunks == 0:
        found[-1] = 0
    return Capacities(*(found if least is None else map(max, found, least)))


def check_overflow() -> None:
    """Waits for all calls of :func:`tsplat.rasterization` with a ``capacity``, and checks that they had room.

    Call it where waiting does not matter, such as before a checkpoint. Calls that were captured in a CUDA graph are not
    known here; ``meta["overflow"]`` of the captured call is updated by each replay.

    Raises:
        CapacityError: The lists of a call did not fit, so that its image shows the background only. Raised once for
            each such call.

    Example::

        import torch
        from tsplat import check_overflow, rasterization

        n = 100
        image, alpha, meta = rasterization(
            torch.randn(n, 3) + torch.tensor([0, 0, 5.0]), torch.randn(n, 4), torch.full((n, 3), 0.1),
            torch.full((n,), 0.8), torch.rand(n, 3), torch.eye(4)[None],
            torch.tensor([[[100.0, 0, 40], [0, 100, 30], [0, 0, 1]]]), 80, 60, packed=False, capacity=100_000,
        )
        check_overflow()
        assert not meta["overflow"]
    """
    _collect(wait=True)


def _collect(*, wait: bool) -> None:
    with _lock:
        while _unknown and (wait or _unknown[0].done is None or _unknown[0].done.query()):
            call = _unknown.pop(0)
            *counts, overflow = _settle(call)
            if overflow:
                needed, room = max(counts), call.room.intersections
                retry = f"with capacity={needed}" if call.key is None else 'as "auto" has learned from it'
                raise CapacityError(
                    f"capacity: at least {needed:,} intersections needed, room for {room:,}, so that an image shows "
                    f"the background only; render it again, {retry}"
                )


def _settle(call: _Call) -> list[int]:
    """Waits for a call, lets ``"auto"`` learn from it, and returns what it ``needed``, or more than it had."""
    if call.done is not None:
        call.done.synchronize()
    found: list[int] = call.needed.tolist()
    needed = max(found[:-1])
    if call.key is not None and needed > FULL * call.room.intersections:
        _automatic[call.key] = max(int(HEADROOM * needed), _automatic.get(call.key, 1))
    return found
