"""Free and used memory, and the memory budget of intersections."""

import os
import sys

import torch

from ..errors import MemoryBudgetError
from ..support.free_memory import available_bytes

BYTES_PER_SPAN = 32
"""Bytes of a span: its Gaussian, first column, number of columns, and prefix sum."""

BYTES_PER_INTERSECTION = 64
"""Bytes of an intersection: key, row and slot, and the copies made by sorting."""

UNCHECKED_BYTES = 2**28
"""Lists of up to this size are allocated without querying free memory."""

UNCHECKED_BYTES_MAX = 2**30
"""Images of up to this total size are allocated without querying free memory."""

FREE_SHARE = 0.8
"""Default budget, as a fraction of free memory."""

INDEX_MAX = 2**31 - 1
"""Upper bound of indices, which are int32. It is also the maximum size of torch.sort on CUDA."""

INTERSECTIONS_MAX = INDEX_MAX // 8
"""Maximum number of intersections of a band. Each has up to eight entries in lists of parts, see ``PartLists``."""


def free_memory(device: torch.device) -> int:
    """Returns the number of bytes that can still be allocated on a device, if it reports them."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    available = available_bytes()
    if available is not None:
        return available
    # Windows has neither.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize


def used_memory(device: torch.device) -> int:
    """Returns the peak memory in bytes of the tensors on a GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def check_memory(what: str, needed: int, device: torch.device, advice: str) -> None:
    """Raises :class:`MemoryBudgetError` if more bytes are needed than are free. Does not check up to 1 GiB."""
    if needed > UNCHECKED_BYTES_MAX and needed > (free := free_memory(device)):
        raise MemoryBudgetError(f"{what} need {_bytes(needed)} of memory, {_bytes(free)} are free; {advice}")


def check_images(
    device: torch.device, n_images: int, width: int, height: int, n_features: int, dtype: torch.dtype
) -> None:
    """Raises :class:`MemoryBudgetError` if images, alphas and transmittances do not fit into free memory."""
    needed = width * height * (n_features + 2) * dtype.itemsize
    if max(n_images, 1) * needed <= UNCHECKED_BYTES_MAX:
        return
    size = f"of {width}×{height} with {n_features} channels"
    advice = "render smaller images, or parts of them by changing cx and cy"
    check_memory(f"width: images {size} each", needed, device, advice)
    check_memory(f"width: {n_images} images {size}", n_images * needed, device, "render fewer cameras at a time")


def check_tiles(n_tiles: int, device: torch.device) -> None:
    """Raises :class:`MemoryBudgetError` if lists of tiles, two int64 per tile, do not fit into free memory."""
    check_memory(f"tile_width: {n_tiles:,} tiles", 16 * n_tiles, device, "pass smaller images, or fewer at a time")


class OverBudgetError(Exception):
    """A band does not fit into the memory budget."""


class MemoryBudget:
    """The memory budget of the intersections of a band.

    Attributes:
        limit: The budget in bytes. None becomes a fraction of free memory when a call first requires more than
            ``UNCHECKED_BYTES``.
        peak_bytes: The maximum number of bytes that was admitted.
    """

    def __init__(self, device: torch.device, limit: int | None, bytes_per_intersection: int) -> None:
        self.limit = limit
        self.peak_bytes = 0
        self.device = device
        self._bytes_per_intersection = BYTES_PER_INTERSECTION + bytes_per_intersection

    def surely_fits(self, n_spans: int) -> int:
        """Returns a number of intersections that is sure to fit together with `n_spans` spans."""
        free = (UNCHECKED_BYTES if self.limit is None else self.limit) - n_spans * BYTES_PER_SPAN
        return 0 if n_spans > INDEX_MAX else min(max(free, 0) // self._bytes_per_intersection, INTERSECTIONS_MAX)

    def admit(self, n_spans: int, n_intersections: int) -> None:
        """Raises :class:`OverBudgetError` if spans and intersections exceed the budget. Call it before allocating."""
        needed = n_spans * BYTES_PER_SPAN + n_intersections * self._bytes_per_intersection
        if needed > UNCHECKED_BYTES and self.limit is None:
            self.limit = int(FREE_SHARE * free_memory(self.device))
        too_many = n_spans > INDEX_MAX or n_intersections > INTERSECTIONS_MAX
        if too_many or (self.limit is not None and needed > self.limit):
            counted = f"{n_intersections:,} intersections" if n_intersections else f"{n_spans:,} spans of tile rows"
            cause = "are more than 32-bit indices allow"
            if not too_many:
                cause = f"need {_bytes(needed)}, budget {_bytes(self.limit or 0)}"
            raise OverBudgetError(f"{counted} {cause}")
        self.peak_bytes = max(self.peak_bytes, needed)


def _bytes(n_bytes: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"
