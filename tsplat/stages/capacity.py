"""Capacities: lists are allocated before the device has counted their elements, so that a call does not wait for it.

The device compares the required sizes with the capacities, and leaves all lists empty if one is exceeded. Python checks
this when the device is done, see ``overflow_checks.py``.
"""

import threading

import torch

from ..config import Capacities, Capacity
from ..data import TileGrid

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

FULL = 0.8
"""``"auto"`` raises a capacity once a call uses more than this fraction of it."""

AutoKey = tuple[torch.device, TileGrid]

_automatic: dict[AutoKey, int] = {}
"""Capacities chosen by ``"auto"``."""

lock = threading.RLock()
"""Guards the capacities of ``"auto"`` and the checks of threads that have ended. A single lock, as the finalizer that
keeps these checks may run while it is held."""


def choose_capacities(requested: Capacity, device: torch.device, grid: TileGrid) -> Capacities | None:
    """Returns the capacities of lists; None to count intersections first."""
    if isinstance(requested, Capacities):
        return requested
    capacity = _automatic.get((device, grid)) if requested == "auto" else requested
    return None if capacity is None else Capacities.of_lists(capacity)


def start_automatic(key: AutoKey, n_intersections: int) -> None:
    """Sets the first capacity of ``"auto"``, once a call without a capacity has counted its intersections."""
    _automatic.setdefault(key, UNCOUNTED * n_intersections + 1)


def raise_automatic(key: AutoKey, capacity: int, needed: int) -> None:
    """Raises the capacity of ``"auto"`` if a call needed most of it, or more.

    Args:
        capacity: The capacity of the call.
        needed: The number of elements that its largest list required.
    """
    if needed > FULL * capacity:
        with lock:
            _automatic[key] = max(int(HEADROOM * needed), _automatic.get(key, 1))


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
