"""Point clouds of scanners, LAS, LAZ and E57: positions, colors, poses of scans, thinning, damage."""

import math
import struct

import numpy as np
import pytest
import torch

from tests.support.captures import write_scene
from tests.support.scan_clouds import COLORS, POINTS, write_e57, write_las
from tsplat.errors import MissingExtraError
from tsplat.scene import FileError, read_capture, replace_points
from tsplat.scene.formats.point_clouds import read_point_cloud


@pytest.mark.parametrize("name", ["a.las", "a.laz", "a.e57"])
def test_positions_are_doubles_and_colors_are_scaled(tmp_path, name):
    if name == "a.e57":  # pye57 writes floats, relative to the pose of the scan
        origin = np.floor(POINTS.min(0))
        path = write_e57(tmp_path / name, POINTS - origin, rotation=np.array([1.0, 0, 0, 0]), translation=origin)
    else:
        path = write_las(tmp_path / name)
    points, colors = read_point_cloud(path)
    torch.testing.assert_close(points, torch.from_numpy(POINTS), rtol=0, atol=1e-9)
    torch.testing.assert_close(colors, torch.from_numpy(COLORS / 65535).float(), rtol=0, atol=1e-6)


def test_colors_of_las_may_have_8_bits_or_be_missing(tmp_path):
    colors = read_point_cloud(write_las(tmp_path / "a.las", colors=COLORS // 257))[1]
    torch.testing.assert_close(colors, torch.from_numpy(COLORS / 65535).float(), rtol=0, atol=1e-6)
    gray = [write_las(tmp_path / "b.las", colors=None, point_format=0), write_e57(tmp_path / "b.e57", colors=None)]
    for path in gray:
        assert (read_point_cloud(path)[1] == 0.5).all()
    assert len(read_point_cloud(write_las(tmp_path / "c.las", version="1.4", point_format=7))[0]) == 3


def test_scans_of_e57_have_poses(tmp_path):
    half = math.sqrt(0.5)
    local = POINTS - POINTS.round()
    pose = dict(rotation=np.array([half, 0, 0, half]), translation=np.array([448211.0, 5411840.0, 304.0]))
    x, y, z = local.T
    expected = np.stack([448211 - y, 5411840 + x, 304 + z], 1)  # a quarter turn about z
    found = read_point_cloud(write_e57(tmp_path / "a.e57", local, **pose))[0]
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["a.las", "a.e57"])
def test_large_clouds_are_thinned_across_blocks(tmp_path, monkeypatch, name):
    monkeypatch.setattr("tsplat.scene.formats.point_clouds.POINTS_MAX", 40)
    monkeypatch.setattr("tsplat.scene.formats.scan_files.BLOCK", 7)
    values = np.arange(300.0).reshape(100, 3)
    path = (write_e57 if name.endswith("e57") else write_las)(
        tmp_path / name, values, None if name == "a.e57" else values
    )
    notes = []
    points, _ = read_point_cloud(path, warn=notes.append)
    assert points.tolist() == values[::3].tolist()
    assert "read one of every 3 of 100 points" in notes[0]


@pytest.mark.parametrize("name", ["a.las", "a.laz", "a.e57"])
def test_damaged_files_are_errors(tmp_path, name):
    content = (write_e57 if name.endswith("e57") else write_las)(tmp_path / name).read_bytes()
    for damaged in (b"", b"hello", content[:50], content[: len(content) - 30]):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(FileError, match=rf"{name}: "):
            read_point_cloud(tmp_path / name)
    (tmp_path / name).unlink()
    with pytest.raises(FileError, match=rf"{name}: No such file"):
        read_point_cloud(tmp_path / name)


def write_laz(path, version, point_format, n=60_000):
    """A LAZ of two chunks, and where its points start."""
    generator = np.random.default_rng(0)
    points, colors = generator.normal(size=(n, 3)), generator.integers(0, 65536, (n, 3))
    content = bytearray(write_las(path, points, colors, version, point_format).read_bytes())
    return content, struct.unpack_from("<I", content, 96)[0]


def chunk_size(content, start):
    return bytes(content).index(b"laszip encoded") - 2 + 54 + 12  # of its record


CHANGES = {
    "a chunk of 4 billion points": lambda content, start: (chunk_size(content, start), "<I", 2**32 - 2),
    "chunks without points": lambda content, start: (chunk_size(content, start), "<I", 0),
    "a table after the end": lambda content, start: (start, "<q", len(content)),
    "a table before the points": lambda content, start: (start, "<q", -5),
    "4 billion chunks": lambda content, start: (struct.unpack_from("<q", content, start)[0] + 4, "<I", 2**32 - 1),
    "no chunks": lambda content, start: (struct.unpack_from("<q", content, start)[0] + 4, "<I", 0),
    "layers of 4 GB": lambda content, start: (start + 8 + 36 + 8, "<I", 2**32 - 1),
    "records of any size behind the points": lambda content, start: (243, "<I", 7),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("version", "point_format"), [("1.2", 2), ("1.4", 7)])
def test_what_a_laz_announces_is_checked_before_it_is_allocated(tmp_path, version, point_format, change):
    """lazrs ends the process where it cannot allocate, and laspy reads as much as a record says."""
    if version == "1.2" and change in ("layers of 4 GB", "records of any size behind the points"):
        pytest.skip("only in LAS 1.4")
    path = tmp_path / "a.laz"
    content, start = write_laz(path, version, point_format)
    offset, layout, value = CHANGES[change](content, start)
    struct.pack_into(layout, content, offset, value)
    path.write_bytes(content)
    if change.startswith("records"):  # which nobody needs
        assert len(read_point_cloud(path)[0]) == 60_000
        return
    with pytest.raises(FileError, match=r"a\.laz: "):
        read_point_cloud(path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pye57", None)
    (tmp_path / "a.e57").write_bytes(b"ASTM-E57")
    with pytest.raises(MissingExtraError, match=r"tsplat\[points\]"):
        read_point_cloud(tmp_path / "a.e57")


def test_a_capture_starts_from_points_of_a_survey(tmp_path):
    scene = write_scene(tmp_path / "scene")
    own = read_capture(scene, frame="model")
    cloud = write_las(tmp_path / "survey.laz", np.array([[0.25, 0.5, 3.0], [1.0, -0.5, 2.0], [2.0, 0.0, 4.0]]))
    found = replace_points(own, cloud)
    torch.testing.assert_close(found.points, torch.tensor([[0.25, 0.5, 3.0], [1.0, -0.5, 2.0], [2.0, 0.0, 4.0]]))
    assert len(own.points) == 5 and [v.name for v in own.train] == [v.name for v in found.train]
    write_las(scene / "points3D.las", POINTS)
    (scene / "sparse" / "0" / "points3D.txt").write_text("")
    beside = read_capture(scene, frame="local", test_every=0)
    assert len(beside.points) == 3 and "training starts from the points3D.las" in beside.notes[-1]
