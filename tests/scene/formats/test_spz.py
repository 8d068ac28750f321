"""Tests of SPZ files, against an encoder written from the format's description."""

import gzip
import struct

import pytest
import torch

import tsplat
from tests.support.model_files import SAFE_ORBIT_CAMERA, assert_same_tensors, random_gaussians, spz_bytes
from tests.support.slow import slow_after
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_spz, write_model
from tsplat.scene.formats.model_memory import bytes_of
from tsplat.support import reading

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
        (gzip.compress(with_byte(RAW, 11, 255), mtime=0), FileError, "4,278.* Gaussians, more than"),
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


def coordinate_system(code):
    return struct.pack("<III", 0xADBE0003, 4, code)


SIGNS = {"R": 1, "L": -1, "D": 1, "U": -1, "F": 1, "B": -1}
"""Sign of an axis, by where it points to, that converts it to right, down, forward."""

SYSTEMS = ["RUB", "LDB", "RDB", "LUB", "RUB", "LDF", "RDF", "LUF", "RUF"]
SYSTEMS += ["LFD", "RFD", "LFU", "RFU", "LBD", "RBD", "LBU", "RBU"]


def conversion(system):
    """The matrix [3, 3] that converts the axes of a system to right, down, forward."""
    matrix = torch.zeros(3, 3)
    for axis, letter in enumerate(system):
        matrix["RL DU FB".index(letter) // 3, axis] = SIGNS[letter]
    return matrix


@pytest.mark.parametrize("version", slow_after(1, [4, 3, 2]))
@pytest.mark.parametrize("code", range(17))
def test_coordinate_system_of_the_extension_is_converted(tmp_path, version, code):
    gaussians = random_gaussians(60, 4)
    unknown = struct.pack("<IIB", 7, 1, 0)
    records = SAFE_ORBIT_CAMERA + unknown + coordinate_system(code) + coordinate_system(1)  # the first one counts
    (tmp_path / "a.spz").write_bytes(spz_bytes(gaussians, version, flags=2, extensions=records))
    (tmp_path / "b.spz").write_bytes(spz_bytes(gaussians, version))
    notes = []
    found, rub = read_spz(tmp_path / "a.spz", warn=notes.append), read_spz(tmp_path / "b.spz")
    assert [note.split(": ")[1] for note in notes] == [
        "ignored the extensions SPZ_ADOBE_safe_orbit_camera, 0x7; only 3D Gaussians are read"
    ]
    # The same values in other axes: undo the default conversion, apply the one of the extension.
    axes = conversion(SYSTEMS[code]) @ torch.diag(AXES)
    torch.testing.assert_close(found.means, rub.means @ axes.T, rtol=0, atol=0.0 if code < 9 else 1e-6)
    scales = torch.tensor([1.0, 2, 3]).expand(60, 3)
    found_covars, rub_covars = (
        tsplat.quat_scale_to_covar_preci(g.quats, scales, True, False, False)[0] for g in (found, rub)
    )
    torch.testing.assert_close(found_covars, axes @ rub_covars @ axes.T)
    directions = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), dim=-1)
    torch.testing.assert_close(colors_along(found, directions), colors_along(rub, directions @ axes))


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("records", "error", "words"),
    [
        (coordinate_system(17), FileError, "at most 16, found 17"),
        (coordinate_system(6)[:-1], FileError, "0xadbe0003 has an invalid size of 4 bytes"),
        (coordinate_system(6)[:7], FileError, "within an extension"),
        (struct.pack("<IIQ", 0xADBE0003, 8, 6), FileError, "invalid size of 8 bytes"),
        (struct.pack("<II", 7, 2**32 - 1), FileError, "0x7 has an invalid size of 4,294,967,295 bytes"),
    ],
)
def test_invalid_extension_is_rejected(tmp_path, version, records, error, words):
    (tmp_path / "a.spz").write_bytes(spz_bytes(random_gaussians(5), version, flags=2, extensions=records))
    with pytest.raises(error, match=words) as caught:
        read_spz(tmp_path / "a.spz")
    assert "a.spz" in str(caught.value)


