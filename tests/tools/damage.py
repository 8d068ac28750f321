"""Damages files at random, reads them and restores them. The corruption tools share this module.

A reader must reject a damaged file with a typed error that names it, or return a result that the tool accepts. It may
take 5 seconds and allocate twice the file's size plus 200 MB.
"""

import argparse
import collections
import gzip
import io
import os
import re
import resource
import struct
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tsplat.errors import ArgumentError, UnsupportedError
from tsplat.scene.formats.spz import GZIP
from tsplat.support.files import ZIP

SECONDS_MAX = 5.0
SPARE_BYTES = 200_000_000
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1)
NUMBERS = (b"0", b"-1", b"1e308", b"1e999", b"nan", b"NaN", b"Infinity", b"9" * 400, b"9" * 5000, b"1e-320", b'""')

VALUES = (
    *(b"null", b"true", b"{}", b"[]", b'""', b"-1", b"1e999", b"NaN", b"-Infinity", b"9" * 400, b'"a\\u0000b"'),
    *(b'"\\ud800"', b'"../../etc/passwd"', b'"/dev/zero"', b"[" * 3000, b'"' + b"x" * 5000 + b'"', b"a\0b", b"\xff"),
)
"""Texts that replace values: other types, NaN, infinity and names of missing files."""

E57, PAGE, CHECKED = b"ASTM-E57", 1024, 1020
"""E57: first bytes of a file, size of a page, and number of bytes per page before the checksum."""

SPECIAL_EVERY = 25
"""One in this many files is replaced by a special file."""

Rng = np.random.Generator
Damage = Callable[[Rng, bytes], bytes]


class ViolationError(AssertionError):
    """Raised when reading a damaged file violates a guarantee."""


def truncated(rng: Rng, content: bytes) -> bytes:
    return content[: int(rng.integers(len(content)))]


