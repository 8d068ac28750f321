"""Reads randomly damaged model files: `python -m tests.tools.corruption --count 1000`.

A reader must return what a damaged file still contains or reject it with a typed error. It may allocate at most twice
the file's size plus 64 MiB.
"""

import argparse
import collections
import io
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.support.model_files import PLY_ENCODINGS, compressed_ply_bytes, ply_bytes, ply_names
from tests.tools.damage import ViolationError
from tsplat.errors import ArgumentError, UnsupportedError
from tsplat.scene import Gaussians, read_ply, read_torch_checkpoint

SPARE_BYTES = 64 << 20
ABSURD = (b"4294967296", b"18446744073709551617", b"9" * 31, b"9" * 400, b"-1", b"1e9", b"", b"0x10", b"1000003")

Rng = np.random.Generator


class Ply:
    """A valid random PLY."""

    def __init__(self, rng: Rng) -> None:
        self.names = ply_names(int(rng.integers(4)), bool(rng.integers(2)))
        self.values = rng.normal(size=(int(rng.integers(1, 40)), len(self.names))).astype(np.float32)
        self.encoding = str(rng.choice(list(PLY_ENCODINGS)))
        self.bytes = ply_bytes(self.names, self.values, self.encoding, ["random"])


Damage = Callable[[Rng, Ply], tuple[bytes, Callable[[Gaussians | None], bool]]]
"""Returns the damaged bytes, and a function that checks the outcome: the Gaussians read, or None for a typed error."""


def _rejected(found: Gaussians | None) -> bool:
    return found is None


def _at_most(count: int) -> Callable[[Gaussians | None], bool]:
    return lambda found: found is None or len(found) <= count


def truncated(rng, ply):
    cut = int(rng.integers(len(ply.bytes)))
    # In ASCII, a reader cannot detect missing digits at the end of the last number.
    return ply.bytes[:cut], _at_most(len(ply.values)) if ply.encoding == "ascii" else _rejected


def flipped(rng, ply):
    content = bytearray(ply.bytes)
    for _ in range(int(rng.integers(1, 9))):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(content), _at_most(len(content))


def flipped_in_header(rng, ply):
    content = bytearray(ply.bytes)
    for _ in range(int(rng.integers(1, 5))):
        content[int(rng.integers(ply.bytes.index(b"end_header") + 11))] = int(rng.integers(256))
    return bytes(content), _at_most(len(content))


def absurd_count(rng, ply):
    number = ABSURD[int(rng.integers(len(ABSURD)))]
    return ply.bytes.replace(b"vertex %d" % len(ply.values), b"vertex " + number), _rejected


def absurd_elements(rng, ply):
    number = ABSURD[int(rng.integers(3))]
    kind = (b"property float a\n", b"property list uchar int a\n", b"")[int(rng.integers(3))]
    content = ply.bytes.replace(b"element vertex", b"element other " + number + b"\n" + kind + b"element vertex")
    return content, _rejected if kind or ply.encoding == "ascii" else _at_most(len(ply.values))


def missing_property(rng, ply):
    needed = [name for name in ply.names if name not in ("nx", "ny", "nz", "scale_2")]  # 2D Gaussians have no scale_2
    name = str(rng.choice(needed)).encode()
    return ply.bytes.replace(b"property float %s\n" % name, b""), _rejected


def doubled_property(rng, ply):
    line = f"property float {rng.choice(ply.names)}\n".encode()
    return ply.bytes.replace(line, line + line), _rejected


def reordered(rng, ply):
    order = rng.permutation(len(ply.names))
    content = ply_bytes([ply.names[i] for i in order], ply.values[:, order], ply.encoding)
    first, last = ply.names.index("x"), ply.names.index("rot_3")

    def right(found):
        ends = torch.from_numpy(ply.values[:, [first, last]])
        return found is not None and torch.equal(torch.stack([found.means[:, 0], found.quats[:, 3]], 1), ends)

    return content, right


def nan_values(rng, ply):
    values = ply.values.copy()
    invalid = rng.random(len(values)) < 0.3
    columns = [ply.names.index(name) for name in ("x", "f_dc_1", "opacity", "scale_2", "rot_0")]
    for vertex in invalid.nonzero()[0]:
        values[vertex, columns[int(rng.integers(len(columns)))]] = np.nan
    content = ply_bytes(ply.names, values, ply.encoding)
    return content, lambda found: found is not None and (~found.valid).tolist() == invalid.tolist()


