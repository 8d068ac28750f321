"""Tests of reading and writing models by content and name, and of models from other programs."""

import contextlib
import dataclasses
import gzip
import importlib.util
import json
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.model_files import (
    FILE_FORMATS,
    assert_same_rotations,
    ply_bytes,
    ply_names,
    random_gaussians,
    skip_without,
    sog_files,
    spz_bytes,
    write_zip,
)
from tests.support.paths import MODELS
from tsplat import ArgumentError, UnsupportedError, quat_scale_to_covar_preci, spherical_harmonics
from tsplat.scene import FileError, Georeference, MissingExtraError, read_model, read_ply, write_model, write_ply
from tsplat.scene.formats.models import WRITERS
from tsplat.scene.gaussians import FLAT
from tsplat.scene.rotation import similarity

needs_models = pytest.mark.skipif(not MODELS.is_dir(), reason="needs the test models")


def test_format_is_detected_by_content(tmp_path):
    gaussians = random_gaussians(9)
    write_ply(tmp_path / "a.ply", gaussians)
    contents = {
        "ply": (tmp_path / "a.ply").read_bytes(),
        "spz": spz_bytes(gaussians, 3),
        "raw": spz_bytes(gaussians, 2, raw=True),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.bin").write_bytes(content)
        assert len(read_model(tmp_path / f"{name}.bin")) == 9
    assert len(read_model(write_zip(tmp_path / "sog.bin", sog_files()[0]))) == 30


def test_content_decides_over_the_name_of_a_splat(tmp_path):
    gaussians, path = random_gaussians(32), tmp_path / "a.splat"
    write_ply(path, gaussians)
    with open(path, "ab") as file:
        file.write(bytes(-path.stat().st_size % 32))
    assert len(read_model(path, warn=str)) == 32
    for content in (spz_bytes(gaussians, 3), spz_bytes(gaussians, 2, raw=True)):
        path.write_bytes(content)
        assert len(read_model(path)) == 32
    assert len(read_model(write_zip(path, sog_files()[0]))) == 30


def test_splat_may_start_with_the_magic_number_of_gzip(tmp_path):
    write_model(tmp_path / "a.splat", random_gaussians(2))
    content = bytearray((tmp_path / "a.splat").read_bytes())
    content[:3] = b"\x1f\x8b\0"
    (tmp_path / "a.splat").write_bytes(content)
    assert len(read_model(tmp_path / "a.splat")) == 2


def test_unknown_formats_are_rejected(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(FileError, match=r"text.txt: unknown model format.*PLY"):
        read_model(tmp_path / "text.txt")
    with pytest.raises(FileError, match=r"neither meta\.json"):
        read_model(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "missing.ply")


def test_point_clouds_are_named_with_what_to_do(tmp_path):
    header = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\n"
    points, lacks = "end_header\n0 0 0\n1 1 1\n", "not a PLY of Gaussians; its vertices lack .*opacity"
    faces = "element face 1\nproperty list uchar int vertex_indices\n"
    train = r"to train a model from it and from photographs with poses, run: tsplat train SCENE --points FILE --out RUN"
    (tmp_path / "cloud.ply").write_text(header + points)
    with pytest.raises(FileError, match=f"{lacks}.*: it is a point cloud; .*{train}"):
        read_model(tmp_path / "cloud.ply")
    (tmp_path / "mesh.ply").write_text(header + faces + points + "3 0 1 0\n")
    with pytest.raises(FileError, match=f"{lacks}.*: it is a mesh$"):
        read_model(tmp_path / "mesh.ply")
    (tmp_path / "a.LAZ").write_bytes(b"LASF")
    with pytest.raises(FileError, match=rf"a \.laz is a point cloud, not a model; {train}"):
        read_model(tmp_path / "a.LAZ")
    (tmp_path / "a.pcd").write_bytes(b"# .PCD")
    with pytest.raises(FileError, match=rf"a \.pcd is a point cloud, not a model; save it as \.ply; {train}"):
        read_model(tmp_path / "a.pcd")


@pytest.mark.parametrize("name", ["a.ply.gz", "a.ply", "a.gz", "a", "a.sog"])
def test_files_that_are_gzipped_are_named(tmp_path, name):
    write_model(tmp_path / "b.ply", random_gaussians(3))
    (tmp_path / name).write_bytes(gzip.compress((tmp_path / "b.ply").read_bytes()))
    with pytest.raises(FileError, match=r"gzip file, but only SPZ .* decompress it first: gunzip"):
        read_model(tmp_path / name)
    if name != "a.ply":  # an SPZ is gzipped itself, whatever its name
        write_model(tmp_path / name, random_gaussians(4), format="spz")
        assert len(read_model(tmp_path / name)) == 4


def test_folders_of_training_programs(tmp_path):
    """A point_cloud.ply in the folder, or that of the last iteration where Inria's program writes them."""
    for iteration, n in (("7000", 3), ("30000", 4), ("9000", 5), ("x", 6)):
        write_model(tmp_path / "point_cloud" / f"iteration_{iteration}" / "point_cloud.ply", random_gaussians(n))
    assert len(read_model(tmp_path)) == 4
    assert len(read_model(tmp_path / "point_cloud" / "iteration_7000")) == 3
    write_model(tmp_path / "point_cloud.ply", random_gaussians(7))
    assert len(read_model(tmp_path)) == 7


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a.ksplat", UnsupportedError),
        ("a.pt", UnsupportedError),
        ("a.json", UnsupportedError),
        ("ameta.json", UnsupportedError),
        ("a", FileError),
        ("a.obj", FileError),
    ],
)
def test_write_rejects_other_formats(tmp_path, name, error):
    with pytest.raises(error, match=f"{name}: .*\\.splat"):
        write_model(tmp_path / name, random_gaussians(3))
    assert not list(tmp_path.iterdir())