def flipped(rng: Rng, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def huge_number(rng: Rng, content: bytes) -> bytes:
    """Replaces 8 bytes, half of the time those of the first count. In text, replaces a number."""
    if numbers := list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", content)) if content.isascii() else []:
        number = numbers[int(rng.integers(len(numbers)))]
        return content[: number.start()] + NUMBERS[int(rng.integers(len(NUMBERS)))] + content[number.end() :]
    start = int(rng.integers(max(len(content) - 8, 1))) if rng.integers(2) else 0
    return content[:start] + struct.pack("<Q", EXTREMES[int(rng.integers(len(EXTREMES)))]) + content[start + 8 :]


def swapped(rng: Rng, content: bytes) -> bytes:
    """Swaps two parts of equal size. In text, swaps two words."""
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


def with_crlf(rng: Rng, content: bytes) -> bytes:
    """Converts line endings to CRLF, as a transfer in text mode does."""
    return content.replace(b"\n", b"\r\n") if rng.integers(2) else content.replace(b"\r\n", b"\n").replace(b"\n", b"")


def appended(rng: Rng, content: bytes) -> bytes:
    """Appends zeros, random bytes, or the content itself."""
    tails = (bytes(int(rng.integers(1, 5000))), rng.bytes(int(rng.integers(1, 5000))), content)
    return content + tails[int(rng.integers(3))]


def other_value(rng: Rng, content: bytes) -> bytes:
    """Replaces a value, or else a word, of a text file by a value of another type. Flips bits of other files."""
    spans = [m.span() for m in re.finditer(rb"-?\d[\d.eE+-]*|\"[^\"]*\"|\w+|\[[^\[\]]*\]", content[:200_000])]
    if not spans or not content[:1000].isascii():
        return flipped(rng, content)
    start, end = spans[int(rng.integers(len(spans)))]
    return content[:start] + VALUES[int(rng.integers(len(VALUES)))] + content[end:]


def duplicated(rng: Rng, content: bytes) -> bytes:
    """Repeats a part of the file, such as an entry."""
    start, size = int(rng.integers(len(content))), int(rng.integers(1, 2000))
    return content[: start + size] + content[start:]


PLAIN: tuple[Damage, ...] = (
    *(truncated, flipped, huge_number, swapped, cut_out, noise, with_crlf, appended, other_value, duplicated),
)
"""Damage that applies to every file."""


def inside(rng: Rng, content: bytes) -> bytes:
    """Damages the content of an archive or compressed stream and updates its checksums."""
    damage = PLAIN[int(rng.integers(len(PLAIN)))]
    if content[:2] == GZIP:
        return gzip.compress(damage(rng, gzip.decompress(content)), 1, mtime=0)
    if content[: len(E57)] == E57:
        return with_checksums(damage(rng, without_checksums(content)))
    if content[:4] != ZIP:
        return damage(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = list(members)[int(rng.integers(len(members)))]
    members[name] = damage(rng, members[name]) if members[name] else rng.bytes(9)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return file.getvalue()


DAMAGES: tuple[Damage, ...] = (*PLAIN, inside)


def without_checksums(content: bytes) -> bytes:
    """Returns the content of an E57 file's pages without their checksums."""
    return b"".join(content[start : start + CHECKED] for start in range(0, len(content), PAGE))


def with_checksums(logical: bytes) -> bytes:
    """Returns the E57 file for the content of its pages, with correct checksums and the correct length in its
    header."""
    pages = [logical[start : start + CHECKED].ljust(CHECKED, b"\0") for start in range(0, len(logical), CHECKED)]
    if pages:
        pages[0] = pages[0][:16] + struct.pack("<Q", PAGE * len(pages)) + pages[0][24:]
    return b"".join(page + struct.pack(">I", crc32c(page)) for page in pages)


def crc32c(content: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) checksum, which zlib does not provide."""
    remainder = 0xFFFFFFFF
    for byte in content:
        remainder = CRC32C[(remainder ^ byte) & 255] ^ remainder >> 8
    return remainder ^ 0xFFFFFFFF


def _crc32c_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


CRC32C = _crc32c_table()


def special_file(path: Path, kind: int) -> None:
    """Replaces a file by a pipe, a device, a folder, a link to itself, a link to nothing, or an empty file."""
    path.unlink()
    makes: tuple[Callable[[], object], ...] = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        path.mkdir,
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to("missing"),
        path.touch,
    )
    makes[kind % len(makes)]()


class DamagedFiles:
    """Files on disk. One of the `targets` is damaged at a time. `path` is read, and errors must name it."""

    damages = DAMAGES

    def __init__(self, path: Path, targets: Iterable[Path]) -> None:
        self.path, self.targets = path, sorted(targets)
        files = path.rglob("*") if path.is_dir() else [path]
        self.size = sum(file.stat().st_size for file in files if file.is_file())
        self._resident = resident_bytes()

    def read(self) -> Any:
        """Reads the files."""
        raise NotImplementedError

    def problem(self, found: Any, damaged: bytes, damage: Damage) -> str | None:
        """Returns what is wrong with the result of reading a damaged file, or None."""
        raise NotImplementedError

    def check(self, seed: int) -> str:
        """Damages a file, reads all files and restores it. Returns "read" or the name of the typed error."""
        rng = np.random.default_rng(seed)
        target = self.targets[seed % len(self.targets)]
        damage = self.damages[seed // len(self.targets) % len(self.damages)]
        content = target.read_bytes()
        damaged = damage(rng, content)
        is_special = seed % SPECIAL_EVERY == SPECIAL_EVERY - 1
        if is_special:
            special_file(target, seed // SPECIAL_EVERY)
        else:
            target.write_bytes(damaged)
        what = f"{'special file' if is_special else damage.__name__} {target.name} {seed}"
        start = time.perf_counter()
        tracemalloc.start()
        try:
            problem, outcome = self.problem(self.read(), damaged, damage), "read"
        except (ArgumentError, UnsupportedError, OSError) as error:
            problem, outcome = None, type(error).__name__
            if isinstance(error, OSError) and not is_special:  # missing files only
                raise ViolationError(f"{what}: {outcome}: {error}") from error
            if str(self.path) not in str(error):
                problem = f"the error names no file: {error}"
        except Exception as error:
            raise ViolationError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            target.rmdir() if target.is_dir() else target.unlink()
            target.write_bytes(content)
        peak = max(peak, resident_bytes() - self._resident)  # tracemalloc does not count tensors
        if problem is not None:
            raise ViolationError(f"{what}: {problem}")
        if (seconds := time.perf_counter() - start) > SECONDS_MAX:
            raise ViolationError(f"{what}: took {seconds:.1f} s")
        if peak > 2 * max(self.size, len(damaged)) + SPARE_BYTES:
            raise ViolationError(f"{what}: allocated {peak} bytes")
        return outcome


def resident_bytes() -> int:
    """Returns the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(description: str, make: Callable[[Path, str], DamagedFiles], formats: Iterable[str]) -> int:
    """Runs the program of a corruption tool: damages files of the selected formats. Returns the exit status."""
    formats = tuple(formats)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("format", choices=(*formats, "all"))
    parser.add_argument("--count", type=int, default=1000, help="damaged files per format (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the first file (default: %(default)s)")
    arguments = parser.parse_args()
    total = 0
    for name in formats if arguments.format == "all" else [arguments.format]:
        tally: collections.Counter[str] = collections.Counter()
        violations: list[str] = []
        slowest = 0.0
        with tempfile.TemporaryDirectory() as folder:
            files = make(Path(folder) / "files", name)
            before = resident_bytes()
            for seed in range(arguments.seed, arguments.seed + arguments.count):
                start = time.perf_counter()
                try:
                    tally[files.check(seed)] += 1
                except ViolationError as violation:
                    violations.append(str(violation))
                slowest = max(slowest, time.perf_counter() - start)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in tally.most_common())
        added = (resident_bytes() - before) / 1e6
        print(f"{name}: {outcomes}; slowest {slowest:.2f} s, peak {added:.0f} MB above that of the intact files")
        print(f"{len(violations)} violations in {arguments.count}", *violations[:20], sep="\n  ", flush=True)
        total += len(violations)
    return 1 if total else 0
