"""A bounded cache of photographs that are read on demand; threads prefetch them during training."""

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
"""If all images together take more bytes, they are read on demand; this is also the size of the cache."""

WORKERS_MAX = 8

Pixels = tuple[Tensor, Tensor | None]
"""An image [H, W, 3] uint8 and its mask [H, W] bool, or None."""


class ImageCache:
    """Keeps the most recently used images, and reads others in threads.

    Args:
        bytes_max: Maximum total size of cached images, including images that are being read.

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
        """Makes copies and pickles empty caches of the same size."""
        return ImageCache, (self.bytes_max,)

    def start(self, pixels: "CachedPixels") -> Future[Pixels]:
        """Starts to read an image unless it is in the cache, and marks it as most recently used."""
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
        """Starts to read upcoming images in this order, up to half of the cache size."""
        left = self.bytes_max // 2
        for pixels in upcoming:
            left -= pixels.n_bytes
            if left < 0:
                break
            self.start(pixels)

    def get(self, pixels: "CachedPixels") -> Pixels:
        """Returns an image after waiting for it to be read; raises the error of reading it."""
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
    """The image and the mask of a view, read through a cache.

    Attributes:
        cache: The cache.
        key: Key of the image in the cache.
        size: Width and height in pixels.
        read: Function that reads the image and the mask.
        device: Device of the tensors that :meth:`get` returns.
    """

    cache: ImageCache
    key: int
    size: tuple[int, int]
    read: Callable[[], Pixels]
    device: torch.device | str = "cpu"

    @property
    def n_bytes(self) -> int:
        """Size of the image and a mask in bytes."""
        return 4 * self.size[0] * self.size[1]

    def get(self) -> Pixels:
        """Returns the image and the mask on the device."""
        image, mask = self.cache.get(self)
        return image.to(self.device), None if mask is None else mask.to(self.device)

    def to(self, device: torch.device | str) -> "CachedPixels":
        """Returns a copy for another device; the cache stays in CPU memory."""
        return dataclasses.replace(self, device=device)
