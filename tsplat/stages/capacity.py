"""Capacity: lists of a size chosen before the device knows what they need, so that a call does not wait for it.

The device compares the sizes that lists need with their capacities, and leaves the lists empty if any is exceeded.
Python checks that when the device is done: on a CPU in the same call, on a GPU in a later one of the same thread, or in
:func:`check_overflow`. Ranks that render together check it together, in the same call.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..config import Capacities, Capacity
from ..data import Intersections, TileGrid
from ..errors import CapacityError
from .agreement import Ranks

HEADROOM = 1.5
"""Capacity that ``"auto"`` chooses, as a multiple of what calls needed."""

PASS_HEADROOM = 1.0625
"""Capacities of a replayed call, as a multiple of what the traced call needed. If one is exceeded, the stages run."""

VARYING_HEADROOM = 1.25
"""The same for calls whose lists vary: those that have exceeded a capacity, and training views."""

UNCOUNTED = 2
"""Capacity as a multiple of the intersections, before the lists of parts have been counted: they may need twice as
many entries."""

FAILED = [-1, 0, 0, 0]
"""A rank that has raised an error sends this in place of what it needed."""

FULL = 0.8
"""Share of its capacity from which a call makes ``"auto"`` choose a larger one."""

AutoKey = tuple[torch.device, TileGrid]

_automatic: dict[AutoKey, int] = {}
"""Capacities that ``"auto"`` has chosen."""


@dataclasses.dataclass
class _Check:
    """The check of a call with capacities, which may wait for the device.

    Attributes:
        needed: [6] int64, see :class:`Intersections`.
        copied: The event after which ``needed`` is valid; None if it is at once.
        capacities: Of the lists.
        auto_key: What ``"auto"`` learns from the call for, or None.
    """

    needed: Tensor
    copied: Any
    capacities: Capacities
    auto_key: AutoKey | None


_orphans: list[_Check] = []
"""Checks of threads that have ended, but for those that are known to have passed."""

_lock = threading.RLock()
"""Of these, and of what ``"auto"`` learns."""


def _orphan(checks: list[_Check]) -> None:
    """Keeps the checks of a thread that ends for :func:`check_overflow`."""
    with _lock:
        remaining = [*_orphans, *checks]
        _orphans[:] = [check for check in remaining if not _is_ready(check) or _read(check)[-1]]


class _Pending:
    """The checks of a thread that the device may not be done with, in their order. They become orphans with it."""

    def __init__(self) -> None:
        self.checks: list[_Check] = []
        weakref.finalize(self, _orphan, self.checks).atexit = False


class _Thread(threading.local):
    """State of a thread: its pending checks, and those that :func:`deferred` collects, or None."""

    def __init__(self) -> None:
        self.pending = _Pending()
        self.deferred: list[_Check] | None = None


_thread = _Thread()


def choose_capacities(requested: Capacity, device: torch.device, grid: TileGrid) -> Capacities | None:
    """Returns the capacities of lists; None to count intersections first."""
    if isinstance(requested, Capacities):
        return requested
    capacity = _automatic.get((device, grid)) if requested == "auto" else requested
    return None if capacity is None else Capacities.of_lists(capacity)


def check_capacity(
    whole: Intersections | None, requested: Capacity, grid: TileGrid, ranks: Ranks | None = None
) -> None:
    """Checks that the lists of a call did not exceed their capacities, as soon as the device is done with them.

    Call it once lists have been composited. ``"auto"`` learns what calls needed. Ranks that render together wait for
    what all of them needed if one has a capacity.

    Args:
        whole: The intersections of the call; None if there are several bands.

    Raises:
        CapacityError: Lists of this call, of any rank, or of an earlier call of this thread did not fit.
    """
    if ranks is not None and is_shared(ranks):
        check = None if requested is None or whole is None else _check_of(whole, requested, grid, waits=True)
        _raise_together(ranks, check)
    elif requested is not None and whole is not None and (check := _check_of(whole, requested, grid)) is not None:
        _submit(check)


def check_replayed(needed: Tensor, capacities: Capacities) -> None:
    """Does what :func:`check_capacity` does, for a replayed call whose lists needed [6] int64."""
    if (check := _copied_check(needed, capacities, None)) is not None:
        _submit(check)


def _submit(check: _Check) -> None:
    """Raises CapacityError now if a check fails; if the device is not done, a later call of the thread does."""
    if _thread.deferred is not None:
        _thread.deferred.append(check)
    elif check.copied is None:
        _raise_if_exceeded(check)
    else:
        _thread.pending.checks.append(check)
        _finish_checks(_thread.pending.checks, wait=False)


def is_shared(ranks: Ranks) -> bool:
    """Returns whether :func:`check_capacity` gathers what each rank needed, so that one that fails must take part."""
    return ranks.any_capacity and _thread.deferred is None


def fail_together(ranks: Ranks, error: Exception) -> None:
    """Sends an error of this rank to those that wait in :func:`check_capacity`, which raise PeerError."""
    with contextlib.suppress(RuntimeError):  # of a failure to send it
        ranks.gather(FAILED)
        ranks.share_error(error)


def _check_of(whole: Intersections, requested: Capacity, grid: TileGrid, *, waits: bool = False) -> _Check | None:
    """Returns the check of a call; None if it has no capacities. What it needed is copied, unless the caller waits."""
    needed, capacities = whole.needed, whole.capacities
    key = (whole.flatten_ids.device, grid) if requested == "auto" else None
    if needed is None or capacities is None:
        if key is not None:
            _automatic.setdefault(key, UNCOUNTED * whole.flatten_ids.numel() + 1)
        return None
    return _Check(needed, None, capacities, key) if waits else _copied_check(needed, capacities, key)


def _copied_check(needed: Tensor, capacities: Capacities, key: AutoKey | None) -> _Check | None:
    """Returns a check for which ``needed`` is copied from the device, without waiting for that."""
    if not needed.is_cuda:
        return _Check(needed, None, capacities, key)
    if torch.cuda.is_current_stream_capturing():
        # Each replay updates it, and only who collects checks knows when.
        return None if _thread.deferred is None else _Check(needed, None, capacities, None)
    return _Check(*_copy_async(needed), capacities, key)


def _copy_async(values: Tensor) -> tuple[Tensor, Any]:
    """Returns a copy of values of a GPU, and the event after which it is valid."""
    pinned = torch.empty(values.shape, dtype=torch.int64, device="cpu", pin_memory=True)
    copy, copied = pinned.copy_(values, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(values.device))
    return copy, copied


def read_async(value: Tensor) -> Callable[[], int]:
    """Begins to copy a value, [] int64, from the device. Returns a function that waits for it and returns it."""
    if not value.is_cuda:
        return lambda: int(value)
    copy, copied = _copy_async(value)

    def read() -> int:
        copied.synchronize()
        return int(copy)

    return read


@contextlib.contextmanager
def deferred() -> Iterator[list[_Check]]:
    """Collects the checks of this thread for :func:`any_overflow`, which then do not raise :class:`CapacityError`."""
    checks: list[_Check] = []
    outer, _thread.deferred = _thread.deferred, checks
    try:
        yield checks
    finally:
        _thread.deferred = outer


def are_checks_deferred() -> bool:
    """Returns whether :func:`deferred` collects the checks of this thread."""
    return _thread.deferred is not None


def any_overflow(checks: Iterable[_Check]) -> bool:
    """Waits for the calls of checks, and returns whether the lists of any did not fit."""
    return any([_read(check)[-1] for check in checks])


def max_needed(checks: Iterable[_Check]) -> Capacities:
    """Waits for the calls of checks, and returns the most that any needed; a lower bound where lists did not fit."""
    return Capacities(*map(max, zip(*([0] * len(Capacities._fields), *(_read(check)[:-1] for check in checks)))))


def capacities_for(needed: Capacities, least: Capacities | None = None, *, varies: bool = False) -> Capacities:
    """Returns the capacities of passes, given what calls needed.

    If no list was cut into chunks, they have none, and no kernels for them.

    Args:
        needed: The most that any call needed.
        least: Capacities that were exceeded; there are no smaller ones.
        varies: Whether lists vary, even if no capacity was exceeded.
    """
    headroom = VARYING_HEADROOM if varies or least is not None else PASS_HEADROOM
    capacities = Capacities(*[int(headroom * n) + 1 for n in needed])
    if needed.chunks == 0:
        capacities = capacities._replace(chunks=0)
    return capacities if least is None else Capacities(*map(max, capacities, least))


def check_overflow() -> None:
    """Waits for calls of :func:`tsplat.rasterization` with a ``capacity``, and checks that their lists fitted.

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
    _finish_checks(_thread.pending.checks, wait=True)
    with _lock:
        _finish_checks(_orphans, wait=True)


