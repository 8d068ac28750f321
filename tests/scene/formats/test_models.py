"""Models in the formats that are read: by hand, against each other, and files of other programs."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tsplat
from tests.scene.formats.test_sog import sog, write_zip
from tests.support.paths import MODELS
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import (
    FileError,
    Gaussians,
    MissingExtraError,
    lost_in,
    read_model,
    read_ply,
    read_splat,
    read_spz,
    write_model,
    write_ply,
    write_splat,
)

needs_models = pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not beside this checkout")


def some(n=50, degree=0, antialiased=False):
    generator = torch.Generator().manual_seed(n)

    def draw(*size):
        return torch.randn(n, *size, generator=generator)

    shN = 0.3 * draw((degree + 1) ** 2 - 1, 3)
    return Gaussians(draw(3), draw(3) - 3, draw(4), draw(), 0.5 * draw(1, 3), shN, antialiased)


def same_rotations(a, b, error):
    a, b = (torch.nn.functional.normalize(g.quats, dim=-1) for g in (a, b))
    assert (torch.minimum((a - b).norm(dim=-1), (a + b).norm(dim=-1)) < error).all()


def test_splat_records_are_what_the_format_says(tmp_path):
    record = struct.pack("<6f8B", 1, 2, 3, 0.5, 1, 2, 255, 0, 51, 102, 192, 64, 128, 0)
    (tmp_path / "a.splat").write_bytes(record)
    found = read_splat(tmp_path / "a.splat")
    assert found.means.tolist() == [[1, 2, 3]]
    torch.testing.assert_close(found.scales, torch.tensor([[0.5, 1, 2]]))
    torch.testing.assert_close(0.5 + 0.28209479 * found.sh0[:, 0], torch.tensor([[1, 0, 0.2]]))
    torch.testing.assert_close(found.opacities, torch.tensor([0.4]))
    assert found.quats.tolist() == [[0.5, -0.5, 0, -1]]
    write_splat(tmp_path / "b.splat", found)
    assert (tmp_path / "b.splat").read_bytes()[:28] == record[:28]


def test_splat_written_and_read_again_differs_by_its_bytes(tmp_path):
    gaussians = some(200, degree=2)
    write_splat(tmp_path / "a.splat", gaussians)
    found = read_splat(tmp_path / "a.splat")
    sizes = found.log_scales.sum(1) + torch.nn.functional.logsigmoid(found.opacity_logits)
    assert (sizes.diff() < 0.1).all()
    order = torch.cdist(found.means, gaussians.means).argmin(1)
    assert order.unique().numel() == 200
    there = gaussians.map(lambda tensor: tensor[order])
    assert torch.equal(found.means, there.means)
    torch.testing.assert_close(found.log_scales, there.log_scales, rtol=1e-5, atol=1e-6)
    assert (found.opacities - there.opacities).abs().max() < 0.5 / 255 + 1e-5
    same_rotations(found, there, 0.02)
    shown, wanted = (0.5 + 0.28209479 * g.sh0 for g in (found, there))
    assert (shown - wanted.clamp(0, 1)).abs().max() < 0.5 / 255 + 1e-5
    assert found.sh_degree == 0


def test_what_a_splat_cannot_hold_is_refused(tmp_path):
    gaussians = some(4)
    gaussians.means[2, 0] = torch.nan
    with pytest.raises(ArgumentError, match=r"1 of 4.*sound"):
        write_splat(tmp_path / "a.splat", gaussians)
    assert not list(tmp_path.iterdir())
    (tmp_path / "a.splat").write_bytes(bytes(33))
    with pytest.raises(FileError, match="33 bytes"):
        read_splat(tmp_path / "a.splat")


def spz_sections(gaussians, version):
    """Sections of an SPZ, rounded by the rules of the format, in the Gaussians' own axes."""
    fixed = (gaussians.means.double() * 4096).round().long().numpy()
    positions = np.stack([fixed >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
    rgb = (gaussians.sh0[:, 0] * 0.15 + 0.5) * 255
    quats = torch.nn.functional.normalize(gaussians.quats, dim=-1)[:, [1, 2, 3, 0]].double().numpy()
    if version == 2:
        xyz = quats[:, :3] * np.where(quats[:, 3:] < 0, -1, 1)
        rotations = np.round((xyz + 1) * 127.5).astype(np.uint8)
    else:
        words = []
        for quat in quats:
            largest = int(np.abs(quat).argmax())
            word = largest
            for value in np.delete(quat * np.sign(quat[largest]), largest):
                word = word << 10 | (512 if value < 0 else 0) | round(abs(value) * 2**0.5 * 511)
            words.append(word)
        rotations = np.array(words, "<u4")

    def bytes_of(values):
        return values.round().clamp(0, 255).to(torch.uint8).numpy().tobytes()

    parts = [gaussians.opacities * 255, rgb, (gaussians.log_scales + 10) * 16]
    rest = bytes_of(gaussians.shN * 128 + 128)
    return [positions.tobytes(), *map(bytes_of, parts), rotations.tobytes(), rest]


def spz(gaussians, version, flags=0, raw=False, count=None):
    sections = spz_sections(gaussians, version)
    count = len(gaussians) if count is None else count
    head = struct.pack("<4sIIBBB", b"NGSP", version, count, gaussians.sh_degree, 12, flags)
    if version < 4:
        content = head + b"\0" + b"".join(sections)
        return content if raw else gzip.compress(content)
    zstandard = pytest.importorskip("zstandard")
    streams = [(zstandard.compress(section), len(section)) for section in sections if section]
    extension = struct.pack("<II4x", 0xADBE0002, 4)
    table = b"".join(struct.pack("<QQ", len(packed), size) for packed, size in streams)
    head += struct.pack("<BI12x", len(streams), 32 + len(extension))
    return head + extension + table + b"".join(packed for packed, _ in streams)


def half_turn(gaussians, directions):
    """Colors seen along directions [N, 3] after half a turn about x."""
    turned = directions * torch.tensor([1.0, -1, -1])
    return tsplat.spherical_harmonics(gaussians.sh_degree, turned, gaussians.sh_coeffs(gaussians.sh_degree))


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_spz_is_read_turned_by_half_a_turn_about_x(tmp_path, version, degree):
    gaussians = some(60, degree)
    (tmp_path / "a.spz").write_bytes(spz(gaussians, version, flags=1))
    found = read_spz(tmp_path / "a.spz")
    assert found.antialiased
    axes = torch.tensor([1.0, -1, -1])
    assert (found.means - axes * gaussians.means).abs().max() <= 0.5 / 4096 + 1e-6
    assert (found.log_scales - gaussians.log_scales).abs().max() <= 0.5 / 16 + 1e-6
    assert (found.opacities - gaussians.opacities).abs().max() <= 0.5 / 255 + 1e-6
    covars, wanted = (
        tsplat.quat_scale_to_covar_preci(g.quats, torch.tensor([1.0, 2, 3]).expand(60, 3), True, False, False)[0]
        for g in (found, gaussians)
    )
    flipped = axes[:, None] * wanted * axes
    errors = (covars - flipped).abs().amax((1, 2))
    # Version 2 does not store w, of which little is left to tell where it is small.
    assert errors.median() < 0.1
    assert version == 2 or errors.max() < 0.05
    directions = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), dim=-1)
    colors = tsplat.spherical_harmonics(degree, directions, found.sh_coeffs(degree))
    assert (colors - half_turn(gaussians, directions)).abs().max() < 0.06


