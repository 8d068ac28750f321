"""Tests of point clouds in PLY files."""

import numpy as np
import pytest
import torch

from tsplat.scene import FileError
from tsplat.scene.formats.point_clouds import read_point_cloud

ASCII = "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
ASCII += "property uint8 red\nproperty uint8 green\nproperty uint8 blue\nend_header\n"
ASCII += "1 2 3 255 0 51\n4 5 6 0 255 0\n-1e0 -2 -3.5 0 0 255\n"


def binary(order, position_type, color_type):
    """The points of ASCII in a binary encoding, followed by an element with a list property."""
    vertices = [((1, 2, 3), (255, 0, 51)), ((4, 5, 6), (0, 255, 0)), ((-1, -2, -3.5), (0, 0, 255))]
    header = f"ply\nformat binary_{'little' if order == '<' else 'big'}_endian 1.0\nelement vertex 3\n"
    header += "".join(f"property {position_type} {name}\n" for name in ("x", "y", "z"))
    header += "".join(f"property {color_type} {name}\n" for name in ("red", "green", "blue"))
    header += "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    positions = np.array([position for position, _ in vertices], f"{order}f{8 if position_type == 'double' else 4}")
    colors = np.array([color for _, color in vertices])
    colors = (colors / 255).astype(f"{order}f4") if color_type == "float" else colors.astype("u1")
    body = b"".join(position.tobytes() + color.tobytes() for position, color in zip(positions, colors))
    return header.encode() + body + b"\3abc"


@pytest.mark.parametrize(
    "content",
    [ASCII.encode(), binary("<", "float", "uchar"), binary(">", "double", "uchar"), binary("<", "double", "float")],
    ids=["ascii", "little", "big", "float colors"],
)
def test_every_encoding_is_read(tmp_path, content):
    (tmp_path / "a.ply").write_bytes(content)
    points, colors = read_point_cloud(tmp_path / "a.ply")
    assert points.tolist() == [[1, 2, 3], [4, 5, 6], [-1, -2, -3.5]]
    torch.testing.assert_close(colors, torch.tensor([[1, 0, 0.2], [0, 1, 0], [0, 0, 1]]))


def test_points_without_colors_are_gray_and_invalid_points_are_dropped(tmp_path):
    content = ASCII.replace("4 5 6 0", "4 nan 6 0").replace("uint8 red", "uint8 r")
    (tmp_path / "a.ply").write_text(content)
    notes = []
    points, colors = read_point_cloud(tmp_path / "a.ply", warn=notes.append)
    assert notes == [f"{tmp_path / 'a.ply'}: skipped 1 of 3 points whose position is not finite"]
    assert points.tolist() == [[1, 2, 3], [-1, -2, -3.5]]
    assert colors.tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"hello", "not a PLY"),
        (ASCII[:-21].encode(), "cut short"),
        (ASCII.replace("4 5 6 0", "4 five 6 0").encode(), "expected 6 numbers"),
        (ASCII.replace("4 5 6 0", "4 5").encode(), "expected 6 numbers"),
        (binary("<", "float", "uchar")[:-24], "cut short"),
        (ASCII.replace("float z", "float w").encode(), "x, y and z"),
        (ASCII.replace("ascii", "morse").encode(), "morse"),
        (ASCII.replace("vertex 3", "vertex 1").encode(), "two points"),
        (ASCII.replace("vertex 3", f"vertex {10**17}").encode(), "cut short"),
        (ASCII.replace("end_header", "").encode(), "header"),
    ],
)
def test_invalid_file_is_rejected(tmp_path, content, words):
    if content is not None:
        (tmp_path / "points.ply").write_bytes(content)
    with pytest.raises(FileError, match=rf"points\.ply: .*{words}"):
        read_point_cloud(tmp_path / "points.ply")


def test_large_clouds_are_thinned(tmp_path, monkeypatch):
    """One of every three, also across the blocks in which the file is read."""
    monkeypatch.setattr("tsplat.scene.formats.point_clouds.POINTS_MAX", 40)
    monkeypatch.setattr("tsplat.scene.formats.ply_file.BLOCK_BYTES", 7 * 12)
    header = "ply\nformat binary_little_endian 1.0\nelement vertex 100\n"
    header += "".join(f"property float {name}\n" for name in "xyz") + "end_header\n"
    values = np.arange(300, dtype="<f4").reshape(100, 3)
    (tmp_path / "a.ply").write_bytes(header.encode() + values.tobytes())
    notes = []
    points, _ = read_point_cloud(tmp_path / "a.ply", warn=notes.append)
    assert points.tolist() == values[::3].tolist()
    assert "read one of every 3 of 100 points, as more than 40 are not kept" in notes[0]
