"""``.ksplat`` files, against ones packed by hand: compression levels, sections, buckets, SH coefficients, damage."""

import struct
import tracemalloc

import numpy as np
import pytest
import torch

from tests.support.ksplat_files import BLOCK, ksplat_bytes
from tests.support.model_files import assert_same_rotations, random_gaussians
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_model


def write(tmp_path, content):
    (tmp_path / "a.ksplat").write_bytes(content)
    return tmp_path / "a.ksplat"


def patched(content, offset, layout, *values):
    """A file with other values at an offset."""
    changed = bytearray(content)
    struct.pack_into(layout, changed, offset, *values)
    return bytes(changed)


@pytest.mark.parametrize("degrees", [(0,), (1,), (2, 2), (0, 2, 1)])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_files_are_read(tmp_path, level, degrees):
    model = random_gaussians(100, 2)
    found = read_model(write(tmp_path, ksplat_bytes(model, level, degrees)))
    assert (len(found), found.sh_degree, found.antialiased) == (100, max(degrees), False)
    step = 0 if level == 0 else BLOCK / 2 / 32767
    assert (found.means - model.means).abs().max() <= 0.51 * step + 1e-7
    torch.testing.assert_close(found.scales, model.scales, rtol=1e-6 if level == 0 else 2**-11, atol=1e-7)
    assert_same_rotations(found, model, 1e-6 if level == 0 else 1e-3)
    assert (found.opacities - model.opacities).abs().max() <= 0.5 / 255 + 1e-6
    colors = (0.5 + 0.28209479 * model.sh0).clamp(0, 1)
    assert (0.5 + 0.28209479 * found.sh0 - colors).abs().max() <= 0.5 / 255 + 1e-6
    parts = np.array_split(np.arange(100), len(degrees))
    for rows, degree in zip(parts, degrees, strict=True):
        n = (degree + 1) ** 2 - 1
        tolerance = (1e-7, 2e-3, 3 / 255)[level]
        expected = model.shN[rows, :n].clamp(-1.5, 1.5)
        assert ((found.shN[rows, :n] - expected).abs() <= tolerance).all()
        assert (found.shN[rows, n:] == 0).all()


def test_bounds_of_coefficients_are_those_of_the_header(tmp_path):
    content = ksplat_bytes(random_gaussians(20, 1), 2, (1,))
    usual, wide = (read_model(write(tmp_path, one)) for one in (content, patched(content, 36, "<ff", -4.0, 8.0)))
    torch.testing.assert_close((wide.shN + 4) / 12, (usual.shN + 1.5) / 3, rtol=0, atol=1e-6)


def test_surfels_are_recognized(tmp_path):
    for level in (0, 1):
        flat = random_gaussians(20).as_surfels()
        assert read_model(write(tmp_path, ksplat_bytes(flat, level, (0,)))).surfels


def test_no_gaussians_and_bytes_after_the_end(tmp_path):
    assert len(read_model(write(tmp_path, ksplat_bytes(random_gaussians(0), 0, ())))) == 0
    with pytest.warns(UserWarning, match=r"a\.ksplat: ignored 7 bytes after the last section"):
        assert len(read_model(write(tmp_path, ksplat_bytes(random_gaussians(5), 1, (0,)) + bytes(7)))) == 5


SECTION = 4096


@pytest.mark.parametrize(
    ("offset", "layout", "value", "error", "words"),
    [
        (0, "<B", 1, UnsupportedError, "version 0.1, found 1.1"),
        (1, "<B", 0, UnsupportedError, "version 0.1, found 0.0"),
        (20, "<H", 3, UnsupportedError, "compression level from 0 to 2, found 3"),
        (4, "<I", 2**32 - 1, FileError, "headers of sections exceed"),
        (36, "<f", float("nan"), FileError, "are not finite"),
        (SECTION + 4, "<I", 2**32 - 1, FileError, "section 0: expected .* cut short or damaged"),
        (SECTION + 4, "<I", 49, FileError, "expected 50 Gaussians, found 49 in its sections"),
        (SECTION + 12, "<I", 2**32 - 1, FileError, "section 0: expected .* cut short or damaged"),
        (SECTION + 20, "<H", 16, FileError, "expected 12 bytes for a bucket, found 16"),
        (SECTION + 16, "<f", float("inf"), FileError, "whose edge is inf"),
        (SECTION + 32, "<I", 2**32 - 1, FileError, "section 0: found 4,294,967,295 full"),
        (SECTION + 40, "<H", 3, UnsupportedError, "SH degree from 0 to 2, found 3"),
        (SECTION + 1024, "<I", 0, FileError, r"its buckets hold \d+ Gaussians, expected 50"),
    ],
)
def test_damaged_values_are_errors(tmp_path, offset, layout, value, error, words):
    content = patched(ksplat_bytes(random_gaussians(50, 1), 2, (1,)), offset, layout, value)
    tracemalloc.start()
    with pytest.raises(error, match=rf"a\.ksplat: .*{words}"):
        read_model(write(tmp_path, content))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_files_that_are_cut_short_are_errors(tmp_path):
    content = ksplat_bytes(random_gaussians(50, 1), 1, (1,))
    for size in (0, 10, 4095, 4096, 5000, len(content) - 1):
        with pytest.raises(FileError, match=r"a\.ksplat: "):
            read_model(write(tmp_path, content[:size]))


def test_logarithms_of_scales_are_refused(tmp_path):
    model = random_gaussians(9)
    content = ksplat_bytes(model, 0, (0,))
    records = np.frombuffer(bytearray(content[5120:]), "<f4").reshape(9, 11).copy()
    records[:, 3:6] = model.log_scales
    with pytest.raises(FileError, match="they look like logarithms"):
        read_model(write(tmp_path, content[:5120] + records.tobytes()))