@pytest.mark.parametrize("version", [2, 3])
def test_spz_without_compression(tmp_path, version):
    gaussians = some(7, 1)
    (tmp_path / "a.spz").write_bytes(spz(gaussians, version, raw=True))
    (tmp_path / "b.spz").write_bytes(spz(gaussians, version))
    a, b = (read_spz(tmp_path / name) for name in ("a.spz", "b.spz"))
    assert all(torch.equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values()))
    assert not a.antialiased


def with_byte(content, place, value):
    return content[:place] + bytes([value]) + content[place + 1 :]


RAW = spz(some(5), 3, raw=True)
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
        (gzip.compress(with_byte(RAW, 4, 1), mtime=0), UnsupportedError, "version 1"),
        (gzip.compress(with_byte(RAW, 4, 9), mtime=0), UnsupportedError, "version 9"),
        (gzip.compress(with_byte(RAW, 11, 255), mtime=0), FileError, "42781.* Gaussians, more than"),
        (gzip.compress(with_byte(RAW, 12, 5), mtime=0), UnsupportedError, "SH degree 5"),
        (gzip.compress(with_byte(RAW, 13, 40), mtime=0), FileError, "40 fractional bits"),
    ],
    # The same in every process that collects them.
    ids=lambda value: "content" if isinstance(value, bytes) else None,
)
def test_damaged_spz(tmp_path, content, error, words):
    (tmp_path / "a.spz").write_bytes(content)
    with pytest.raises(error, match=words) as caught:
        read_spz(tmp_path / "a.spz")
    assert "a.spz" in str(caught.value)


