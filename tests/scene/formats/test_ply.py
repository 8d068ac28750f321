"""PLY files, checked against records packed by hand."""

import math
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import MODELS
from tests.tools.corruption import packed_ply
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, Gaussians, read_ply, write_ply

REST = [f"f_rest_{i}" for i in range(45)]
GEOMETRY = ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
INRIA = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *REST, *GEOMETRY]


def ply(names, rows, *, count=None, types=None, newline="\n", encoding="binary_little_endian", comments=(), tail=b""):
    """A PLY of rows, each a dictionary by property name."""
    types = types or {}
    lines = ["ply", f"format {encoding} 1.0", *(f"comment {words}" for words in ("made by hand", *comments))]
    lines += [f"element vertex {len(rows) if count is None else count}"]
    lines += [f"property {types.get(name, 'float')} {name}" for name in names] + ["end_header", ""]
    codes = "".join({"float": "f", "double": "d", "uchar": "B"}[types.get(name, "float")] for name in names)
    values = [[row[name] for name in names] for row in rows]
    if encoding == "ascii":
        body = "".join(" ".join(map(repr, row)) + newline for row in values).encode()
    else:
        order = ">" if "big" in encoding else "<"
        body = b"".join(struct.pack(order + codes, *row) for row in values)
    return newline.join(lines).encode() + body + tail


def rows_of(names, n=3):
    return [{name: float(i + 100 * row) for i, name in enumerate(names)} for row in range(n)]


def gaussians_of(degree, n=4):
    generator = torch.Generator().manual_seed(degree)

    def draw(*size):
        return torch.randn(n, *size, generator=generator)

    return Gaussians(draw(3), draw(3), draw(4), draw(), draw(1, 3), draw((degree + 1) ** 2 - 1, 3))


def names_of(degree, normals=True):
    kept = REST[: 3 * ((degree + 1) ** 2 - 1)]
    return [n for n in INRIA if (n not in REST or n in kept) and (normals or n not in ("nx", "ny", "nz"))]


@pytest.mark.parametrize("normals", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_every_value_goes_where_the_layout_says(tmp_path, degree, normals):
    names = names_of(degree, normals)
    rows = rows_of(names)
    (tmp_path / "a.ply").write_bytes(ply(names, rows))
    found = read_ply(tmp_path / "a.ply")
    assert found.sh_degree == degree
    per_channel = (degree + 1) ** 2 - 1
    for i, row in enumerate(rows):
        assert found.means[i].tolist() == [row["x"], row["y"], row["z"]]
        assert found.log_scales[i].tolist() == [row["scale_0"], row["scale_1"], row["scale_2"]]
        assert found.quats[i].tolist() == [row[f"rot_{k}"] for k in range(4)]
        assert float(found.opacity_logits[i]) == row["opacity"]
        assert found.sh0[i, 0].tolist() == [row[f"f_dc_{k}"] for k in range(3)]
        for k in range(per_channel):
            assert found.shN[i, k].tolist() == [row[f"f_rest_{channel * per_channel + k}"] for channel in range(3)]


def test_what_is_written_are_62_floats_in_inrias_order(tmp_path):
    gaussians = gaussians_of(1, n=2)
    write_ply(tmp_path / "a.ply", gaussians)
    header, _, body = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    assert [line.split()[-1] for line in header.decode().splitlines() if line.startswith("property float")] == INRIA
    assert len(body) == 2 * 62 * 4
    record = dict(zip(INRIA, struct.unpack("<62f", body[62 * 4 :])))
    assert [record["x"], record["y"], record["z"]] == gaussians.means[1].tolist()
    assert record["nx"] == record["ny"] == record["nz"] == 0
    assert record["f_rest_1"] == float(gaussians.shN[1, 1, 0])  # red, second coefficient
    assert record["f_rest_15"] == float(gaussians.shN[1, 0, 1])  # green, first coefficient
    assert record["f_rest_3"] == 0  # degree 2 is not there


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_written_and_read_again_is_the_same_to_the_bit(tmp_path, degree):
    gaussians = gaussians_of(degree)
    write_ply(tmp_path / "a.ply", gaussians)
    found = read_ply(tmp_path / "a.ply")
    assert found.sh_degree == 3
    for name, tensor in gaussians.tensors().items():
        again = found.tensors()[name]
        assert torch.equal(again[:, : tensor.shape[1]] if name == "shN" else again, tensor)
    assert not found.shN[:, gaussians.shN.shape[1] :].any()


def test_any_order_type_and_company_of_properties(tmp_path):
    names = [*reversed(names_of(1)), "red"]
    types = {"x": "double", "red": "uchar"}
    rows = [{**row, "red": 7} for row in rows_of(names_of(1))]
    (tmp_path / "a.ply").write_bytes(ply(names, rows, types=types, newline="\r\n", tail=b"and 14,029 bytes more"))
    (tmp_path / "b.ply").write_bytes(ply(names_of(1), rows))
    for a, b in zip(*(read_ply(tmp_path / name).tensors().values() for name in ("a.ply", "b.ply"))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("encoding", ["ascii", "binary_big_endian"])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_every_encoding_says_the_same(tmp_path, encoding, degree):
    names = [*names_of(degree), "red"]
    rows = [{**row, "x": 0.1 + i, "y": -1e-30, "red": 7} for i, row in enumerate(rows_of(names))]
    types = {"y": "double", "red": "uchar"}
    (tmp_path / "a.ply").write_bytes(ply(names, rows, types=types, encoding=encoding, tail=b"\nand more"))
    (tmp_path / "b.ply").write_bytes(ply(names, rows, types=types))
    for a, b in zip(*(read_ply(tmp_path / name).tensors().values() for name in ("a.ply", "b.ply"))):
        assert torch.equal(a, b)


def test_text_with_other_elements_empty_lines_and_words_for_numbers(tmp_path):
    names = names_of(0)
    content = ply(names, rows_of(names, 2), encoding="ascii", newline="\r\n")
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
        (b"1 " * 13 + b"\n" + b"1 " * 14, "record 0 .*not 14 numbers"),
        (b"1 " * 14 + b"\n" + b"1 " * 13 + b"one", "record 1 .*not 14 numbers"),
        (b"1 " * 14 + b"\n" + b"1 " * 15, "record 1 .*not 14 numbers"),
        (b"1 " * 14 + b"\n" + b" " * 60, "ends within element 'vertex'"),
        (b"1 " * 14 + b"\n1", "cut short"),
        (b" " * (2 << 20), "over 1048576 bytes"),
    ],
)
def test_text_that_is_no_table_is_said_in_words(tmp_path, body, words):
    header = ply(names_of(0, normals=False), [], count=2, encoding="ascii")
    (tmp_path / "a.ply").write_bytes(header + body)
    with pytest.raises(FileError, match=words):
        read_ply(tmp_path / "a.ply")


