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

from ..data import Intersections, TileGrid
from ..errors import CapacityError

Capacity = int | Literal["auto"] | None

HEADROOM = 1.5
"""Capacity that ``"auto"`` chooses, as a multiple of what calls needed."""

UNKNOWN = 2
"""The same before the lists of parts have been counted: they may need twice as much."""

FULL = 0.8
"""Share of its capacity from which a call makes ``"auto"`` choose a larger one."""

Key = tuple[torch.device, TileGrid]

_automatic: dict[Key, int] = {}
"""Capacities that ``"auto"`` has chosen."""


@dataclasses.dataclass
class _Call:
    """A call whose need Python does not know yet: [3] int64 on the CPU, valid once the event `done` is, or at once if
    None.

    `key` is what ``"auto"`` learns from the call for, or None.
    """

    needed: Tensor
    done: Any
    capacity: int
    key: Key | None


_unknown: list[_Call] = []
_lock = threading.Lock()
_deferred = threading.local()
"""Of each thread, the ``calls`` of :func:`deferred`."""


def choose_capacity(requested: Capacity, device: torch.device, grid: TileGrid) -> int | None:
    """Returns the number of intersections to have room for; None to count them first."""
    return _automatic.get((device, grid)) if requested == "auto" else requested


def note_need(whole: Intersections | None, requested: Capacity, grid: TileGrid) -> None:
    """Learns what calls needed, as far as the device is done with them. Call it once lists have been composited.

    `whole` are the intersections of a call; None if there are several bands. Raises CapacityError if lists of this call
    or of an earlier one did not fit.
    """
    if requested is None or whole is None:
        return
    needed, n = whole.needed, whole.flatten_ids.numel()
    key = (whole.flatten_ids.device, grid) if requested == "auto" else None
    if needed is None:
        if key is not None:
            _automatic.setdefault(key, UNKNOWN * n + 1)
        return
    if needed.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # a graph is replayed without this function; ``meta["overflow"]`` remains
    done = None
    if needed.is_cuda:
        needed = torch.empty(needed.shape, dtype=torch.int64, pin_memory=True).copy_(needed, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    call, calls = _Call(needed, done, n, key), getattr(_deferred, "calls", None)
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
    """Waits for calls, and returns whether any needed more intersections than its capacity."""
    return any([_settle(call) > call.capacity for call in calls])


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
            needed = _settle(call)
            if needed > call.capacity:
                retry = f"with capacity={needed}" if call.key is None else 'as "auto" has learned from it'
                raise CapacityError(
                    f"capacity: at least {needed:,} intersections needed, room for {call.capacity:,}, so that an image "
                    f"shows the background only; render it again, {retry}"
                )


def _settle(call: _Call) -> int:
    """Waits for a call, lets ``"auto"`` learn from it, and returns the capacity that it needed, or more than it had."""
    if call.done is not None:
        call.done.synchronize()
    needed = int(call.needed.max())
    if call.key is not None and needed > FULL * call.capacity:
        _automatic[call.key] = max(int(HEADROOM * needed), _automatic.get(call.key, 1))
    return needed
