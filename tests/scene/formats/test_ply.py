"""Tests of PLY files, against records packed by hand."""

import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.model_files import assert_same_tensors, ply_bytes, ply_names, random_gaussians
from tests.support.paths import MODELS
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, read_ply, write_ply

INRIA = ply_names(3, normals=True)


def ply(
    names, vertices, *, count=None, types=None, newline="\n", encoding="binary_little_endian", comments=(), tail=b""
):
    """A PLY file. Each vertex is a dictionary by property name."""
    types = types or {}
    lines = ["ply", f"format {encoding} 1.0", *(f"comment {text}" for text in ("made by hand", *comments))]
    lines += [f"element vertex {len(vertices) if count is None else count}"]
    lines += [f"property {types.get(name, 'float')} {name}" for name in names] + ["end_header", ""]
    codes = "".join({"float": "f", "double": "d", "uchar": "B"}[types.get(name, "float")] for name in names)
    values = [[vertex[name] for name in names] for vertex in vertices]
    if encoding == "ascii":
        body = "".join(" ".join(map(repr, vertex)) + newline for vertex in values).encode()
    else:
        order = ">" if "big" in encoding else "<"
        body = b"".join(struct.pack(order + codes, *vertex) for vertex in values)
    return newline.join(lines).encode() + body + tail


def vertices_of(names, n=3):
    """Vertices with a different value for every property."""
    return [{name: float(i + 100 * j) for i, name in enumerate(names)} for j in range(n)]


@pytest.mark.parametrize("normals", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_read_maps_every_property(tmp_path, degree, normals):
    names = ply_names(degree, normals)
    vertices = vertices_of(names)
    (tmp_path / "a.ply").write_bytes(ply(names, vertices))
    found = read_ply(tmp_path / "a.ply")
    assert found.sh_degree == degree
    per_channel = (degree + 1) ** 2 - 1
    for i, vertex in enumerate(vertices):
        assert found.means[i].tolist() == [vertex["x"], vertex["y"], vertex["z"]]
        assert found.log_scales[i].tolist() == [vertex["scale_0"], vertex["scale_1"], vertex["scale_2"]]
        assert found.quats[i].tolist() == [vertex[f"rot_{k}"] for k in range(4)]
        assert float(found.opacity_logits[i]) == vertex["opacity"]
        assert found.sh0[i, 0].tolist() == [vertex[f"f_dc_{k}"] for k in range(3)]
        for k in range(per_channel):
            assert found.shN[i, k].tolist() == [vertex[f"f_rest_{channel * per_channel + k}"] for channel in range(3)]


def test_write_uses_inrias_layout(tmp_path):
    gaussians = random_gaussians(2, 1)
    write_ply(tmp_path / "a.ply", gaussians)
    header, _, body = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    names = ply_names(1, normals=True)
    assert [line.split()[-1] for line in header.decode().splitlines() if line.startswith("property float")] == names
    assert len(body) == 2 * 26 * 4
    record = dict(zip(names, struct.unpack("<26f", body[26 * 4 :])))
    assert [record["x"], record["y"], record["z"]] == gaussians.means[1].tolist()
    assert record["nx"] == record["ny"] == record["nz"] == 0
    assert record["f_rest_1"] == float(gaussians.shN[1, 1, 0])  # red, second coefficient
    assert record["f_rest_3"] == float(gaussians.shN[1, 0, 1])  # green, first coefficient


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_round_trip_is_bit_exact(tmp_path, degree):
    gaussians = random_gaussians(4, degree)
    write_ply(tmp_path / "a.ply", gaussians)
    found = read_ply(tmp_path / "a.ply")
    assert found.sh_degree == degree
    for name, tensor in gaussians.tensors().items():
        assert torch.equal(found.tensors()[name], tensor)


def test_read_accepts_other_orders_types_and_properties(tmp_path):
    names = [*reversed(ply_names(1, normals=True)), "red"]
    types = {"x": "double", "red": "uchar"}
    vertices = [{**vertex, "red": 7} for vertex in vertices_of(ply_names(1, normals=True))]
    (tmp_path / "a.ply").write_bytes(ply(names, vertices, types=types, newline="\r\n", tail=b"more bytes"))
    (tmp_path / "b.ply").write_bytes(ply(ply_names(1, normals=True), vertices))
    notes: list[str] = []
    assert_same_tensors(read_ply(tmp_path / "a.ply", warn=notes.append), read_ply(tmp_path / "b.ply"))
    assert notes == [f"{tmp_path / 'a.ply'}: ignored 10 bytes after the last record"]


def test_converted_line_ends_are_an_error(tmp_path):
    content = ply_bytes(ply_names(0), np.random.default_rng(0).normal(size=(300, len(ply_names(0)))).astype(np.float32))
    converted = content.replace(b"\n", b"\r\n")
    (tmp_path / "a.ply").write_bytes(converted)
    with pytest.raises(FileError, match=r"a\.ply: has .* bytes more than its header says.*copy the original in binary"):
        read_ply(tmp_path / "a.ply")


@pytest.mark.parametrize("encoding", ["ascii", "binary_big_endian"])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_encodings_are_equivalent(tmp_path, encoding, degree):
    names = [*ply_names(degree, normals=True), "red"]
    vertices = [{**vertex, "x": 0.1 + i, "y": -1e-30, "red": 7} for i, vertex in enumerate(vertices_of(names))]
    types = {"y": "double", "red": "uchar"}
    (tmp_path / "a.ply").write_bytes(ply(names, vertices, types=types, encoding=encoding, tail=b"\nmore"))
    (tmp_path / "b.ply").write_bytes(ply(names, vertices, types=types))
    assert_same_tensors(read_ply(tmp_path / "a.ply", warn=str), read_ply(tmp_path / "b.ply"))


def test_ascii_with_other_elements_blank_lines_and_nan(tmp_path):
    names = ply_names(0, normals=True)
    content = ply(names, vertices_of(names, 2), encoding="ascii", newline="\r\n")
    header, mark, body = content.partition(b"end_header\r\n")
    before = b"element face 2\nproperty list uchar int i\nelement vertex"
    first, second = body.replace(b"0.0", b"nan", 1).replace(b"100.0", b"-Infinity", 1).splitlines()
    faces = b"3 0 1 2\n4 0 1 2 3\n\n"
    body = faces + first + b"\n\n  " + second
    (tmp_path / "a.ply").write_bytes(header.replace(b"element vertex", before) + mark + body)
    found = read_ply(tmp_path / "a.ply")
    assert found.means[0].isnan().tolist() == [True, False, False]
    assert found.means[1].tolist() == [-float("inf"), 101, 102]
    assert found.quats[1].tolist() == [float(100 + names.index(f"rot_{k}")) for k in range(4)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"1 " * 13 + b"\n" + b"1 " * 14, "record 0 .*expected 14 numbers"),
        (b"1 " * 14 + b"\n" + b"1 " * 13 + b"one", "record 1 .*expected 14 numbers"),
        (b"1 " * 14 + b"\n" + b"1 " * 15, "record 1 .*expected 14 numbers"),
        (b"1 " * 14 + b"\n" + b" " * 60, "ends within element 'vertex'"),
        (b"1 " * 14 + b"\n1", "cut short"),
        (b" " * (2 << 20), "longer than 1,048,576 bytes"),
    ],
)
def test_invalid_ascii_records_are_rejected(tmp_path, body, words):
    header = ply(ply_names(0), [], count=2, encoding="ascii")
    (tmp_path / "a.ply").write_bytes(header + body)
    with pytest.raises(FileError, match=words):
        read_ply(tmp_path / "a.ply")


