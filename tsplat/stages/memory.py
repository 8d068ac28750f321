"""What listing and compositing pairs will need, the budget for it, and the split into bands of tile rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import torch

from ..data import Pairs, TileGrid
from ..errors import MemoryBudgetError

BYTES_PER_ITEM = 32
"""For a row in a tile row: its parent, first column, number of columns, and their prefix sum."""

BYTES_PER_PAIR = 64
"""For a pair: key, row and slot, and the sort's copies of them."""

UNQUESTIONED = 2**28
"""Lists of up to this many bytes are made without asking what is free."""

FREE_SHARE = 0.8
"""Of the memory that is free, what a call may take unless told."""

PAIRS_LIMIT = 2**31 - 1
"""torch.sort takes no more elements on CUDA, and flatten_ids are int32."""


class _ExceededError(Exception):
    """A band does not fit."""


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device, as far as it tells."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    try:
        with open("/proc/meminfo") as file:
            available = next(line for line in file if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def used_memory(device: torch.device) -> int:
    """Bytes that a GPU's tensors, or this process, have taken at most since it began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Bands:
    """The pairs of a call, band by band of flat tile rows; a single band where everything fits.

    A band that does not fit is split in two. Numbers of items and pairs are known before memory is taken for them.
    What was listed whole is kept in `whole` and not listed again; bands are listed anew, and alike, each time they are
    asked for.

    Args:
        list_band: Lists the pairs of a band, (first, end) flat tile rows, and calls back with the numbers of items and
            pairs before it takes memory for them.
        grid: The tiles.
        device: Where.
        budget: Bytes, or None for a share of what is free at the first time of asking.
        bytes_per_intersection: Bytes a pair needs in the backward pass, on top of its listing.
        explain: Says what is the likely cause where even one tile row does not fit.
    """

    def __init__(
        self,
        list_band: Callable[[tuple[int, int], Callable[[int, int], None]], Pairs],
        grid: TileGrid,
        device: torch.device,
        budget: int | None,
        bytes_per_intersection: int,
        explain: Callable[[], str],
    ) -> None:
        self.whole: Pairs | None = None
        self.n_bands = 0
        self.n_items = 0
        self.n_pairs = 0
        self.peak_bytes = 0
        self.budget = budget
        self._list_band = list_band
        self._grid = grid
        self._device = device
        self._pair_bytes = BYTES_PER_PAIR + bytes_per_intersection
        self._explain = explain

    def __iter__(self) -> Iterator[Pairs]:
        if self.whole is not None:
            yield self.whole
            return
        self.n_bands = self.n_items = self.n_pairs = 0
        todo = [(0, self._grid.n_tile_rows)]
        while todo:
            begin, end = todo.pop()
            try:
                pairs = self._list_band((begin, end), self._admit)
            except _ExceededError as exceeded:
                if end - begin == 1:
                    raise MemoryBudgetError(f"{exceeded}; {self._explain()}") from None
                middle = (begin + end) // 2
                todo += [(middle, end), (begin, middle)]
                continue
            self.n_bands += 1
            self.n_pairs += pairs.flatten_ids.numel()
            if pairs.gaussian_major is not None:
                self.n_items += pairs.gaussian_major.slot_starts.numel() - 1
            if self.n_bands == 1 and not todo:
                self.whole = pairs
            yield pairs
            del pairs

    def figures(self) -> dict[str, int | None]:
        """What the last walk through the bands took."""
        return {"pairs": self.n_pairs, "bands": self.n_bands, "peak_bytes": self.peak_bytes, "budget": self.budget}

    def _admit(self, n_items: int, n_pairs: int) -> None:
        needed = n_items * BYTES_PER_ITEM + n_pairs * self._pair_bytes
        if needed > UNQUESTIONED and self.budget is None:
            self.budget = int(FREE_SHARE * free_memory(self._device))
        if max(n_items, n_pairs) > PAIRS_LIMIT or (self.budget is not None and needed > self.budget):
            counted = f"{n_pairs:,} intersections" if n_pairs else f"{n_items:,} Gaussians"
            limit = "more than 32-bit indices hold" if self.budget is None else f"budget {_bytes(self.budget)}"
            raise _ExceededError(f"{counted} in one row of tiles need {_bytes(needed)}, {limit}")
        self.peak_bytes = max(self.peak_bytes, needed)


def _bytes(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"