def test_damaged_spz_4(tmp_path):
    content = spz(some(40, 1), 4)
    for damaged, words in [
        (content[:31], "within its header"),
        (content[:100], "table of streams"),
        (content[:-9], "ends within stream 5"),
        (with_byte(content, 8, 41), "do not go with its 41 Gaussians"),
        (with_byte(content, 11, 99), "do not go with"),
        (with_byte(content, 16, 4), "table of streams"),
        (with_byte(content, content.index(b"\x28\xb5\x2f\xfd") + 9, 255), "zstd stream 0|shorter"),
        (content.replace(b"\x28\xb5\x2f\xfd", b"abcd"), "zstd stream 0"),
    ]:
        (tmp_path / "a.spz").write_bytes(damaged)
        with pytest.raises(FileError, match=words):
            read_spz(tmp_path / "a.spz")


def test_damaged_bytes_of_compressed_models_are_typed_errors_or_read(tmp_path):
    rng = np.random.default_rng(0)
    files, _, _ = sog()
    sound = {
        "a.sog": write_zip(tmp_path / "a.sog", files).read_bytes(),
        "a.spz": spz(some(40, 2), 3),
        "b.spz": spz(some(40, 2), 4),
        "c.spz": spz(some(40, 2), 2, raw=True),
    }
    outcomes = set()
    for i in range(200):
        name = list(sound)[i % len(sound)]
        content = bytearray(sound[name])
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        (tmp_path / name).write_bytes(content[: int(rng.integers(len(content)))] if i % 3 == 0 else content)
        try:
            assert len(read_model(tmp_path / name)) <= 40
            outcomes.add((name, "read"))
        except (FileError, UnsupportedError):
            outcomes.add((name, "refused"))
    assert outcomes >= {(name, "refused") for name in sound} | {("c.spz", "read")}


def test_a_model_is_told_by_its_content(tmp_path):
    gaussians = some(9)
    write_ply(tmp_path / "a.ply", gaussians)
    contents = {"ply": (tmp_path / "a.ply").read_bytes(), "spz": spz(gaussians, 3), "raw": spz(gaussians, 2, raw=True)}
    for name, content in contents.items():
        (tmp_path / f"{name}.bin").write_bytes(content)
        assert len(read_model(tmp_path / f"{name}.bin")) == 9
    assert len(read_model(write_zip(tmp_path / "sog.bin", sog()[0]))) == 30
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(FileError, match=r"text.txt: not a model.*PLY"):
        read_model(tmp_path / "text.txt")
    with pytest.raises(FileError, match=r"neither meta\.json"):
        read_model(tmp_path)
    (tmp_path / "a.ksplat").write_bytes(bytes(9))
    with pytest.raises(UnsupportedError, match="ksplat"):
        read_model(tmp_path / "a.ksplat")
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "missing.ply")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a.spz", UnsupportedError),
        ("a.sog", UnsupportedError),
        ("a.ksplat", UnsupportedError),
        ("a.compressed.ply", UnsupportedError),
        ("a.pt", UnsupportedError),
        ("a", FileError),
        ("a.obj", FileError),
    ],
)
def test_what_is_not_written(tmp_path, name, error):
    with pytest.raises(error, match=f"{name}: .*\\.splat"):
        write_model(tmp_path / name, some(3))
    assert not list(tmp_path.iterdir())


def test_models_are_written_by_name_and_what_is_lost_is_said(tmp_path):
    gaussians = some(9, degree=1, antialiased=True)
    for name in ("a.PLY", "a.splat"):
        write_model(tmp_path / name, gaussians)
        assert len(read_model(tmp_path / name)) == 9
    assert read_ply(tmp_path / "a.PLY").antialiased
    assert lost_in("a.PLY", gaussians) == []
    assert [words.split()[0] for words in lost_in("a.splat", gaussians)] == ["view", "the", "all"]
    assert len(lost_in("a.splat", some(9))) == 1


@pytest.mark.parametrize(
    ("name", "start", "module", "extra"),
    [("a.spz", struct.pack("<4sI24x", b"NGSP", 4), "zstandard", "io"), ("a.sog", b"PK", "PIL", "train")],
)
def test_missing_extras_are_named(tmp_path, monkeypatch, name, start, module, extra):
    (tmp_path / name).write_bytes(start)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'tsplat\[{extra}\]'"):
        read_model(tmp_path / name)


EXPECTED = {
    "biker.compressed.ply": (152_746, 0),
    "biker.spz": (152_746, 0),
    "kettle.from_spz.ply": (101_407, 3),
    "kettle.spz": (101_407, 3),
    "luma-seal.from_splat.ply": (101_780, 0),
    "luma-seal.splat": (101_780, 0),
    "playbot_3.from_sog.ply": (31_000, 2),
    "playbot_3.sog": (31_000, 2),
    "tiny/minimal-raw.spz": (4, 0),
    "tiny/minimal-v2.spz": (4, 0),
    "tiny/minimal-v3.spz": (4, 0),
    "tiny/minimal-v4.spz": (4, 0),
    "tiny/minimal.ksplat": "ksplat is not implemented",
    "tiny/minimal.splat": (4, 0),
    "tiny/monkey_0001.synthetic.sog": (31_658, 0),
    "tiny/pc_short.ply": (100, 3),
    "tiny/test-splat.3-points-from-train.ply": (3, 3),
    "tiny/test-splat.3-points-from-train.splat": (3, 0),
    "tiny/test-splat.3-points-from-train.spz": (3, 3),
}


