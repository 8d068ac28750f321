"""Randomly damaged texts for tests of readers."""

import random
from collections.abc import Iterator


def damaged_texts(content: bytes, count: int, inserted: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yields copies in which bytes are replaced, removed and repeated, and texts are inserted. The seeds are 0, 1,
    ..."""
    for seed in range(count):
        generator = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(generator.choice((1, 3, 30))):
            position = generator.randrange(max(len(damaged) - 1, 1))
            match generator.randrange(4):
                case 0:
                    damaged[position : position + 1] = bytes([generator.randrange(256)])
                case 1:
                    del damaged[position : position + generator.choice((1, 50, 5000))]
                case 2:
                    damaged[position:position] = generator.choice(inserted)
                case 3:
                    damaged[position:position] = damaged[position : position + 300]
        yield bytes(damaged)
