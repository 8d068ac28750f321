"""``.rad`` of Spark, against files packed by hand: encodings, chunks, levels of detail, palettes, damage."""

import json
import struct
import tracemalloc
import zlib

import pytest
import torch

from tests.support.model_files import assert_same_rotations, random_gaussians
from tests.support.rad_files import COMPACT, PLAIN, rad_files
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_model


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "a.rad"


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize(
    ("encodings", "tolerances"),
    [
        (PLAIN, dict(means=0, scales=1e-6, quats=1e-3, opacities=1e-6, sh=1e-6)),
        (
            PLAIN | {"center": "f32_lebytes", "alpha": "f16", "rgb": "f16", "scales": "ln_f16", "orientation": "f16"},
            dict(means=0, scales=1e-2, quats=5e-2, opacities=1e-3, sh=1e-2),
        ),
        (COMPACT, dict(means=2e-2, scales=5e-2, quats=3e-2, opacities=3e-3, sh=2e-2)),
        (COMPACT | {"rgb": "r8", "sh": "s8_delta"}, dict(means=2e-2, scales=5e-2, quats=3e-2, opacities=3e-3, sh=2e-2)),
        (PLAIN | {"sh": "r8_delta"}, dict(means=0, scales=1e-6, quats=1e-3, opacities=1e-6, sh=1e-2)),
        (PLAIN | {"sh": "f16", "center": "f16"}, dict(means=2e-2, scales=1e-6, quats=1e-3, opacities=1e-6, sh=1e-3)),
    ],
)
def test_files_are_read(tmp_path, degree, encodings, tolerances):
    model = random_gaussians(100, degree)
    model.sh0.clamp_(-2, 2)
    found = read_model(write(tmp_path, rad_files(model, encodings)))
    assert (len(found), found.sh_degree) == (100, degree)
    assert (found.means - model.means).abs().max() <= tolerances["means"]
    torch.testing.assert_close(found.scales, model.scales, rtol=tolerances["scales"], atol=0)
    assert_same_rotations(found, model, tolerances["quats"])
    assert (found.opacities - model.opacities).abs().max() <= tolerances["opacities"]
    assert (found.sh0 - model.sh0).abs().max() <= max(tolerances["sh"], 5e-6)
    expected = model.shN.clamp(-1.5, 1.5) if encodings["sh"][:2] in ("s8", "r8") else model.shN
    assert degree == 0 or (found.shN - expected).abs().max() <= tolerances["sh"]


def test_the_leaves_of_a_tree_are_read(tmp_path):
    model, notes = random_gaussians(90, 1), []
    found = read_model(write(tmp_path, rad_files(model, tree=True)), warn=notes.append)
    leaves = model.select(slice(0, None, 2))
    assert torch.equal(found.means, leaves.means)
    torch.testing.assert_close(found.opacities, leaves.opacities)
    assert notes == [f"{tmp_path / 'a.rad'}: read the finest level of detail, 45 of 90 Gaussians"]


@pytest.mark.parametrize("tree", [False, True])
def test_coefficients_come_from_the_palette_of_the_first_chunk(tmp_path, tree):
    model = random_gaussians(90, 2)
    found = read_model(write(tmp_path, rad_files(model, palette=7, tree=tree)), warn=str)
    expected = model.shN[torch.arange(90) % 7][:: 2 if tree else 1]
    assert torch.equal(found.shN, expected)


def test_chunks_may_be_files_beside_it(tmp_path):
    model = random_gaussians(90, 1)
    path = write(tmp_path, rad_files(model, beside=True))
    assert torch.equal(read_model(path).means, model.means)
    with pytest.raises(FileError, match=r"a-1\.radc: a chunk of a \.rad file; open the \.rad file"):
        read_model(path.with_name("a-1.radc"))
    path.with_name("a-1.radc").unlink()
    with pytest.raises(FileError, match=r"a\.rad: its file 'a-1\.radc' is missing"):
        read_model(path)


@pytest.mark.parametrize("name", ["../a.radc", "/etc/passwd", "a\\b.radc", "a\0b"])
def test_files_of_chunks_are_in_the_folder(tmp_path, name):
    files = rad_files(random_gaussians(5), chunks=[{"offset": 0, "bytes": 9, "filename": name}])
    with pytest.raises(FileError, match="expected names of files in it"):
        read_model(write(tmp_path, files))


