"""Tests of SPZ files, against an encoder written from the format's description."""

import gzip

import pytest
import torch

import tsplat
from tests.support.model_files import assert_same_tensors, random_gaussians, spz_bytes
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_spz

AXES = torch.tensor([1.0, -1, -1])
"""Signs of a rotation by 180 degrees about x."""


def colors_along(gaussians, directions):
    return tsplat.spherical_harmonics(gaussians.sh_degree, directions, gaussians.sh_coeffs(gaussians.sh_degree))


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_read_rotates_by_180_degrees_about_x(tmp_path, version, degree):
    gaussians = random_gaussians(60, degree)
    (tmp_path / "a.spz").write_bytes(spz_bytes(gaussians, version, flags=1))
    found = read_spz(tmp_path / "a.spz")
    assert found.antialiased
    assert (found.means - AXES * gaussians.means).abs().max() <= 0.5 / 4096 + 1e-6
    assert (found.log_scales - gaussians.log_scales).abs().max() <= 0.5 / 16 + 1e-6
    assert (found.opacities - gaussians.opacities).abs().max() <= 0.5 / 255 + 1e-6
    found_covars, covars = (
        tsplat.quat_scale_to_covar_preci(g.quats, torch.tensor([1.0, 2, 3]).expand(60, 3), True, False, False)[0]
        for g in (found, gaussians)
    )
    errors = (found_covars - AXES[:, None] * covars * AXES).abs().amax((1, 2))
    # Version 2 does not store w, which is inaccurate where it is small.
    assert errors.median() < 0.1
    assert version == 2 or errors.max() < 0.05
    directions = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), dim=-1)
    assert (colors_along(found, directions) - colors_along(gaussians, AXES * directions)).abs().max() < 0.06


@pytest.mark.parametrize("version", [2, 3])
def test_uncompressed_files_equal_compressed_ones(tmp_path, version):
    gaussians = random_gaussians(7, 1)
    (tmp_path / "a.spz").write_bytes(spz_bytes(gaussians, version, raw=True))
    (tmp_path / "b.spz").write_bytes(spz_bytes(gaussians, version))
    a, b = (read_spz(tmp_path / name) for name in ("a.spz", "b.spz"))
    assert_same_tensors(a, b)
    assert not a.antialiased


def with_byte(content, index, value):
    return content[:index] + bytes([value]) + content[index + 1 :]


RAW = spz_bytes(random_gaussians(5), 3, raw=True)
GZIP = gzip.compress(RAW, mtime=0)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", FileError, "not an SPZ"),
        (b"\x1f\x8b", FileError, "gzip stream is damaged"),
        (GZIP[:-20], FileError, "gzip stream is damaged|ends within"),
        (GZIP[:-6] + b"123456", FileError, "gzip stream is damaged"),
        (gzip.compress(b"and so on" * 9, mtime=0), FileError, "not an SPZ"),
        (gzip.compress(RAW[:9], mtime=0), FileError, "within its header"),
        (gzip.compress(RAW[:-1], mtime=0), FileError, "within the sections"),
        (gzip.compress(with_byte(RAW, 4, 1), mtime=0), UnsupportedError, "found version 1"),
        (gzip.compress(with_byte(RAW, 4, 9), mtime=0), UnsupportedError, "found version 9"),
        (gzip.compress(with_byte(RAW, 11, 255), mtime=0), FileError, "42781.* Gaussians, more than"),
        (gzip.compress(with_byte(RAW, 12, 5), mtime=0), UnsupportedError, "SH degree 5"),
        (gzip.compress(with_byte(RAW, 13, 40), mtime=0), FileError, "fractional bits, found 40"),
    ],
    # Test ids have to be the same in every process that collects them.
    ids=lambda value: "content" if isinstance(value, bytes) else None,
)
def test_damaged_gzip_file_is_rejected(tmp_path, content, error, words):
    (tmp_path / "a.spz").write_bytes(content)
    with pytest.raises(error, match=words) as caught:
        read_spz(tmp_path / "a.spz")
    assert "a.spz" in str(caught.value)


def test_damaged_zstd_file_is_rejected(tmp_path):
    content = spz_bytes(random_gaussians(40, 1), 4)
    for damaged, words in [
        (content[:31], "within its header"),
        (content[:100], "table of streams"),
        (content[:-9], "ends within stream 5"),
        (with_byte(content, 8, 41), "do not match 41 Gaussians"),
        (with_byte(content, 11, 99), "do not match"),
        (with_byte(content, 16, 4), "table of streams"),
        (with_byte(content, content.index(b"\x28\xb5\x2f\xfd") + 9, 255), "zstd stream 0|shorter"),
        (content.replace(b"\x28\xb5\x2f\xfd", b"abcd"), "zstd stream 0"),
    ]:
        (tmp_path / "a.spz").write_bytes(damaged)
        with pytest.raises(FileError, match=words):
            read_spz(tmp_path / "a.spz")