def test_absurd_count_of_an_empty_element_is_rejected(tmp_path):
    names = ply_names(0, normals=True)
    text = ply(names, vertices_of(names), encoding="ascii")
    content = text.replace(b"element v", b"element a " + b"9" * 31 + b"\nelement v")
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(FileError, match=r"found .* bytes"):
        read_ply(tmp_path / "a.ply")


@pytest.mark.parametrize(
    ("comments", "antialiased"),
    [
        ([], False),
        (["SplatRenderMode: mip"], True),
        (["SplatRenderMode: default"], False),
        (["antialiased 1"], True),
        (["antialiased 0"], False),
        (["antialiased 1", "splatrendermode:  DEFAULT"], False),
        (["SplatRenderMode: default", "antialiased 1", "and so on"], True),
        (["Postshot v1.0.0", "postshot.anti_aliasing=1"], True),
        (["postshot.anti_aliasing=0"], False),
        (["postshot.anti_aliasing=2"], False),
        (["not SplatRenderMode: mip"], False),
    ],
)
def test_antialiased_comment(tmp_path, comments, antialiased):
    names = ply_names(0, normals=True)
    (tmp_path / "a.ply").write_bytes(ply(names, vertices_of(names), comments=comments))
    found = read_ply(tmp_path / "a.ply")
    assert found.antialiased is antialiased
    write_ply(tmp_path / "b.ply", found)
    assert (b"comment SplatRenderMode: mip\n" in (tmp_path / "b.ply").read_bytes()) is antialiased
    assert read_ply(tmp_path / "b.ply").antialiased is antialiased


def test_other_elements_are_skipped(tmp_path):
    names = ply_names(0, normals=True)
    plain = ply(names, vertices_of(names))
    header, mark, body = plain.partition(b"end_header\n")
    before = header.replace(b"element vertex", b"element chunk 2\nproperty short a\nelement vertex")
    after = b"element face 1\nproperty list uchar int vertex_indices\n"
    (tmp_path / "a.ply").write_bytes(before + after + mark + b"\1\2\3\4" + body + b"\0")
    (tmp_path / "b.ply").write_bytes(plain)
    with pytest.warns(UserWarning, match=r"a\.ply: ignored the elements chunk; only 3D Gaussians are read"):
        found = read_ply(tmp_path / "a.ply")
    assert torch.equal(found.means, read_ply(tmp_path / "b.ply").means)


