"""Photographs that are read when they are used: a bounded cache, which threads fill ahead of training."""

import collections
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

BYTES_MAX = 1 << 30
"""Images of more bytes together are read when they are used, and those that are kept have at most as many."""

WORKERS_MAX = 8

Pixels = tuple[Tensor, Tensor | None]
"""An image [H, W, 3] uint8 and its mask [H, W] bool, or None."""


class ImageCache:
    """Keeps the images that were used most recently, and reads others in threads.

    Args:
        bytes_max: Maximum size of all images that are kept, including those that are being read.

    Attributes:
        waited: Seconds that callers of :meth:`get` have waited for images.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max, self.waited = bytes_max, 0.0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, min(WORKERS_MAX, os.cpu_count() or 1)), thread_name_prefix="images")
        self._kept: collections.OrderedDict[int, tuple[Future[Pixels], int]] = collections.OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are empty caches of the same size."""
        return ImageCache, (self.bytes_max,)

    def start(self, pixels: "CachedPixels") -> Future[Pixels]:
        """Starts to read an image unless it is in the cache, and makes it the last one to be dropped."""
        with self._lock:
            pending = self._kept.get(pixels.key)
            if pending is None:
                pending = self._kept[pixels.key] = self._pool.submit(pixels.read), pixels.n_bytes
                self._bytes += pixels.n_bytes
            self._kept.move_to_end(pixels.key)
            while self._bytes > self.bytes_max and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return pending[0]

    def prefetch(self, upcoming: Iterable["CachedPixels"]) -> None:
        """Starts to read what is used next, in this order, up to half of the size of the cache."""
        left = self.bytes_max // 2
        for pixels in upcoming:
            left -= pixels.n_bytes
            if left < 0:
                break
            self.start(pixels)

    def get(self, pixels: "CachedPixels") -> Pixels:
        """Returns an image, when it is read; raises what reading it does."""
        future = self.start(pixels)
        if future.done():
            return future.result()
        started = time.perf_counter()
        try:
            return future.result()
        finally:
            self.waited += time.perf_counter() - started


@dataclasses.dataclass(frozen=True, eq=False)
class CachedPixels:
    """The image and the mask of a view, in a cache.

    Attributes:
        cache: Cache that keeps them.
        key: Key of the image in the cache.
        size: Width and height in pixels.
        read: Reads them.
        device: Device of what :meth:`get` returns.
    """

    cache: ImageCache
    key: int
    size: tuple[int, int]
    read: Callable[[], Pixels]
    device: torch.device | str = "cpu"

    @property
    def n_bytes(self) -> int:
        """Size of the image and a mask."""
        return 4 * self.size[0] * self.size[1]

    def get(self) -> Pixels:
        """Returns the image and the mask on the device."""
        image, mask = self.cache.get(self)
        return image.to(self.device), None if mask is None else mask.to(self.device)

    def to(self, device: torch.device | str) -> "CachedPixels":
        """Returns them on another device; the cache stays in memory of the CPU."""
        return dataclasses.replace(self, device=device)
