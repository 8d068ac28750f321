"""The cache of images: what it keeps, prefetching, and waiting."""

import threading

import pytest
import torch

from tsplat.scene.capture.image_cache import CachedPixels, ImageCache

SIZE = (5, 4)
N_BYTES = 4 * 5 * 4


class Reader:
    """Reads images whose values are their keys, and counts."""

    def __init__(self, cache):
        self.cache, self.read = cache, []
        self.open = threading.Event()
        self.open.set()

    def pixels(self, key):
        def read():
            assert self.open.wait(60)
            self.read.append(key)
            return torch.full((*SIZE[::-1], 3), key, dtype=torch.uint8), None

        return CachedPixels(self.cache, key, SIZE, read)


def test_images_that_were_used_last_are_kept():
    reader = Reader(ImageCache(3 * N_BYTES))
    for key in (0, 1, 2, 0, 3, 0, 1):
        image, mask = reader.pixels(key).get()
        assert (image == key).all() and image.shape == (4, 5, 3) and mask is None
    assert reader.read == [0, 1, 2, 3, 1]


def test_prefetched_images_are_not_waited_for():
    reader = Reader(ImageCache(8 * N_BYTES))
    upcoming = [reader.pixels(key) for key in range(6)]
    reader.cache.prefetch(upcoming)
    futures = [reader.cache._kept[key][0] for key in range(4)]
    assert list(reader.cache._kept) == [0, 1, 2, 3]  # half of its size
    for future in futures:
        future.result(60)
    for pixels in upcoming[:4]:
        pixels.get()
    assert reader.cache.waited == 0 and sorted(reader.read) == [0, 1, 2, 3]
    reader.open.clear()
    timer = threading.Timer(0.1, reader.open.set)
    timer.start()
    upcoming[5].get()
    assert reader.cache.waited > 0.05


def test_an_image_larger_than_the_cache_is_read():
    reader = Reader(ImageCache(1))
    assert (reader.pixels(7).get()[0] == 7).all()
    assert len(reader.cache._kept) == 1


def test_errors_of_reading_are_raised_where_the_image_is_used():
    def read():
        raise ValueError("damaged")

    pixels = CachedPixels(ImageCache(), 0, SIZE, read)
    pixels.cache.prefetch([pixels])
    with pytest.raises(ValueError, match="damaged"):
        pixels.get()