@needs_models
@pytest.mark.parametrize("name", EXPECTED)
def test_models_of_other_programs(name):
    expected = EXPECTED[name]
    if isinstance(expected, str):
        with pytest.raises(UnsupportedError, match=expected):
            read_model(MODELS / name)
        return
    if name in ("biker.spz", "tiny/minimal-v4.spz"):
        pytest.importorskip("zstandard")
    found = read_model(MODELS / name)
    assert (len(found), found.sh_degree, found.antialiased) == (*expected, False)
    assert found.sound.all()
    assert (found.quats.norm(dim=-1) > 0.1).all()


@needs_models
def test_every_shared_model_has_an_expected_outcome():
    there = {str(path.relative_to(MODELS)) for path in [*MODELS.glob("*"), *MODELS.glob("tiny/*")]}
    assert there - {"tiny"} == set(EXPECTED)


@needs_models
@pytest.mark.parametrize(
    ("name", "other", "errors"),
    [
        # Errors of means, log scales, rotations, opacities, sh0, shN.
        ("kettle.spz", "kettle.from_spz.ply", (0, 0, 1e-4, 2e-6, 1e-6, 0)),
        # The converter centers bytes of rotations on 127.5, the format on 128.
        ("luma-seal.splat", "luma-seal.from_splat.ply", (0, 1e-6, 0.012, 1e-6, 1e-6, 0)),
        ("playbot_3.sog", "playbot_3.from_sog.ply", (1e-6, 0, 1e-6, 1e-6, 0, 0)),
        (
            "tiny/test-splat.3-points-from-train.spz",
            "tiny/test-splat.3-points-from-train.ply",
            (2e-4, 0.032, 2e-3, 2e-3, 0.014, 0.07),
        ),
        (
            "tiny/test-splat.3-points-from-train.splat",
            "tiny/test-splat.3-points-from-train.ply",
            (0, 1e-5, 0.02, 1 / 255, 0.014, None),
        ),
    ],
)
def test_compressed_models_agree_with_the_plain_ones(name, other, errors):
    found, truth = read_model(MODELS / name), read_ply(MODELS / other)
    means, log_scales, quats, opacities, sh0, shN = errors
    assert (found.means - truth.means).abs().max() <= means
    assert (found.log_scales - truth.log_scales).abs().max() <= log_scales
    same_rotations(found, truth, quats + 1e-9)
    assert (found.opacities - truth.opacities).abs().max() <= opacities
    assert (found.sh0 - truth.sh0).abs().max() <= sh0
    if shN is not None:
        assert torch.allclose(found.shN, truth.shN, rtol=0, atol=shN)


@needs_models
def test_two_formats_of_one_model_show_the_same_gaussians():
    pytest.importorskip("zstandard")
    a, b = read_model(MODELS / "biker.spz"), read_model(MODELS / "biker.compressed.ply")
    assert (a.means - b.means).abs().max() < 2e-4
    inside = b.log_scales > -10  # where SPZ ends
    assert (a.log_scales - b.log_scales)[inside].abs().max() <= 0.5 / 16 + 1e-4
    same_rotations(a, b, 0.01)
    assert (a.opacities - b.opacities).abs().max() < 1e-6
    assert (a.sh0 - b.sh0).abs().max() < 0.02


@needs_models
@pytest.mark.parametrize(
    "name", ["kettle.spz", "biker.compressed.ply", "playbot_3.sog", "tiny/monkey_0001.synthetic.sog"]
)
def test_another_library_reads_the_same(name):
    gsply = pytest.importorskip("gsply", reason="gsply, which reads the same formats, is not installed")
    read = {".spz": gsply.read_spz, ".ply": gsply.plyread}.get(Path(name).suffix) or gsply.sogread
    found, other = read_model(MODELS / name), read(str(MODELS / name))
    axes = torch.tensor([1.0, -1, -1]) if name.endswith(".spz") else torch.ones(3)
    torch.testing.assert_close(found.means, axes * torch.from_numpy(other.means), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.log_scales, torch.from_numpy(other.scales), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.opacities, torch.from_numpy(other.opacities).sigmoid(), rtol=0, atol=1e-4)
    torch.testing.assert_close(found.sh0[:, 0], torch.from_numpy(other.sh0), rtol=1e-4, atol=1e-5)