def _finish_checks(checks: list[_Check], *, wait: bool) -> None:
    """Removes the checks that the device is done with; raises CapacityError at the first that fails."""
    while checks and (wait or _is_ready(checks[0])):
        _raise_if_exceeded(checks.pop(0))


def _is_ready(check: _Check) -> bool:
    return check.copied is None or bool(check.copied.query())


def _raise_if_exceeded(check: _Check) -> None:
    """Waits for the call of a check, and raises CapacityError if its lists did not fit."""
    *sizes, overflow = _read(check)
    if overflow:
        message = _describe(
            Capacities(*sizes).largest_list(), check.capacities.intersections, check.auto_key is not None
        )
        raise CapacityError("capacity: " + message)


def _raise_together(ranks: Ranks, check: _Check | None) -> None:
    """Raises CapacityError on all ranks if lists of any did not fit. `check` is that of this rank, if it has one."""
    outcome = [0, 0, 0, 0]
    if check is not None:
        *sizes, overflow = _read(check)
        largest = Capacities(*sizes).largest_list()
        outcome = [overflow, largest, check.capacities.intersections, int(check.auto_key is not None)]
    outcomes = ranks.gather(outcome)
    if FAILED in outcomes:
        ranks.share_error(None)
    texts = [
        f"rank {rank}: {_describe(needed, capacity, bool(automatic))}"
        for rank, (overflow, needed, capacity, automatic) in enumerate(outcomes)
        if overflow
    ]
    if texts:
        raise CapacityError(f"capacity: {'; '.join(texts)}. All ranks raise this, and have to render again together")


def _describe(needed: int, capacity: int, automatic: bool) -> str:
    retry = 'as "auto" has learned from it' if automatic else f"with capacity={needed}"
    return (
        f"at least {needed:,} intersections needed, room for {capacity:,}, so that an image shows the background only; "
        f"render it again, {retry}"
    )


def _read(check: _Check) -> list[int]:
    """Waits for the call of a check, lets ``"auto"`` learn from it, and returns what it ``needed``."""
    if check.copied is not None:
        check.copied.synchronize()
    sizes: list[int] = check.needed.tolist()
    needed = Capacities(*sizes[:-1]).largest_list()
    if check.auto_key is not None and needed > FULL * check.capacities.intersections:
        with _lock:
            _automatic[check.auto_key] = max(int(HEADROOM * needed), _automatic.get(check.auto_key, 1))
    return sizes
