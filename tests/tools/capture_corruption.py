"""Reads randomly damaged captures: `python -m tests.tools.capture_corruption colmap_binary --count 2000`.

A damaged file has to be rejected with a typed error that names a file, or be read as a capture whose values are all
finite and plausible, within 5 seconds and within twice its size plus 200 MB.
"""

from __future__ import annotations

import argparse
import collections
import re
import resource
import shutil
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.support.captures import POINTS, sample_views, write_colmap, write_transforms
from tests.tools.corruption import ViolationError
from tsplat.errors import ArgumentError, UnsupportedError
from tsplat.scene import Capture, read_capture

SECONDS_MAX = 5.0
SPARE_BYTES = 200_000_000
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1)
NUMBERS = (b"0", b"-1", b"1e308", b"1e999", b"nan", b"NaN", b"Infinity", b"9" * 400, b"9" * 5000, b"1e-320", b'""')
FORMATS = ("colmap_binary", "colmap_text", "transforms", "png", "jpeg", "mask", "point_cloud")
LENS = "OPENCV 40 30 50 50 20 15 0.05 0.01 0.001 0.001"
COORDINATE_MAX = 1e12

Rng = np.random.Generator


def truncated(rng: Rng, content: bytes) -> bytes:
    return content[: int(rng.integers(len(content)))]