def other_encoding(rng, ply):
    other = str(rng.choice([name for name in PLY_ENCODINGS if name != ply.encoding]))
    return ply.bytes.replace(ply.encoding.encode(), other.encode()), _at_most(len(ply.bytes))


def cut_out(rng, ply):
    start, size = int(rng.integers(len(ply.bytes))), int(rng.integers(1, 300))
    return ply.bytes[:start] + ply.bytes[start + size :], _at_most(len(ply.values) * 11)


def noise(rng, ply):
    return b"ply\n" + rng.bytes(int(rng.integers(5000))), _rejected


def compressed(rng, ply):
    content = bytearray(compressed_ply_bytes(rng, int(rng.integers(1, 600)), int(rng.integers(4))))
    for _ in range(int(rng.integers(1, 9))):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(content[: int(rng.integers(len(content)))] if rng.integers(2) else content), _at_most(len(content))


DAMAGES: dict[str, Damage] = {
    function.__name__: function
    for function in (
        *(truncated, flipped, flipped_in_header, absurd_count, absurd_elements, missing_property, doubled_property),
        *(reordered, nan_values, other_encoding, cut_out, noise, compressed),
    )
}


def check_ply(path: Path, kind: str, seed: int) -> str:
    """Reads one damaged PLY. Returns "read" or the name of the typed error."""
    rng = np.random.default_rng([seed, list(DAMAGES).index(kind)])
    content, is_right = DAMAGES[kind](rng, Ply(rng))
    return _check(path, content, read_ply, is_right, f"{kind} {seed}")


def _check(path, content, read, is_right, what) -> str:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        found, outcome = read(path, warn=str), "read"
    except (ArgumentError, UnsupportedError) as error:
        found, outcome = None, type(error).__name__
        if path.name not in str(error):
            raise ViolationError(f"{what}: the error does not name the file: {error}") from error
    except Exception as error:
        raise ViolationError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > 2 * len(content) + SPARE_BYTES:
        raise ViolationError(f"{what}: allocated {peak} bytes for a file of {len(content)} bytes")
    if not is_right(found):
        raise ViolationError(f"{what}: unexpected outcome {outcome!r}")
    return outcome


def checkpoint_bytes(rng: Rng, count: int = 50, zipped: bool = True) -> bytes:
    """Returns a random gsplat checkpoint."""
    shapes = dict(means=(3,), scales=(3,), quats=(4,), opacities=(), sh0=(1, 3), shN=(15, 3))
    splats = {n: torch.from_numpy(rng.normal(size=(count, *s)).astype(np.float32)) for n, s in shapes.items()}
    buffer = io.BytesIO()
    torch.save({"step": 6999, "splats": splats}, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def check_checkpoint(path: Path, seed: int) -> str:
    """Reads one damaged checkpoint; see :func:`check_ply`."""
    rng = np.random.default_rng([seed, 1000])
    content = bytearray(checkpoint_bytes(rng, zipped=bool(rng.integers(4))))
    match int(rng.integers(4)):
        case 0:
            content = content[: int(rng.integers(len(content)))]
        case 1:
            for _ in range(int(rng.integers(1, 20))):
                content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        case 2:  # in the pickle or the ZIP directory, where damage matters most
            start = int(rng.choice([0, max(len(content) - 1500, 0)]))
            for _ in range(int(rng.integers(1, 6))):
                content[start + int(rng.integers(1500))] = int(rng.integers(256))
        case _:
            start = int(rng.integers(len(content) - 8))
            content[start : start + 8] = struct.pack("<Q", int(rng.integers(2**63)))
    return _check(
        path, bytes(content), read_torch_checkpoint, lambda found: found is None or len(found) == 50, str(seed)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count",
        type=int,
        default=1000,
        help="number of PLY files; a tenth as many checkpoints (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the first file (default: %(default)s)")
    arguments = parser.parse_args()
    kinds, violations = list(DAMAGES), []
    tallies: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(arguments.count + arguments.count // 10):
            of_ply = i < arguments.count
            kind = kinds[i % len(kinds)] if of_ply else "checkpoint"
            try:
                path, seed = Path(folder) / ("a.ply" if of_ply else "a.pt"), arguments.seed + i
                tallies[kind][check_ply(path, kind, seed) if of_ply else check_checkpoint(path, seed)] += 1
            except ViolationError as violation:
                violations.append(str(violation))
    for kind, tally in tallies.items():
        print(f"{kind:20}", ", ".join(f"{count} {outcome}" for outcome, count in tally.most_common()))
    print(f"{len(violations)} violations in {i + 1}", *violations[:20], sep="\n  ")
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