GOOD = ply(INRIA, vertices_of(INRIA))


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", FileError, "not a PLY"),
        (b"\x89PNG\r\n\x1a\n", FileError, "not a PLY"),
        (GOOD[:200], FileError, "end_header"),
        (b"ply\n" + b"comment and so on\n" * 100_000, FileError, "end_header"),
        (b"ply\n" + b"x" * 2_000_000, FileError, "end_header"),
        (GOOD[:-1], FileError, "found 743 bytes"),
        (ply(INRIA, [], count=2**60), FileError, "1152921504606846976 records"),
        (ply(INRIA, [], count=10**40), FileError, "invalid line"),
        (ply(INRIA, [], count=-1), FileError, "invalid line"),
        (GOOD.replace(b"binary_little_endian", b"binary_pdp_endian"), UnsupportedError, "binary_pdp_endian"),
        (GOOD.replace(b"binary_little_endian", b"ascii"), FileError, "record 0 of 'vertex': expected 62 numbers"),
        (GOOD.replace(b"property float scale_1\n", b""), FileError, "lack scale_1"),
        (ply([n for n in [*INRIA, "filter_3D"] if n != "scale_2"], []), UnsupportedError, "3D filter of 2D Gaussians"),
        (GOOD.replace(b"end_header", b"element vertex 3\nend_header"), FileError, "vertex' twice"),
        (GOOD.replace(b"element vertex", b"element face"), FileError, "vertex"),
        (GOOD.replace(b"property float x\n", b"property float a\n"), FileError, "lack x"),
        (GOOD.replace(b"property float nx\n", b"property float x\n"), FileError, "declares a property twice"),
        (GOOD.replace(b"property float x\n", b"property list uchar float x\n"), FileError, "list"),
        (GOOD.replace(b"property float x\n", b"property quaternion x\n"), FileError, "invalid line"),
        (ply([n for n in INRIA if n != "f_rest_44"], []), FileError, "found 44"),
        (ply([n.replace("f_rest_44", "f_rest_45") for n in INRIA], []), FileError, "f_rest_0"),
        (ply(ply_names(4), []), UnsupportedError, r"found 72 properties f_rest_\*, which is SH degree 4"),
        (ply(ply_names(5), []), UnsupportedError, "found 105 .* SH degree 5"),
        (ply(["packed_position"], []), FileError, "compressed.*lacks packed_rotation"),
    ],
)
def test_invalid_file_is_rejected(tmp_path, content, error, words):
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(error, match=words) as caught:
        read_ply(tmp_path / "a.ply")
    assert "a.ply" in str(caught.value)


@given(st.data())
def test_randomly_damaged_file_is_read_or_rejected(tmp_path_factory, data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.ply"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = read_ply(path, warn=str)
    except (ArgumentError, UnsupportedError):
        return
    assert len(found) * 14 * 4 <= len(content)


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a.ply").write_bytes(b"old content")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_ply(tmp_path / "a.ply", random_gaussians(4))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.ply", b"old content")]


def test_write_rejects_sh_degree_4(tmp_path):
    with pytest.raises(UnsupportedError, match="sh_degree"):
        write_ply(tmp_path / "a.ply", random_gaussians(4, 4))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not MODELS.is_dir(), reason="needs the test models")
@pytest.mark.parametrize(
    ("name", "count", "degree"),
    [
        ("tiny/test-splat.3-points-from-train.ply", 3, 3),
        ("tiny/pc_short.ply", 100, 3),
        ("kettle.from_spz.ply", 101_407, 3),
        ("luma-seal.from_splat.ply", 101_780, 0),
        ("playbot_3.from_sog.ply", 31_000, 2),
    ],
)
def test_files_of_other_programs_are_read(name, count, degree):
    found = read_ply(MODELS / name, warn=str)
    assert (len(found), found.sh_degree) == (count, degree)
    assert found.valid.all()
    assert (found.quats.norm(dim=-1) > 0.1).all()


@pytest.mark.parametrize(("kind", "most"), [("uchar", 255), ("ushort", 65535), ("float", 1)])
def test_colors_in_place_of_coefficients(tmp_path, kind, most):
    """As of nerfstudio with colors as rgb."""
    dtype = {"uchar": "u1", "ushort": "<u2", "float": "<f4"}[kind]
    names = ["x", "y", "z", "red", "green", "blue", "opacity", *(f"scale_{i}" for i in range(3))]
    names += [f"rot_{i}" for i in range(4)]
    colors = ("red", "green", "blue")
    table = np.zeros(2, [(name, dtype if name in colors else "<f4") for name in names])
    table["red"], table["blue"], table["rot_0"] = most, [0, most], 1
    lines = ["ply", "format binary_little_endian 1.0", "element vertex 2"]
    lines += [f"property {kind if name in colors else 'float'} {name}" for name in names]
    (tmp_path / "a.ply").write_bytes("\n".join([*lines, "end_header", ""]).encode() + table.tobytes())
    found = read_ply(tmp_path / "a.ply")
    expected = torch.tensor([[1.0, 0, 0], [1, 0, 1]])
    assert found.sh_degree == 0
    torch.testing.assert_close(0.5 + 0.28209479177387814 * found.sh0[:, 0], expected)