def test_write_chooses_the_format_by_name(tmp_path):
    gaussians = random_gaussians(9, degree=1, antialiased=True)
    for name in ("a.PLY", "a.compressed.ply", "a.splat", "a.SPZ", "a.sog", "folder/meta.json", "a.glb", "a.gltf"):
        write_model(tmp_path / name, gaussians)
        assert len(read_model(tmp_path / name)) == 9
    assert (tmp_path / "a.SPZ").read_bytes()[:2] == b"\x1f\x8b"
    assert (tmp_path / "a.sog").read_bytes()[:2] == b"PK"
    assert (tmp_path / "a.glb").read_bytes()[:4] == b"glTF"
    assert (tmp_path / "a.gltf").read_bytes()[:1] == b"{"
    assert read_ply(tmp_path / "a.PLY").antialiased
    assert read_ply(tmp_path / "a.compressed.ply").antialiased
    assert b"packed_position" in (tmp_path / "a.compressed.ply").read_bytes()


def test_write_accepts_a_format_for_any_name(tmp_path):
    gaussians = random_gaussians(9, degree=1)
    has_usd = importlib.util.find_spec("pxr") is not None
    for format in set(WRITERS) - {"spz4", "splat"} - (set() if has_usd else {"usda", "usdc", "usdz"}):
        write_model(tmp_path / format, gaussians, format=format)
        assert len(read_model(tmp_path / format)) == 9
    assert b"packed_position" in (tmp_path / "compressed-ply").read_bytes()
    write_model(tmp_path / "a.ply", gaussians, format="splat")
    assert (tmp_path / "a.ply").stat().st_size == 9 * 32
    with pytest.raises(ArgumentError, match=r"format: expected ply, .*, found 'obj'"):
        write_model(tmp_path / "a", gaussians, format="obj")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("format", FILE_FORMATS)
