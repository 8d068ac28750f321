"""Damaged model files are read or rejected, with bounded memory.

``python -m tests.tools.corruption`` and ``python -m tests.tools.model_corruption all`` try more.
"""

import os
import tracemalloc

import numpy as np
import pytest

from tests.support.model_files import ply_bytes, ply_names, random_gaussians, sog_files, spz_bytes, write_zip
from tests.tools.corruption import DAMAGES, check_checkpoint, check_ply
from tests.tools.model_corruption import FORMATS, Model
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_model, read_ply, read_torch_checkpoint

COUNT = int(os.environ.get("TSPLAT_CORRUPTIONS", "200"))


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_ply(tmp_path, kind):
    for seed in range(-(-COUNT // len(DAMAGES))):
        check_ply(tmp_path / "a.ply", kind, seed)


def test_damaged_torch_checkpoint(tmp_path):
    for seed in range(COUNT // 10):
        check_checkpoint(tmp_path / "a.pt", seed)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_model(tmp_path, kind):
    if kind == "spz_4":
        pytest.importorskip("zstandard")
    if kind == "checkpoint":
        pytest.importorskip("safetensors")
    model = Model(tmp_path, kind)
    outcomes = {model.check(seed) for seed in range(COUNT // 3)}
    assert outcomes - {"read"}


def test_damaged_sog_and_spz(tmp_path):
    rng = np.random.default_rng(0)
    files, _, _ = sog_files()
    gaussians = random_gaussians(40, 2)
    contents = {
        "a.sog": write_zip(tmp_path / "a.sog", files).read_bytes(),
        "a.spz": spz_bytes(gaussians, 3),
        "b.spz": spz_bytes(gaussians, 4),
        "c.spz": spz_bytes(gaussians, 2, raw=True),
    }
    outcomes = set()
    for i in range(200):
        name = list(contents)[i % len(contents)]
        content = bytearray(contents[name])
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        (tmp_path / name).write_bytes(content[: int(rng.integers(len(content)))] if i % 3 == 0 else content)
        try:
            assert len(read_model(tmp_path / name, warn=str)) <= 40
            outcomes.add((name, "read"))
        except (FileError, UnsupportedError):
            outcomes.add((name, "rejected"))
    assert outcomes >= {(name, "rejected") for name in contents} | {("c.spz", "read")}


def test_damaged_length_in_a_checkpoint_allocates_little(tmp_path):
    # A pickled string with a length of 3 GB.
    (tmp_path / "a.pt").write_bytes(b"\x80\x02X\x00\x00\x00\xc0abc")
    tracemalloc.start()
    with pytest.raises(FileError, match=r"a\.pt"):
        read_torch_checkpoint(tmp_path / "a.pt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("encoding", "count"), [("binary_big_endian", 100_000), ("ascii", 1_000)])
def test_reading_ply_allocates_little_more_than_the_gaussians(tmp_path, encoding, count):
    content = ply_bytes(ply_names(3), np.ones((count, 59), np.float32), encoding)
    (tmp_path / "a.ply").write_bytes(content)
    tracemalloc.start()
    found = read_ply(tmp_path / "a.ply")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == count
    assert peak < count * 59 * 4 + (20 << 20)
