"""Checks of whether calls exceeded their capacities.

The device writes the required sizes of lists, and whether one exceeded its capacity. Python reads them when the device
is done: on a CPU in the same call, on a GPU in a later call of the same thread or in :func:`check_overflow`. Ranks that
render together check together, in the same call.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..config import Capacities, Capacity
from ..data import Intersections, TileGrid
from ..errors import CapacityError
from ..runtime.async_copies import copy_async
from .agreement import Ranks
from .capacity import AutoKey, lock, raise_automatic, start_automatic

FAILED = [-1, 0, 0, 0]
"""Sent by a rank that has raised an error, instead of its required sizes."""


@dataclasses.dataclass
class _Check:
    """A pending check of whether a call exceeded its capacities.

    Attributes:
        needed: [N_NEEDED] int64, see :class:`Intersections`.
        copied: The CUDA event after which ``needed`` is valid; None if it already is.
        capacities: The capacities of the lists.
        auto_key: The key of the capacity of ``"auto"`` to update; None without ``"auto"``.
    """

    needed: Tensor
    copied: Any
    capacities: Capacities
    auto_key: AutoKey | None


_orphans: list[_Check] = []
"""Checks of threads that have ended, except those known to have passed. Guarded by ``lock``."""


def _orphan(checks: list[_Check]) -> None:
    """Keeps the checks of an ending thread for :func:`check_overflow`."""
    with lock:
        remaining = [*_orphans, *checks]
        _orphans[:] = [check for check in remaining if not _is_ready(check) or _read(check)[-1]]


class _Pending:
    """Pending checks of a thread, oldest first. They become orphans when the thread ends."""

    def __init__(self) -> None:
        self.checks: list[_Check] = []
        weakref.finalize(self, _orphan, self.checks).atexit = False


class _Thread(threading.local):
    """State of a thread: its pending checks, and the list that :func:`deferred` fills, or None."""

    def __init__(self) -> None:
        self.pending = _Pending()
        self.deferred: list[_Check] | None = None


_thread = _Thread()


def check_capacity(
    whole: Intersections | None, requested: Capacity, grid: TileGrid, ranks: Ranks | None = None
) -> None:
    """Checks that a call did not exceed its capacities. The check is pending until the device is done.

    To be called after compositing. Updates the capacity of ``"auto"``. If any rank has a capacity, all ranks wait for
    each other and check together.

    Args:
        whole: The intersections of the call; None if there are several bands.

    Raises:
        CapacityError: This call, on any rank, or an earlier call of this thread exceeded a capacity.
    """
    if ranks is not None and is_shared(ranks):
        check = None if requested is None or whole is None else _check_of(whole, requested, grid, waits=True)
        _raise_together(ranks, check)
    elif requested is not None and whole is not None and (check := _check_of(whole, requested, grid)) is not None:
        _submit(check)


def check_replayed(needed: Tensor, capacities: Capacities) -> None:
    """Same as :func:`check_capacity`, for a replayed call with ``needed`` [N_NEEDED] int64."""
    if (check := _copied_check(needed, capacities, None)) is not None:
        _submit(check)


def _submit(check: _Check) -> None:
    """Raises CapacityError if a check fails. If the device is not done, the check stays pending."""
    if _thread.deferred is not None:
        _thread.deferred.append(check)
    elif check.copied is None:
        _raise_if_exceeded(check)
    else:
        _thread.pending.checks.append(check)
        _finish_checks(_thread.pending.checks, wait=False)


def is_shared(ranks: Ranks) -> bool:
    """Returns whether :func:`check_capacity` is collective, so that a failing rank must call :func:`fail_together`."""
    return ranks.any_capacity and _thread.deferred is None


def fail_together(ranks: Ranks, error: Exception) -> None:
    """Sends an error of this rank to the ranks that wait in :func:`check_capacity`, which raise PeerError."""
    with contextlib.suppress(RuntimeError):  # if sending fails
        ranks.gather(FAILED)
        ranks.share_error(error)


def _check_of(whole: Intersections, requested: Capacity, grid: TileGrid, *, waits: bool = False) -> _Check | None:
    """Returns the check of a call, or None without capacities. Copies ``needed`` to the CPU unless the caller waits."""
    needed, capacities = whole.needed, whole.capacities
    key = (whole.flatten_ids.device, grid) if requested == "auto" else None
    if needed is None or capacities is None:
        if key is not None:
            start_automatic(key, whole.flatten_ids.numel())
        return None
    return _Check(needed, None, capacities, key) if waits else _copied_check(needed, capacities, key)


def _copied_check(needed: Tensor, capacities: Capacities, key: AutoKey | None) -> _Check | None:
    """Returns a check with an asynchronous copy of ``needed``; None during a CUDA graph capture without `deferred`."""
    if not needed.is_cuda:
        return _Check(needed, None, capacities, key)
    if torch.cuda.is_current_stream_capturing():
        # Each replay of the graph updates `needed`. Only a caller of `deferred` knows when.
        return None if _thread.deferred is None else _Check(needed, None, capacities, None)
    return _Check(*copy_async(needed), capacities, key)


@contextlib.contextmanager
def deferred() -> Iterator[list[_Check]]:
    """Collects the checks of this thread for :func:`any_overflow` instead of raising :class:`CapacityError`."""
    checks: list[_Check] = []
    outer, _thread.deferred = _thread.deferred, checks
    try:
        yield checks
    finally:
        _thread.deferred = outer


def are_checks_deferred() -> bool:
    """Returns whether this thread is inside of :func:`deferred`."""
    return _thread.deferred is not None


def any_overflow(checks: Iterable[_Check]) -> bool:
    """Waits for the checked calls. Returns whether any exceeded a capacity."""
    return any([_read(check)[-1] for check in checks])


def max_needed(checks: Iterable[_Check]) -> Capacities:
    """Waits for the checked calls. Returns the maximum required sizes, which are lower bounds after an overflow."""
    return Capacities(*map(max, zip(*([0] * len(Capacities._fields), *(_read(check)[:-1] for check in checks)))))


def check_overflow() -> None:
    """Waits for calls of :func:`tsplat.rasterization` with a ``capacity``, and raises if one exceeded it.

    Checks the calls of this thread and of threads that have ended. Call it where waiting does not matter, such as
    before a checkpoint. Calls captured in a CUDA graph are not checked: each replay updates ``meta["overflow"]`` of the
    captured call.

    Raises:
        CapacityError: A call needed more intersections than its capacity, so its image shows the background only.
            Raised once for each such call.

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
    with lock:
        _finish_checks(_orphans, wait=True)