def test_2d_gaussians_are_recognized(tmp_path, format):
    """Also by what reads three scales, and when the file is written again."""
    skip_without(format)
    given = random_gaussians(40)
    name = f"a.{format}" if format in ("splat", "sog") else "a"
    for gaussians in (given.as_surfels(), given):
        write_model(tmp_path / name, gaussians, format=format)
        found = read_model(tmp_path / name)
        assert found.surfels == gaussians.surfels
        sizes = [one.log_scales.sort(0).values for one in (found, gaussians)]  # the order may change
        torch.testing.assert_close(*sizes, atol=0.0 if format == "ply" else 0.1, rtol=0)
        content = (tmp_path / name).read_bytes()
        write_model(tmp_path / name, found, format=format)
        assert (tmp_path / name).read_bytes() == content
    one_small = given.log_scales.clone()
    one_small[0, 2] = -10.0
    needles = given.log_scales.clone()
    needles[:, 1:] = -10.0
    for log_scales in (torch.full_like(one_small, -10.0), one_small, needles):
        assert not dataclasses.replace(given, log_scales=log_scales).as_surfels_if_flat(-10.0).surfels
    needles[:, :2] = 0.0
    for antialiased in (True, False):
        given = dataclasses.replace(given, log_scales=needles, antialiased=antialiased)
        assert given.as_surfels_if_flat(-10.0).surfels is not antialiased


def test_ply_files_of_2d_gaussians_have_two_scales(tmp_path):
    write_ply(tmp_path / "a.ply", random_gaussians(5).as_surfels())
    header, _, values = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    assert b"scale_1" in header and b"scale_2" not in header and len(values) == 5 * 16 * 4


def test_ply_files_of_2dgs_are_read(tmp_path):
    """They have two scales and no comment; others say it in a comment."""
    for names, comments in (
        ([n for n in ply_names(0) if n != "scale_2"], []),
        (ply_names(0), ["SplatRenderMode: 2dgs"]),
    ):
        values = np.arange(6.0 * len(names)).reshape(6, -1)
        (tmp_path / "a.ply").write_bytes(ply_bytes(names, values, comments=comments))
        found = read_model(tmp_path / "a.ply")
        assert found.surfels and not found.antialiased and set(found.log_scales[:, 2].tolist()) == {np.float32(FLAT)}
        assert found.log_scales[:, 0].tolist() == values[:, names.index("scale_0")].tolist()


def test_what_is_lost(tmp_path):
    gaussians = random_gaussians(9, degree=1, antialiased=True)
    assert write_model(tmp_path / "a.PLY", gaussians) == []
    assert write_model(tmp_path / "a.compressed.ply", gaussians) == ["every value rounded to 8 to 11 bits"]
    lost = [
        "view dependence (SH degree 1)",
        "the antialiased flag",
        "colors, opacities and rotations rounded to 8 bits",
    ]
    assert (
        write_model(tmp_path / "a.splat", gaussians) == write_model(tmp_path / "a", gaussians, format="splat") == lost
    )
    assert write_model(tmp_path / "a.splat", random_gaussians(9)) == lost[2:]


def test_what_is_clamped_is_lost(tmp_path):
    pytest.importorskip("zstandard")
    gaussians = random_gaussians(9, degree=1)
    bits = "positions rounded to 24 bits, rotations to 10, other values to 8"
    assert write_model(tmp_path / "a.spz", gaussians.map(lambda tensor: 0.1 * tensor)) == [bits]
    extreme = gaussians.map(lambda tensor: 100 * tensor)
    clamped = ["log scales outside [-10, 5.94]", "colors outside [-0.44, 1.44]", "SH coefficients outside [-1, 1]"]
    for format in ("spz", "spz4"):
        assert write_model(tmp_path / "a", extreme, format=format) == [bits, *clamped]


@pytest.mark.parametrize("name", ["a.sog", "a/meta.json"])
def test_clustered_coefficients_are_counted(tmp_path, name):
    bits = "positions rounded to 16 bits, other values to 8"
    assert write_model(tmp_path / name, random_gaussians(20_000)) == [bits]
    assert write_model(tmp_path / name, random_gaussians(9, degree=1)) == [bits]
    lost = write_model(tmp_path / name, random_gaussians(20_000, degree=1))
    with zipfile.ZipFile(tmp_path / name) if name == "a.sog" else contextlib.nullcontext() as archive:
        meta = json.loads(archive.read("meta.json") if archive else (tmp_path / name).read_text())
    assert meta["shN"]["count"] < 1 << 14
    assert lost == [bits, f"SH coefficients quantized to a palette of {meta['shN']['count']:,}"]


