"""Capacity: lists of a size chosen before the device knows what they need, so that a call does not wait for it.

The device compares what lists need with their capacity, and leaves them empty if they do not fit. Python learns of it
when the device is done: on a CPU in the same call, on a GPU in a later one of the same thread, or in
:func:`check_overflow`. Ranks that render together tell each other in the same call.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ..config import Capacities
from ..data import Intersections, TileGrid
from ..errors import CapacityError
from .agreement import Ranks

Capacity = int | Capacities | Literal["auto"] | None
"""Those of each list are known for passes only."""

HEADROOM = 1.5
"""Capacity that ``"auto"`` chooses, as a multiple of what calls needed."""

PASS_HEADROOM = 1.25
"""Room of each kind of list in a replayed call, as a multiple of what the traced call needed. If one does not fit, the
stages run."""

UNCOUNTED = 2
"""Capacity as a multiple of the intersections, before the lists of parts have been counted: they may need twice as
many entries."""

FAILED = [-1, 0, 0, 0]
"""What a rank sends in place of what it needed if it has raised an error."""

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


_orphans: list[_Call] = []
"""Calls of threads that have ended, but for those that are known to have had room."""

_lock = threading.RLock()
"""Of these, and of what ``"auto"`` learns."""


def _leave(calls: list[_Call]) -> None:
    """Adds the calls of a thread that ends to those without one."""
    with _lock:
        left = [*_orphans, *calls]
        _orphans[:] = [call for call in left if not _is_done(call) or _settle(call)[-1]]


class _Pending:
    """The calls of a thread that the device may not be done with, in their order.

    It ends with its thread. Then the calls are left to whoever calls :func:`check_overflow`.
    """

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        weakref.finalize(self, _leave, self.calls).atexit = False


class _Thread(threading.local):
    """What belongs to a thread: its pending calls, and those that :func:`deferred` collects, or None."""

    def __init__(self) -> None:
        self.pending = _Pending()
        self.deferred: list[_Call] | None = None


_thread = _Thread()


def choose_room(requested: Capacity, device: torch.device, grid: TileGrid) -> Capacities | None:
    """Returns what to have room for; None to count intersections first."""
    if isinstance(requested, Capacities):
        return requested
    capacity = _automatic.get((device, grid)) if requested == "auto" else requested
    return None if capacity is None else Capacities(*[capacity] * 4)


def note_need(whole: Intersections | None, requested: Capacity, grid: TileGrid, ranks: Ranks | None = None) -> None:
    """Learns what calls needed, as far as the device is done with them. Call it once lists have been composited.

    `whole` are the intersections of a call; None if there are several bands. Ranks that render together wait for what
    all of them needed if one has a capacity. Raises CapacityError if lists of this call, of any rank, or of an earlier
    call of this thread did not fit.
    """
    if ranks is not None and is_shared(ranks):
        call = None if requested is None or whole is None else _note(whole, requested, grid, waits=True)
        _raise_together(ranks, call)
    elif requested is not None and whole is not None and (call := _note(whole, requested, grid)) is not None:
        _learn(call)


def note_call(needed: Tensor, room: Capacities) -> None:
    """Does what :func:`note_need` does for a call whose needs and room are these."""
    if (call := _call(needed, room, None)) is not None:
        _learn(call)


def _learn(call: _Call) -> None:
    if _thread.deferred is not None:
        _thread.deferred.append(call)
    elif call.done is None:
        _raise_for(call)
    else:
        _thread.pending.calls.append(call)
        _collect(_thread.pending.calls, wait=False)


def is_shared(ranks: Ranks) -> bool:
    """Returns whether :func:`note_need` shares what each rank needed, which a rank that fails has to tell."""
    return ranks.any_capacity and _thread.deferred is None


def fail_together(ranks: Ranks, error: Exception) -> None:
    """Tells ranks that wait in :func:`note_need` of an error of this one, for which they raise PeerError."""
    with contextlib.suppress(RuntimeError):  # of a failure to send it
        ranks.gather(FAILED)
        ranks.tell(error)


def _note(whole: Intersections, requested: Capacity, grid: TileGrid, *, waits: bool = False) -> _Call | None:
    """Returns the call that lists are of, or None if its need is known. What it needed is copied, unless it waits."""
    needed, room = whole.needed, whole.room
    key = (whole.flatten_ids.device, grid) if requested == "auto" else None
    if needed is None or room is None:
        if key is not None:
            _automatic.setdefault(key, UNCOUNTED * whole.flatten_ids.numel() + 1)
        return None
    return _Call(needed, None, room, key) if waits else _call(needed, room, key)


def _call(needed: Tensor, room: Capacities, key: Key | None) -> _Call | None:
    """Returns a call whose need is copied from the device, without waiting for that."""
    if not needed.is_cuda:
        return _Call(needed, None, room, key)
    if torch.cuda.is_current_stream_capturing():
        # Each replay updates it, and only who collects calls knows when.
        return None if _thread.deferred is None else _Call(needed, None, room, None)
    return _Call(*_copy_later(needed), room, key)


def _copy_later(values: Tensor) -> tuple[Tensor, Any]:
    """Returns a copy of values of a GPU, and the event after which it is valid."""
    pinned = torch.empty(values.shape, dtype=torch.int64, device="cpu", pin_memory=True)
    copy, done = pinned.copy_(values, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(values.device))
    return copy, done


def read_later(value: Tensor) -> Callable[[], int]:
    """Returns what waits for a value, [] int64, and returns it. Meanwhile the device copies it."""
    if not value.is_cuda:
        return lambda: int(value)
    copy, done = _copy_later(value)

    def read() -> int:
        done.synchronize()
        return int(copy)

    return read


@contextlib.contextmanager
def deferred() -> Iterator[list[_Call]]:
    """Collects the calls of this thread for :func:`any_overflow`, which then do not raise :class:`CapacityError`."""
    calls: list[_Call] = []
    outer, _thread.deferred = _thread.deferred, calls
    try:
        yield calls
    finally:
        _thread.deferred = outer


def is_collected() -> bool:
    """Returns whether :func:`deferred` collects the calls of this thread."""
    return _thread.deferred is not None


def any_overflow(calls: Iterable[_Call]) -> bool:
    """Waits for calls, and returns whether the lists of any did not fit."""
    return any([_settle(call)[-1] for call in calls])


def needed_by(calls: Iterable[_Call]) -> Capacities:
    """Waits for calls, and returns the most that any needed, or more than it had where lists did not fit."""
    return Capacities(*map(max, zip(*([0] * 4, *(_settle(call)[:-1] for call in calls)))))


def room_for(needed: Capacities, least: Capacities | None = None) -> Capacities:
    """Returns what passes have room for, of calls that needed so much; not less than the passes before had.

    If no list was cut into chunks, it has none, and no kernels for them.
    """
    room = [int(PASS_HEADROOM * n) + 1 for n in needed]
    if needed.chunks == 0:
        room[-1] = 0
    return Capacities(*(room if least is None else map(max, room, least)))


def check_overflow() -> None:
    """Waits for calls of :func:`tsplat.rasterization` with a ``capacity``, and checks that they had room.

    These are the calls of this thread, and of threads that have ended. Call it where waiting does not matter, such as
    before a checkpoint. Calls that were captured in a CUDA graph are not known here; ``meta["overflow"]`` of the
    captured call is updated by each replay.

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
    _collect(_thread.pending.calls, wait=True)
    with _lock:
        _collect(_orphans, wait=True)


