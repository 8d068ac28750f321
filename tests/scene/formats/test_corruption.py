"""Damaged files: a few of the many that `python -m tests.tools.corruption` tries."""

import os
import tracemalloc

import numpy as np
import pytest

from tests.tools.corruption import DAMAGES, check_checkpoint, check_ply, names_of, ply_bytes
from tsplat.scene import FileError, read_ply, read_torch_checkpoint

COUNT = int(os.environ.get("TSPLAT_CORRUPTIONS", "200"))


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_ply_is_read_right_or_refused(tmp_path, kind):
    for seed in range(-(-COUNT // len(DAMAGES))):
        check_ply(tmp_path / "a.ply", kind, seed)


def test_a_damaged_checkpoint_is_read_right_or_refused(tmp_path):
    for seed in range(COUNT // 10):
        check_checkpoint(tmp_path / "a.pt", seed)


def test_a_length_in_a_checkpoint_is_not_believed(tmp_path):
    # A pickle of a string that says it is 3 GB long.
    (tmp_path / "a.pt").write_bytes(b"\x80\x02X\x00\x00\x00\xc0abc")
    tracemalloc.start()
    with pytest.raises(FileError, match=r"a\.pt"):
        read_torch_checkpoint(tmp_path / "a.pt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(("encoding", "count"), [("binary_big_endian", 100_000), ("ascii", 1_000)])
def test_reading_takes_little_more_than_the_gaussians(tmp_path, encoding, count):
    content = ply_bytes(names_of(3), np.ones((count, 59), np.float32), encoding)
    (tmp_path / "a.ply").write_bytes(content)
    tracemalloc.start()
    found = read_ply(tmp_path / "a.ply")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == count
    assert peak < count * 59 * 4 + (20 << 20)