@pytest.mark.parametrize(
    ("name", "start", "module", "extra"),
    [
        ("a.spz", struct.pack("<4sI24x", b"NGSP", 4), "zstandard", "io"),
        ("a.sog", b"PK", "PIL", "train"),
        ("a.usda", b"#usd", "pxr", "usd"),
    ],
)
def test_missing_extra_is_named(tmp_path, monkeypatch, name, start, module, extra):
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
    "tiny/minimal.ksplat": (4, 0),
    "tiny/minimal.splat": (4, 0),
    "tiny/monkey_0001.synthetic.sog": (31_658, 0),
    "tiny/pc_short.ply": (100, 3),
    "tiny/test-splat.3-points-from-train.ply": (3, 3),
    "tiny/test-splat.3-points-from-train.splat": (3, 0),
    "tiny/test-splat.3-points-from-train.spz": (3, 3),
}


@needs_models
@pytest.mark.parametrize("name", EXPECTED)
def test_models_of_other_programs_are_read(name):
    expected = EXPECTED[name]
    if name in ("biker.spz", "tiny/minimal-v4.spz"):
        pytest.importorskip("zstandard")
    found = read_model(MODELS / name, warn=str)
    assert (len(found), found.sh_degree, found.antialiased) == (*expected, False)
    assert found.valid.all()
    assert (found.quats.norm(dim=-1) > 0.1).all()


@needs_models
def test_expected_covers_all_test_models():
    found = {str(path.relative_to(MODELS)) for path in [*MODELS.glob("*"), *MODELS.glob("tiny/*")]}
    assert found - {"tiny"} == set(EXPECTED)