def test_absurd_counts_of_nothing_do_not_take_forever(tmp_path):
    names = names_of(0)
    text = ply(names, rows_of(names), encoding="ascii")
    content = text.replace(b"element v", b"element a " + b"9" * 31 + b"\nelement v")
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(FileError, match="bytes follow"):
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
        (["not SplatRenderMode: mip"], False),
    ],
)
def test_antialiased_gaussians_are_marked_by_a_comment(tmp_path, comments, antialiased):
    names = names_of(0)
    (tmp_path / "a.ply").write_bytes(ply(names, rows_of(names), comments=comments))
    found = read_ply(tmp_path / "a.ply")
    assert found.antialiased is antialiased
    write_ply(tmp_path / "b.ply", found)
    assert (b"comment SplatRenderMode: mip\n" in (tmp_path / "b.ply").read_bytes()) is antialiased
    assert read_ply(tmp_path / "b.ply").antialiased is antialiased


@pytest.mark.parametrize("colors", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_a_compressed_ply_against_arithmetic_by_hand(tmp_path, degree, colors):
    content = packed_ply(np.random.default_rng(0), 300, degree, colors)
    (tmp_path / "a.ply").write_bytes(content.replace(b"\nelement", b"\ncomment SplatRenderMode: mip\nelement", 1))
    found = read_ply(tmp_path / "a.ply")
    assert (len(found), found.sh_degree, found.antialiased) == (300, degree, True)
    body = content.partition(b"end_header\n")[2]
    width = 18 if colors else 12
    i = 260  # in the second chunk
    bounds = struct.unpack_from(f"<{width}f", body, width * 4)
    position, rotation, scale, color = struct.unpack_from("<4I", body, 2 * width * 4 + 16 * i)

    def between(word, axis, first):
        part = [(word >> 21) / 2047, (word >> 11 & 1023) / 1023, (word & 2047) / 2047][axis]
        low, high = bounds[2 * (first + axis)], bounds[2 * (first + axis) + 1]
        return low + (high - low) * part

    assert found.means[i].tolist() == pytest.approx([between(position, axis, 0) for axis in range(3)], rel=1e-5)
    assert found.log_scales[i].tolist() == pytest.approx([between(scale, axis, 3) for axis in range(3)], rel=1e-5)
    others = [((rotation >> shift & 1023) / 1023 - 0.5) * math.sqrt(2) for shift in (20, 10, 0)]
    largest = rotation >> 30
    quat = found.quats[i].tolist()
    assert quat[largest] == pytest.approx(math.sqrt(max(1 - sum(x * x for x in others), 0)), abs=1e-6)
    assert quat[:largest] + quat[largest + 1 :] == pytest.approx(others, abs=1e-6)
    assert float(found.opacities[i]) == pytest.approx((color & 255) / 255, abs=2e-6)
    channels = [(color >> shift & 255) / 255 for shift in (24, 16, 8)]
    if colors:
        channels = [bounds[12 + 2 * c] + (bounds[13 + 2 * c] - bounds[12 + 2 * c]) * x for c, x in enumerate(channels)]
    shown = 0.5 + 0.28209479177387814 * found.sh0[i, 0]
    assert shown.tolist() == pytest.approx(channels, abs=1e-5)
    size = (degree + 1) ** 2 - 1
    rest = body[2 * width * 4 + 16 * 300 :][3 * size * i :][: 3 * size]
    for k in range(size):
        for channel in range(3):
            byte = rest[channel * size + k]
            assert float(found.shN[i, k, channel]) == pytest.approx(byte / 32 - 4, abs=1 / 32 + 1e-6)


def test_a_compressed_ply_whose_chunks_do_not_go_with_it(tmp_path):
    content = packed_ply(np.random.default_rng(0), 300, 0)
    for old, new, words in [
        (b"element vertex 300", b"element vertex 200", "2 chunks of 256 for 200"),
        (b"element chunk", b"element chank", "element 'chunk' lacks min_x"),
        (b"max_scale_z", b"max_scale_w", "lacks max_scale_z"),
        (b"end_header", b"element sh 300\nproperty uchar f_rest_0\nend_header", "'sh' has 1 properties"),
    ]:
        (tmp_path / "a.ply").write_bytes(content.replace(old, new))
        with pytest.raises(FileError, match=words):
            read_ply(tmp_path / "a.ply")


def test_elements_before_and_after_the_vertices_are_passed_over(tmp_path):
    names = names_of(0)
    plain = ply(names, rows_of(names))
    header, mark, body = plain.partition(b"end_header\n")
    before = header.replace(b"element vertex", b"element chunk 2\nproperty short a\nelement vertex")
    after = b"element face 1\nproperty list uchar int vertex_indices\n"
    (tmp_path / "a.ply").write_bytes(before + after + mark + b"\1\2\3\4" + body + b"\0")
    (tmp_path / "b.ply").write_bytes(plain)
    assert torch.equal(read_ply(tmp_path / "a.ply").means, read_ply(tmp_path / "b.ply").means)


GOOD = ply(INRIA, rows_of(INRIA))


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", FileError, "not a PLY"),
        (b"\x89PNG\r\n\x1a\n", FileError, "not a PLY"),
        (GOOD[:200], FileError, "end_header"),
        (b"ply\n" + b"comment and so on\n" * 100_000, FileError, "end_header"),
        (b"ply\n" + b"x" * 2_000_000, FileError, "end_header"),
        (GOOD[:-1], FileError, "743 bytes follow"),
        (ply(INRIA, [], count=2**60), FileError, "1152921504606846976 records"),
        (ply(INRIA, [], count=10**40), FileError, "not understood"),
        (ply(INRIA, [], count=-1), FileError, "not understood"),
        (GOOD.replace(b"binary_little_endian", b"binary_pdp_endian"), UnsupportedError, "binary_pdp_endian"),
        (GOOD.replace(b"binary_little_endian", b"ascii"), FileError, "record 0 of 'vertex' is not 62 numbers"),
        (GOOD.replace(b"property float scale_2\n", b""), UnsupportedError, "2DGS"),
        (ply(INRIA, [], comments=["SplatRenderMode: 2dgs"]), UnsupportedError, "2DGS"),
        (GOOD.replace(b"end_header", b"element vertex 3\nend_header"), FileError, "twice"),
        (GOOD.replace(b"element vertex", b"element face"), FileError, "vertex"),
        (GOOD.replace(b"property float x\n", b"property float a\n"), FileError, "lack x"),
        (GOOD.replace(b"property float nx\n", b"property float x\n"), FileError, "one name"),
        (GOOD.replace(b"property float x\n", b"property list uchar float x\n"), FileError, "list"),
        (GOOD.replace(b"property float x\n", b"property quaternion x\n"), FileError, "not understood"),
        (ply([n for n in INRIA if n != "f_rest_44"], []), FileError, "found 44"),
        (ply([n.replace("f_rest_44", "f_rest_45") for n in INRIA], []), FileError, "f_rest_0"),
        (ply(["packed_position"], []), FileError, "compressed.*lacks packed_rotation"),
    ],
)
def test_what_is_not_a_ply_of_gaussians_is_said_in_words(tmp_path, content, error, words):
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(error, match=words) as caught:
        read_ply(tmp_path / "a.ply")
    assert "a.ply" in str(caught.value)


@given(st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.ply"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = read_ply(path)
    except (ArgumentError, UnsupportedError):
        return
    assert len(found) * 14 * 4 <= len(content)


def test_nothing_is_left_of_a_file_that_cannot_be_finished(tmp_path, monkeypatch):
    (tmp_path / "a.ply").write_bytes(b"what was there")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_ply(tmp_path / "a.ply", gaussians_of(0))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.ply", b"what was there")]


def test_degree_four_has_no_place(tmp_path):
    with pytest.raises(UnsupportedError, match="sh_degree"):
        write_ply(tmp_path / "a.ply", gaussians_of(4))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not beside this checkout")
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
def test_files_of_other_programs(name, count, degree):
    found = read_ply(MODELS / name)
    assert (len(found), found.sh_degree) == (count, degree)
    assert found.sound.all()
    assert (found.quats.norm(dim=-1) > 0.1).all()
