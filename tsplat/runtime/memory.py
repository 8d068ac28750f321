"""Memory: what is free, what is used, and the budget that intersections are held to before they are allocated."""

import os
import sys

import torch

from ..errors import MemoryBudgetError
from ..support.free_memory import available_bytes

BYTES_PER_SPAN = 32
"""For a span: its Gaussian, first column, number of columns, and their prefix sum."""

BYTES_PER_INTERSECTION = 64
"""For an intersection: key, row and slot, and the copies that sorting makes."""

UNCHECKED_BYTES = 2**28
"""Lists of up to this size are allocated without asking the device for free memory."""

UNASKED_BYTES = 2**30
"""Images of up to this size in all are allocated without asking either."""

FREE_SHARE = 0.8
"""Default budget, as a share of free memory."""

INDEX_MAX = 2**31 - 1
"""Upper bound of indices, which are int32; torch.sort on CUDA takes no more either."""

INTERSECTIONS_MAX = INDEX_MAX // 8
"""Most intersections of a band: each has up to eight entries in the lists of parts of tiles, see ``PartLists``."""


def free_memory(device: torch.device) -> int:
    """Returns the bytes that can still be allocated on a device, as far as it reports them."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    available = available_bytes()
    if available is not None:
        return available
    # Windows tells neither.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize


def used_memory(device: torch.device) -> int:
    """Returns the peak memory in bytes of a GPU's tensors, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def check_memory(what: str, needed: int, device: torch.device, advice: str) -> None:
    """Raises :class:`MemoryBudgetError` for more bytes than are free. Fewer than 1 GiB are not compared with them."""
    if needed > UNASKED_BYTES and needed > (free := free_memory(device)):
        raise MemoryBudgetError(f"{what} need {_bytes(needed)} of memory, {_bytes(free)} are free; {advice}")


def check_images(
    device: torch.device, n_images: int, width: int, height: int, n_features: int, dtype: torch.dtype
) -> None:
    """Raises :class:`MemoryBudgetError` before images, alphas and transmittances are allocated that do not fit."""
    needed = width * height * (n_features + 2) * dtype.itemsize
    if max(n_images, 1) * needed <= UNASKED_BYTES:
        return
    size = f"of {width}×{height} with {n_features} channels"
    advice = "render smaller images, or parts of them by changing cx and cy"
    check_memory(f"width: images {size} each", needed, device, advice)
    check_memory(f"width: {n_images} images {size}", n_images * needed, device, "render fewer cameras at a time")


def check_tiles(n_tiles: int, device: torch.device) -> None:
    """Raises :class:`MemoryBudgetError` before lists of tiles, two int64 each, are allocated that do not fit."""
    check_memory(f"tile_width: {n_tiles:,} tiles", 16 * n_tiles, device, "pass smaller images, or fewer at a time")


class OverBudgetError(Exception):
    """A band does not fit into the memory budget."""


class MemoryBudget:
    """Memory that the intersections of a band may take.

    `limit` is in bytes, or None for a share of the memory that is free when it is first needed; `peak_bytes` is the
    most that was admitted. The backward pass keeps `bytes_per_intersection`.
    """

    def __init__(self, device: torch.device, limit: int | None, bytes_per_intersection: int) -> None:
        self.limit = limit
        self.peak_bytes = 0
        self.device = device
        self._bytes_per_intersection = BYTES_PER_INTERSECTION + bytes_per_intersection

    def surely_fits(self, n_spans: int) -> int:
        """Returns a number of intersections that surely fits beside so many spans."""
        free = (UNCHECKED_BYTES if self.limit is None else self.limit) - n_spans * BYTES_PER_SPAN
        return 0 if n_spans > INDEX_MAX else min(max(free, 0) // self._bytes_per_intersection, INTERSECTIONS_MAX)

    def admit(self, n_spans: int, n_intersections: int) -> None:
        """Raises :class:`OverBudgetError` if that many do not fit. Call it before allocating memory for them."""
        needed = n_spans * BYTES_PER_SPAN + n_intersections * self._bytes_per_intersection
        if needed > UNCHECKED_BYTES and self.limit is None:
            self.limit = int(FREE_SHARE * free_memory(self.device))
        too_many = n_spans > INDEX_MAX or n_intersections > INTERSECTIONS_MAX
        if too_many or (self.limit is not None and needed > self.limit):
            counted = f"{n_intersections:,} intersections" if n_intersections else f"{n_spans:,} spans of tile rows"
            cause = "are more than 32-bit indices hold"
            if not too_many:
                cause = f"need {_bytes(needed)}, budget {_bytes(self.limit or 0)}"
            raise OverBudgetError(f"{counted} {cause}")
        self.peak_bytes = max(self.peak_bytes, needed)


def _bytes(n_bytes: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"