def test_flags_and_data_that_are_ignored_are_noted(tmp_path):
    (tmp_path / "a.spz").write_bytes(spz_bytes(random_gaussians(5), 3, flags=0x14, extensions=b"tail"))
    notes = []
    assert len(read_spz(tmp_path / "a.spz", warn=notes.append)) == 5
    assert [note.split(": ")[1] for note in notes] == [
        "ignored the flags 0x04, 0x10; only 3D Gaussians are read",
        "ignored 4 bytes after the Gaussians",
    ]
    (tmp_path / "a.spz").write_bytes(spz_bytes(random_gaussians(5), 3, extensions=bytes((1 << 20) + 1)))
    with pytest.raises(FileError, match="more data follows"):
        read_spz(tmp_path / "a.spz")


def test_models_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    """Before anything is decompressed."""
    pytest.importorskip("zstandard")
    monkeypatch.setattr(reading, "UNCHECKED_BYTES_MAX", 0)
    for format in ("spz", "spz4"):
        write_model(tmp_path / "a", random_gaussians(1000), format=format)
        monkeypatch.setattr(reading, "available_bytes", lambda: bytes_of(1000))
        assert len(read_spz(tmp_path / "a").means) == 1000
        monkeypatch.setattr(reading, "available_bytes", lambda: bytes_of(1000) - 1)
        with pytest.raises(FileError, match="a: a model of 1,000 Gaussians needs"):
            read_spz(tmp_path / "a")


def test_zstd_streams_that_cannot_hold_their_size_are_refused(tmp_path):
    pytest.importorskip("zstandard")
    n, path = 1 << 20, tmp_path / "a.spz"
    sizes = [9 * n, n, 3 * n, 3 * n, 4 * n]
    table = b"".join(struct.pack("<QQ", 4, size) for size in sizes)
    path.write_bytes(struct.pack("<4sIIBBBBI12x", b"NGSP", 4, n, 0, 12, 0, 5, 32) + table + bytes(20))
    with pytest.raises(FileError, match="stream 0 cannot hold 9,437,184 bytes"):
        read_spz(path)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_levels_of_detail_are_refused(tmp_path, version):
    (tmp_path / "a.spz").write_bytes(spz_bytes(random_gaussians(5), version, flags=0x81))
    with pytest.raises(UnsupportedError, match="levels of detail"):
        read_spz(tmp_path / "a.spz")


def test_checksums_are_verified_if_extensions_follow(tmp_path):
    content = bytearray(spz_bytes(random_gaussians(40), 3, flags=2, extensions=coordinate_system(6)))
    content[-8] ^= 1  # in the checksum of gzip
    (tmp_path / "a.spz").write_bytes(content)
    with pytest.raises(FileError, match="gzip stream is damaged"):
        read_spz(tmp_path / "a.spz")
    zstandard = pytest.importorskip("zstandard")
    content = spz_bytes(random_gaussians(40), 4)
    packed = zstandard.ZstdCompressor(write_checksum=True).compress
    sections = content[:0]
    table, start = [], content.index(b"\x28\xb5\x2f\xfd")
    offset = start - 16 * content[15]
    for i in range(content[15]):
        size, raw_size = struct.unpack_from("<QQ", content, offset + 16 * i)
        stream = packed(zstandard.decompress(content[start : start + size]))
        table.append(struct.pack("<QQ", len(stream), raw_size))
        sections += stream
        start += size
    content = bytearray(content[:offset] + b"".join(table) + sections)
    (tmp_path / "b.spz").write_bytes(content)
    assert len(read_spz(tmp_path / "b.spz")) == 40
    content[-1] ^= 1
    (tmp_path / "b.spz").write_bytes(content)
    with pytest.raises(FileError, match="zstd stream 4 is damaged"):
        read_spz(tmp_path / "b.spz")
