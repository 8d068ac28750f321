"""PLY files, checked against records packed by hand."""

import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, Gaussians, read_ply, write_ply

MODELS = Path(__file__).parents[2] / "shared/data/models"

REST = [f"f_rest_{i}" for i in range(45)]
GEOMETRY = ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
INRIA = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *REST, *GEOMETRY]


def ply(
    names, rows, *, count=None, types=None, newline="\n", head=("ply", "format binary_little_endian 1.0"), tail=b""
):
    """A PLY of rows, each a dictionary by property name."""
    types = types or {}
    lines = [*head, "comment made by hand", f"element vertex {len(rows) if count is None else count}"]
    lines += [f"property {types.get(name, 'float')} {name}" for name in names] + ["end_header", ""]
    codes = "".join({"float": "f", "double": "d", "uchar": "B"}[types.get(name, "float")] for name in names)
    return (
        newline.join(lines).encode() + b"".join(struct.pack("<" + codes, *(r[n] for n in names)) for r in rows) + tail
    )


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
        (ply(INRIA, [], count=2**60), FileError, "1152921504606846976 vertices"),
        (ply(INRIA, [], count=10**40), FileError, "not understood"),
        (ply(INRIA, [], count=-1), FileError, "not understood"),
        (GOOD.replace(b"binary_little_endian", b"binary_big_endian"), UnsupportedError, "binary_big_endian"),
        (GOOD.replace(b"binary_little_endian", b"ascii"), UnsupportedError, "ascii"),
        (GOOD.replace(b"element vertex", b"element face"), FileError, "vertex"),
        (GOOD.replace(b"property float x\n", b"property float a\n"), FileError, "lack x"),
        (GOOD.replace(b"property float y\n", b"property float x\n"), FileError, "one name"),
        (GOOD.replace(b"property float x\n", b"property list uchar float x\n"), FileError, "list"),
        (GOOD.replace(b"property float x\n", b"property quaternion x\n"), FileError, "not understood"),
        (ply([n for n in INRIA if n != "f_rest_44"], []), FileError, "found 44"),
        (ply([n.replace("f_rest_44", "f_rest_45") for n in INRIA], []), FileError, "f_rest_0"),
        (ply(["packed_position"], []), UnsupportedError, "compressed"),
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