def flipped(rng: Rng, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def huge_number(rng: Rng, content: bytes) -> bytes:
    """Replaces 8 bytes, of the first count half of the time; in text a number."""
    if numbers := list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", content)) if content.isascii() else []:
        number = numbers[int(rng.integers(len(numbers)))]
        return content[: number.start()] + NUMBERS[int(rng.integers(len(NUMBERS)))] + content[number.end() :]
    start = int(rng.integers(max(len(content) - 8, 1))) if rng.integers(2) else 0
    return content[:start] + struct.pack("<Q", EXTREMES[int(rng.integers(len(EXTREMES)))]) + content[start + 8 :]


def swapped(rng: Rng, content: bytes) -> bytes:
    """Swaps two parts of the same size; in text two words."""
    if content.isascii():
        words = re.split(rb"(\s+)", content)
        i, j = (2 * int(k) for k in rng.integers(0, (len(words) + 1) // 2, 2))
        words[i], words[j] = words[j], words[i]
        return b"".join(words)
    size = int(rng.integers(1, min(64, len(content) // 2)))
    i, j = sorted(int(k) for k in rng.integers(0, len(content) - size, 2))
    damaged = bytearray(content)
    damaged[i : i + size], damaged[j : j + size] = content[j : j + size], content[i : i + size]
    return bytes(damaged[: len(content)])


def cut_out(rng: Rng, content: bytes) -> bytes:
    start, size = int(rng.integers(len(content))), int(rng.integers(1, 200))
    return content[:start] + content[start + size :]


def noise(rng: Rng, content: bytes) -> bytes:
    return content[: int(rng.integers(min(64, len(content))))] + rng.bytes(int(rng.integers(3000)))


DAMAGES: tuple[Callable[[Rng, bytes], bytes], ...] = (truncated, flipped, huge_number, swapped, cut_out, noise)


class Scene:
    """A small capture on disk whose files of one format can be damaged one at a time.

    Attributes:
        folder: The capture.
        targets: Files to damage.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        views = sample_views()[:4]
        self.folder, images = folder, folder / "images"
        if kind in ("transforms", "point_cloud"):
            write_transforms(folder, views, k1=0.05, k2=0.01, ply_file_path="points.ply")
            header = "ply\nformat binary_little_endian 1.0\nelement vertex 3\n"
            header += "".join(f"property float {c}\n" for c in "xyz")
            header += "".join(f"property uchar {c}\n" for c in ("red", "green", "blue")) + "end_header\n"
            rows = b"".join(struct.pack("<3f3B", *point, 10, 20, 30) for point in POINTS.tolist())
            (folder / "points.ply").write_bytes(header.encode() + rows)
        else:
            write_colmap(folder, views, POINTS, camera=LENS if kind.startswith("colmap") else None)
        (folder / "masks").mkdir()
        for view in views:
            Image.new("L", (40, 30), 255).save(folder / "masks" / view.name)
        if kind == "jpeg":
            for view in views:
                Image.fromarray(view.image.numpy()).save(images / view.name, "JPEG")
        if kind == "colmap_binary":
            import pycolmap

            sparse = folder / "sparse" / "0"
            pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
        patterns = {
            "colmap_binary": "sparse/0/[cip][amo]*.bin",
            "colmap_text": "sparse/0/*.txt",
            "transforms": "transforms.json",
            "mask": "masks/*",
            "point_cloud": "points.ply",
        }
        self.targets = sorted(folder.glob(patterns.get(kind, "images/*")))
        self.size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def check(self, seed: int) -> str:
        """Damages a file, reads the capture and restores the file. Returns "read" or the name of the typed error.

        Raises:
            ViolationError: A guarantee was violated.
        """
        rng = np.random.default_rng(seed)
        target, damage = self.targets[seed % len(self.targets)], DAMAGES[seed // len(self.targets) % len(DAMAGES)]
        content = target.read_bytes()
        what = f"{damage.__name__} {target.name} {seed}"
        target.write_bytes(damage(rng, content))
        start = time.perf_counter()
        tracemalloc.start()
        try:
            problem, outcome = _problem(read_capture(self.folder, seed=1)), "read"
        except (ArgumentError, UnsupportedError) as error:
            problem, outcome = None, type(error).__name__
            if str(self.folder) not in str(error):
                raise ViolationError(f"{what}: the error names no file: {error}") from error
        except Exception as error:
            raise ViolationError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            target.write_bytes(content)
        if problem is not None:
            raise ViolationError(f"{what}: {problem}")
        if (seconds := time.perf_counter() - start) > SECONDS_MAX:
            raise ViolationError(f"{what}: took {seconds:.1f} s")
        if peak > 2 * self.size + SPARE_BYTES:
            raise ViolationError(f"{what}: allocated {peak} bytes")
        return outcome


def _problem(capture: Capture) -> str | None:
    """What is not plausible in a capture; None if nothing is."""
    views = (*capture.train, *capture.test)
    if len(views) < 2 or len({view.name for view in views}) < len(views):
        return f"{len(views)} views"
    for view in views:
        rotation = view.viewmat[:3, :3].double()
        if (rotation @ rotation.T - torch.eye(3)).abs().max() > 0.01 or view.viewmat[
            :3, 3
        ].abs().max() > COORDINATE_MAX:
            return f"viewmat {view.viewmat}"
        if not view.K.isfinite().all() or view.K.diag().min() <= 0 or view.K.max() > 1e9:
            return f"K {view.K}"
        if view.image.numel() > 10_000_000 or (view.sparse is not None and not view.sparse.isfinite().all()):
            return "an image or its sparse points"
    if not (capture.points.abs() <= COORDINATE_MAX).all() or len(capture.points) > 20_000:
        return "points"
    if not ((capture.colors >= 0) & (capture.colors <= 1)).all():
        return "colors"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("--count", type=int, default=1000, help="number of damaged files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the first file (default: %(default)s)")
    arguments = parser.parse_args()
    tally: collections.Counter[str] = collections.Counter()
    violations: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder) / "scene", arguments.format)
        read_capture(scene.folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            start = time.perf_counter()
            try:
                tally[scene.check(seed)] += 1
            except ViolationError as violation:
                violations.append(str(violation))
            slowest = max(slowest, time.perf_counter() - start)
        shutil.rmtree(scene.folder)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{arguments.format}:", ", ".join(f"{count} {outcome}" for outcome, count in tally.most_common()))
    print(f"slowest {slowest:.2f} s, peak memory {added / 1e6:.0f} MB more than for the intact capture")
    print(f"{len(violations)} violations in {arguments.count}", *violations[:20], sep="\n  ")
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