def _finish_checks(checks: list[_Check], *, wait: bool) -> None:
    """Removes the checks whose calls are done; raises CapacityError at the first that fails."""
    while checks and (wait or _is_ready(checks[0])):
        _raise_if_exceeded(checks.pop(0))


def _is_ready(check: _Check) -> bool:
    return check.copied is None or bool(check.copied.query())


def _raise_if_exceeded(check: _Check) -> None:
    """Waits for the checked call; raises CapacityError if it exceeded a capacity."""
    *sizes, overflow = _read(check)
    if overflow:
        message = _describe(
            Capacities(*sizes).largest_list(), check.capacities.intersections, check.auto_key is not None
        )
        raise CapacityError("capacity: " + message)


def _raise_together(ranks: Ranks, check: _Check | None) -> None:
    """Raises CapacityError on all ranks if any rank exceeded a capacity. `check` is this rank's check, or None."""
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
        raise CapacityError(f"capacity: {'; '.join(texts)}. All ranks raise this error; render again on all ranks")


def _describe(needed: int, capacity: int, automatic: bool) -> str:
    retry = '"auto" has raised the capacity' if automatic else f"with capacity={needed}"
    return (
        f"expected at most {capacity:,} intersections, found at least {needed:,}, so an image shows the background "
        f"only; render it again, {retry}"
    )


def _read(check: _Check) -> list[int]:
    """Waits for the checked call, updates the capacity of ``"auto"``, and returns ``needed``."""
    if check.copied is not None:
        check.copied.synchronize()
    sizes: list[int] = check.needed.tolist()
    if check.auto_key is not None:
        raise_automatic(check.auto_key, check.capacities.intersections, Capacities(*sizes[:-1]).largest_list())
    return sizes
