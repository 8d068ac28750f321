"""Capacities: lists are allocated before the device has counted their elements, so that a call does not wait for it.

The device compares the required sizes with the capacities, and leaves all lists empty if one is exceeded. Python checks
the result when the device is done: on a CPU in the same call, on a GPU in a later call of the same thread or in
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
"""``"auto"`` chooses this multiple of the required size."""

PASS_HEADROOM = 1.0625
"""Capacities of a replayed call, as a multiple of the sizes that an earlier call required. If one is exceeded, the
stages run."""

VARYING_HEADROOM = 1.25
"""The same multiple for calls whose lists vary: training views, and calls that have exceeded a capacity."""

UNCOUNTED = 2
"""First capacity of ``"auto"``, as a multiple of the intersections. Lists of parts, not counted yet, may have twice as
many entries."""

FAILED = [-1, 0, 0, 0]
"""Sent by a rank that has raised an error, instead of its required sizes."""

FULL = 0.8
"""``"auto"`` raises a capacity once a call uses more than this fraction of it."""

AutoKey = tuple[torch.device, TileGrid]

_automatic: dict[AutoKey, int] = {}
"""Capacities chosen by ``"auto"``."""


@dataclasses.dataclass
class _Check:
    """A pending check of whether a call exceeded its capacities.

    Attributes:
        needed: [N_NEEDED] int64, see :class:`Intersections`.
        copied: The CUDA event after which ``needed`` is valid; None if it already is.
        capacities: The capacities of the lists.
        auto_key: The key in ``_automatic`` to update; None without ``"auto"``.
    """

    needed: Tensor
    copied: Any
    capacities: Capacities
    auto_key: AutoKey | None


_orphans: list[_Check] = []
"""Checks of threads that have ended, except those known to have passed."""

_lock = threading.RLock()
"""Guards ``_orphans`` and ``_automatic``."""


def _orphan(checks: list[_Check]) -> None:
    """Keeps the checks of an ending thread for :func:`check_overflow`."""
    with _lock:
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


def choose_capacities(requested: Capacity, device: torch.device, grid: TileGrid) -> Capacities | None:
    """Returns the capacities of lists; None to count intersections first."""
    if isinstance(requested, Capacities):
        return requested
    capacity = _automatic.get((device, grid)) if requested == "auto" else requested
    return None if capacity is None else Capacities.of_lists(capacity)


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
            _automatic.setdefault(key, UNCOUNTED * whole.flatten_ids.numel() + 1)
        return None
    return _Check(needed, None, capacities, key) if waits else _copied_check(needed, capacities, key)


def _copied_check(needed: Tensor, capacities: Capacities, key: AutoKey | None) -> _Check | None:
    """Returns a check with an asynchronous copy of ``needed``; None during a CUDA graph capture without `deferred`."""
    if not needed.is_cuda:
        return _Check(needed, None, capacities, key)
    if torch.cuda.is_current_stream_capturing():
        # Each replay of the graph updates `needed`. Only a caller of `deferred` knows when.
        return None if _thread.deferred is None else _Check(needed, None, capacities, None)
    return _Check(*_copy_async(needed), capacities, key)


def _copy_async(values: Tensor) -> tuple[Tensor, Any]:
    """Starts to copy values from a GPU to pinned memory. Returns the copy, and the event after which it is valid."""
    pinned = torch.empty(values.shape, dtype=torch.int64, device="cpu", pin_memory=True)
    copy, copied = pinned.copy_(values, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(values.device))
    return copy, copied


def read_async(value: Tensor) -> Callable[[], int]:
    """Starts to copy a scalar, [] int64, from the device. Returns a function that waits for it and returns it."""
    if not value.is_cuda:
        return lambda: int(value)
    copy, copied = _copy_async(value)

    def read() -> int:
        copied.synchronize()
        return int(copy)

    return read


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


def capacities_for(needed: Capacities, least: Capacities | None = None, *, varies: bool = False) -> Capacities:
    """Chooses the capacities of passes from the required sizes of earlier calls.

    If no list was cut into chunks, the capacity of chunks is 0, and passes launch no kernels for chunks.

    Args:
        needed: The maximum of the required sizes.
        least: Lower bounds: capacities that were exceeded; or None.
        varies: Whether lists vary between calls, also if no capacity was exceeded.
    """
    headroom = VARYING_HEADROOM if varies or least is not None else PASS_HEADROOM
    capacities = Capacities(*[int(headroom * n) + 1 for n in needed])
    if needed.chunks == 0:
        capacities = capacities._replace(chunks=0)
    return capacities if least is None else Capacities(*map(max, capacities, least))


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
    with _lock:
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
    needed = Capacities(*sizes[:-1]).largest_list()
    if check.auto_key is not None and needed > FULL * check.capacities.intersections:
        with _lock:
            _automatic[check.auto_key] = max(int(HEADROOM * needed), _automatic.get(check.auto_key, 1))
    return sizes