@needs_models
@pytest.mark.parametrize(
    ("name", "other", "tolerances"),
    [
        # Tolerances of means, log scales, rotations, opacities, sh0, shN.
        ("kettle.spz", "kettle.from_spz.ply", (0, 0, 1e-4, 2e-6, 1e-6, 0)),
        # The converter decodes rotation bytes around 127.5 instead of 128.
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
def test_compressed_models_match_uncompressed_ones(name, other, tolerances):
    found, expected = read_model(MODELS / name), read_ply(MODELS / other)
    means, log_scales, quats, opacities, sh0, shN = tolerances
    assert (found.means - expected.means).abs().max() <= means
    assert (found.log_scales - expected.log_scales).abs().max() <= log_scales
    assert_same_rotations(found, expected, quats + 1e-9)
    assert (found.opacities - expected.opacities).abs().max() <= opacities
    assert (found.sh0 - expected.sh0).abs().max() <= sh0
    if shN is not None:
        assert torch.allclose(found.shN, expected.shN, rtol=0, atol=shN)


def covariances(gaussians):
    return quat_scale_to_covar_preci(gaussians.quats, gaussians.scales, True, False, False)[0]


@needs_models
@pytest.mark.parametrize(
    ("name", "other", "means", "covars", "colors"),
    [
        ("kettle.spz", "kettle.from_spz.ply", 0, 1e-4, 1e-6),
        ("playbot_3.sog", "playbot_3.from_sog.ply", 1e-6, 1e-6, 1e-6),
        ("luma-seal.splat", "luma-seal.from_splat.ply", 0, 0.03, 1e-6),
        ("biker.spz", "biker.compressed.ply", 2e-4, 0.07, 0.01),
        ("tiny/test-splat.3-points-from-train.spz", "tiny/test-splat.3-points-from-train.ply", 2e-4, 0.05, 0.2),
        ("tiny/test-splat.3-points-from-train.splat", "tiny/test-splat.3-points-from-train.ply", 0, 0.03, 0.01),
        ("tiny/minimal-v3.spz", "tiny/minimal-v4.spz", 0, 0, 0),
        ("tiny/minimal.splat", "tiny/minimal-v4.spz", 0, 0.03, 0.01),
        ("tiny/minimal.ksplat", "tiny/minimal.splat", 0, 1e-6, 1e-7),
    ],
)
def test_formats_of_one_model_have_the_same_axes(name, other, means, covars, colors):
    if "v4" in other or name == "biker.spz":
        pytest.importorskip("zstandard")
    found, expected = read_model(MODELS / name), read_model(MODELS / other)
    assert (found.means - expected.means).abs().max() <= means
    errors = (covariances(found) - covariances(expected)).flatten(1).norm(dim=1)
    assert (errors <= covars * covariances(expected).flatten(1).norm(dim=1)).all()
    degree = min(found.sh_degree, expected.sh_degree)
    directions = torch.nn.functional.normalize(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    rows = slice(0, 2000)
    for direction in directions:
        one, two = (
            spherical_harmonics(degree, direction.expand(len(coeffs), 3), coeffs)
            for coeffs in (found.sh_coeffs(degree)[rows], expected.sh_coeffs(degree)[rows])
        )
        assert (one - two).abs().max() <= colors


@needs_models
@pytest.mark.parametrize("name", ["tiny/minimal-v2.spz", "tiny/minimal-raw.spz"])
def test_spz_written_without_conversion_is_upside_down(name):
    # The program that wrote these two files stored the axes of PLY files. Nothing in the files tells.
    found, expected = read_model(MODELS / name), read_model(MODELS / "tiny/minimal-v3.spz")
    assert torch.equal(found.means, expected.means * torch.tensor([1.0, -1, -1]))


@needs_models
def test_spz_and_compressed_ply_of_one_model_match():
    pytest.importorskip("zstandard")
    a, b = read_model(MODELS / "biker.spz"), read_model(MODELS / "biker.compressed.ply")
    assert (a.means - b.means).abs().max() < 2e-4
    inside = b.log_scales > -10  # the minimum of SPZ
    assert (a.log_scales - b.log_scales)[inside].abs().max() <= 0.5 / 16 + 1e-4
    assert_same_rotations(a, b, 0.01)
    assert (a.opacities - b.opacities).abs().max() < 1e-6
    assert (a.sh0 - b.sh0).abs().max() < 0.02


@needs_models
@pytest.mark.parametrize(
    "name", ["kettle.spz", "biker.compressed.ply", "playbot_3.sog", "tiny/monkey_0001.synthetic.sog"]
)
def test_readers_match_gsply(name):
    gsply = pytest.importorskip("gsply", reason="needs gsply")
    read = {".spz": gsply.read_spz, ".ply": gsply.plyread}.get(Path(name).suffix) or gsply.sogread
    found, other = read_model(MODELS / name), read(str(MODELS / name))
    axes = torch.tensor([1.0, -1, -1]) if name.endswith(".spz") else torch.ones(3)
    torch.testing.assert_close(found.means, axes * torch.from_numpy(other.means), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.log_scales, torch.from_numpy(other.scales), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.opacities, torch.from_numpy(other.opacities).sigmoid(), rtol=0, atol=1e-4)
    torch.testing.assert_close(found.sh0[:, 0], torch.from_numpy(other.sh0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["a.sog", "a.compressed.ply", "a.spz", "a/lod-meta.json", "a.splat", "a.ply", "a.glb"])
@pytest.mark.parametrize("extent", [0.4, 20.0])
def test_errors_of_georeferenced_positions_are_noted(tmp_path, name, extent):
    """The unit of the scene's files is a quarter of that of the model."""
    own = random_gaussians(600)
    own = dataclasses.replace(
        own, means=extent * (2 * torch.rand(600, 3, generator=torch.Generator().manual_seed(0)) - 1)
    )
    place = Georeference(similarity(translation=(-5e5, -5e6, 0), scale=0.25))
    notes = [note for note in write_model(tmp_path / name, own, georeference=place) if "by up to" in note]
    found = read_model(tmp_path / name).means
    error = 4 * float((found.double()[:, None] - own.means.double()).abs().amax(-1).amin(1).max())
    if error < 1e-4:
        assert not notes
    elif error > 1e-3:
        noted = float(notes[0].split("by up to ")[1].split()[0])
        assert error / 1.1 <= noted <= 2 * error
    assert not any("by up to" in note for note in write_model(tmp_path / name, own))