def _collect(calls: list[_Call], *, wait: bool) -> None:
    """Removes the calls that the device is done with; raises CapacityError at the first without room."""
    while calls and (wait or _is_done(calls[0])):
        _raise_for(calls.pop(0))


def _is_done(call: _Call) -> bool:
    return call.done is None or bool(call.done.query())


def _raise_for(call: _Call) -> None:
    """Waits for a call, and raises CapacityError if its lists did not fit."""
    *counts, overflow = _settle(call)
    if overflow:
        raise CapacityError("capacity: " + _describe(max(counts), call.room.intersections, call.key is not None))


def _raise_together(ranks: Ranks, call: _Call | None) -> None:
    """Raises CapacityError on all ranks if lists of any did not fit. `call` is that of this rank, if it has any."""
    own = [0, 0, 0, 0]
    if call is not None:
        *counts, overflow = _settle(call)
        own = [overflow, max(counts), call.room.intersections, int(call.key is not None)]
    outcomes = ranks.gather(own)
    if FAILED in outcomes:
        ranks.tell(None)
    texts = [
        f"rank {rank}: {_describe(needed, room, bool(automatic))}"
        for rank, (overflow, needed, room, automatic) in enumerate(outcomes)
        if overflow
    ]
    if texts:
        raise CapacityError(f"capacity: {'; '.join(texts)}. All ranks raise this, and have to render again together")


def _describe(needed: int, room: int, automatic: bool) -> str:
    retry = 'as "auto" has learned from it' if automatic else f"with capacity={needed}"
    return (
        f"at least {needed:,} intersections needed, room for {room:,}, so that an image shows the background only; "
        f"render it again, {retry}"
    )


def _settle(call: _Call) -> list[int]:
    """Waits for a call, lets ``"auto"`` learn from it, and returns what it ``needed``, or more than it had."""
    if call.done is not None:
        call.done.synchronize()
    counts: list[int] = call.needed.tolist()
    needed = max(counts[:-1])
    if call.key is not None and needed > FULL * call.room.intersections:
        with _lock:
            _automatic[call.key] = max(int(HEADROOM * needed), _automatic.get(call.key, 1))
    return counts