def test_no_gaussians_and_bytes_after_the_end(tmp_path):
    assert len(read_model(write(tmp_path, rad_files(random_gaussians(0))))) == 0
    content = rad_files(random_gaussians(5))["a.rad"] + bytes(16)
    with pytest.warns(UserWarning, match=r"a\.rad: ignored 16 bytes after the last chunk"):
        assert len(read_model(write(tmp_path, {"a.rad": content}))) == 5


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"version": 2}, UnsupportedError, "RAD of version 1, found 2"),
        ({"type": "mesh"}, UnsupportedError, "type gsplat, found 'mesh'"),
        ({"maxSh": 4}, UnsupportedError, "SH degree from 0 to 3, found 4"),
        ({"count": 51}, FileError, "expected 51 Gaussians, found 50 in its chunks"),
        ({"count": 49}, FileError, "chunk 1: 10 Gaussians from 40 on do not follow 40 of 49"),
        ({"count": 10**12}, FileError, "needs .* GB of memory"),
        ({"maxSh": 2}, FileError, "a chunk has no sh2"),
        ({"lodTree": True}, FileError, "a chunk without child_count"),
        ({"chunks": [{"offset": 8, "bytes": 8}]}, FileError, "chunk 0: expected RADC, found"),
        ({"chunks": [{"offset": 0, "bytes": 8}] * 3}, FileError, "chunk 1: 40 Gaussians from 0 on do not follow 40"),
    ],
)
def test_what_is_wrong_in_the_header_is_named(tmp_path, values, error, words):
    path = write(tmp_path, rad_files(random_gaussians(50, 1), **values))
    with pytest.raises(error, match=rf"a\.rad: .*{words}"):
        read_model(path)


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ('"encoding": "f32"', '"encoding": "f99"', UnsupportedError, "center: expected an encoding of f32.*'f99'"),
        ('"property": "alpha"', '"property": "other"', UnsupportedError, "chunk 0: expected center, .*'other'"),
        ('"property": "alpha"', '"property": "scale"', UnsupportedError, "found 'scale'"),
        ('"property": "sh1"', '"property": "rgb"', FileError, "has rgb twice"),
        ('"compression": "gz"', '"compression": "zz"', UnsupportedError, "compression gz, found 'zz'"),
        ('"compression": "gz"', '"compressjon": "gz"', FileError, "expected 480 bytes for 40 rows, found"),
        ('"base": 0', '"base": 1', FileError, "do not follow"),
        ('"count": 40', '"count": 39', FileError, "expected 468 bytes for 39 rows, found more"),
        ('"offset": 0', '"offset": 9', FileError, "cannot be decompressed|expected"),
        ('"bytes": ', '"bytes":9', FileError, "ends after the chunk"),
    ],
)
def test_what_is_wrong_in_a_chunk_is_named(tmp_path, old, new, error, words):
    content = rad_files(random_gaussians(50, 1))["a.rad"]
    start = content.index(b"RADC")
    length = struct.unpack("<I", content[start + 4 : start + 8])[0]
    text = content[start + 8 : start + 8 + length].decode()
    assert old in text
    damaged = text.replace(old, new, 1)
    damaged = (damaged + " " * (length - len(damaged)))[:length].encode()
    path = write(tmp_path, {"a.rad": content[: start + 8] + damaged + content[start + 8 + length :]})
    tracemalloc.start()
    with pytest.raises(error, match=rf"a\.rad: .*({words})"):
        read_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_columns_that_inflate_are_errors(tmp_path):
    content = rad_files(random_gaussians(2))["a.rad"]
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflate.compress(bytes(50_000_000)) + deflate.flush()
    chunk = content.index(b"RADC")
    entry = {"offset": 0, "bytes": len(bomb), "property": "center", "encoding": "f32", "compression": "gz"}
    header = json.dumps({"version": 1, "base": 0, "count": 2, "properties": [entry]})
    header += " " * (-len(header) % 8)
    body = b"RADC" + struct.pack("<I", len(header)) + header.encode() + struct.pack("<Q", len(bomb)) + bomb
    path = write(tmp_path, {"a.rad": content[:chunk] + body})
    tracemalloc.start()
    with pytest.raises(FileError, match="center: expected 24 bytes for 2 rows, found more"):
        read_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_files_that_are_cut_short_are_errors(tmp_path):
    content = rad_files(random_gaussians(50, 1), COMPACT)["a.rad"]
    for size in (3, 6, 100, content.index(b"RADC") + 3, content.index(b"RADC") + 30, len(content) - 1):
        with pytest.raises(FileError, match=r"a\.rad: "):
            read_model(write(tmp_path, {"a.rad": content[:size]}))
