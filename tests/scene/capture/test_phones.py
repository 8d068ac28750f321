"""Captures of Polycam and Record3D: cameras, borders, points of depth, what is missing and damaged."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
import torch

from tests.support.captures import sample_views
from tests.support.phone_files import write_polycam, write_record3d
from tsplat.errors import ArgumentError, FileError, UnsupportedError
from tsplat.scene import read_capture
from tsplat.scene.capture.captures import is_capture
from tsplat.scene.capture.procedural import distance

WRITERS = {"polycam": write_polycam, "record3d": write_record3d}


def all_views(capture):
    return sorted((*capture.train, *capture.test), key=lambda view: view.files[0])


@pytest.fixture(scope="module")
def views():
    return sample_views()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("polycam", {}),
        ("polycam", dict(corrected=False)),
        ("record3d", {}),
        ("record3d", dict(per_frame=False)),
    ],
)
def test_cameras_are_those_of_the_photographs(tmp_path, views, kind, options):
    folder = WRITERS[kind](tmp_path / "a", views, **options)
    assert is_capture(folder)
    found = all_views(read_capture(folder, frame="model"))
    assert len(found) == len(views)
    for one, other in zip(found, views):
        torch.testing.assert_close(one.camera.viewmat, other.camera.viewmat, rtol=0, atol=2e-6)
        torch.testing.assert_close(one.camera.K, other.camera.K, rtol=0, atol=1e-5)
        assert (one.image.float() - other.image.float()).abs().mean() < 6  # JPEG
        has_border = kind == "polycam" and options.get("corrected", True)
        assert (one.mask is not None) == has_border
        if has_border:  # 15 of 1,024 pixels
            assert not one.mask[0].any() and not one.mask[:, -1].any() and one.mask[1:-1, 1:-1].all()


def test_metadata_may_be_named_and_nested(tmp_path, views):
    folder = write_record3d(tmp_path / "b" / "EXR_RGBD", views)
    assert len(all_views(read_capture(tmp_path / "b"))) == 9
    (folder / "metadata.json").rename(folder / "metadata")
    (folder / "rgb").rename(folder / "rgbd")
    assert len(all_views(read_capture(folder))) == 9
    assert len(all_views(read_capture(folder / "metadata"))) == 9
    (tmp_path / "c.r3d").write_bytes(b"PK")
    with pytest.raises(FileError, match=r"c\.r3d: a recording of Record3D; export it in the app as EXR \+ JPG"):
        read_capture(tmp_path / "c.r3d")


@pytest.mark.parametrize("kind", ["polycam", "record3d"])
def test_points_of_depth_are_on_the_surface(tmp_path, views, kind):
    if kind == "record3d":
        pytest.importorskip("OpenEXR")
    capture = read_capture(WRITERS[kind](tmp_path / "a", views, depth=True))
    assert not capture.random_points and len(capture.points) > 1000
    away = distance(capture.points.T.contiguous()).abs()
    assert away.median() < 0.02 and away.quantile(0.9) < 0.15  # a pixel is 0.08 wide; the table is 3.5
    assert any(f"starts from {len(capture.points):,} points of the depth of 9" in note for note in capture.notes)
    again = read_capture(tmp_path / "a")
    assert torch.equal(again.points, capture.points) and torch.equal(again.colors, capture.colors)
    assert capture.colors.std(0).min() > 0.05


def test_depth_without_confidence_is_not_used(tmp_path, views):
    folder = write_polycam(tmp_path / "a", views)
    from PIL import Image

    for path in (folder / "keyframes" / "confidence").iterdir():
        Image.fromarray(np.full_like(np.array(Image.open(path)), 127)).save(path)
    capture = read_capture(folder)
    assert capture.random_points and any("training starts from 20000 random points" in n for n in capture.notes)


def test_photographs_without_a_camera_or_a_pose_are_left_out(tmp_path, views):
    folder = write_polycam(tmp_path / "a", views)
    first = next((folder / "keyframes" / "corrected_cameras").iterdir())
    first.unlink()
    assert len(all_views(read_capture(folder))) == 8
    folder = write_record3d(tmp_path / "b", views)
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(metadata | {"poses": metadata["poses"][:7]}))
    capture = read_capture(folder)
    assert len(all_views(capture)) == 7 and any("left out 2 photographs without a pose" in n for n in capture.notes)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("polycam", {"fx": "x"}, r"\.json: fx: expected a finite number, found 'x'"),
        ("polycam", {"t_12": None}, r"\.json: t_12: expected a finite number"),
        ("polycam", {"t_00": 5.0}, "expected a rotation as its 3×3 part"),
        ("polycam", {"width": 0}, r"\.json"),
        ("record3d", {"poses": []}, "poses: expected a list of poses"),
        ("record3d", {"poses": [[0, 0, 0, 1, 0, 0]] * 9}, r"poses\[0\]: expected 7 finite numbers"),
        ("record3d", {"poses": [[0, 0, 0, 3, 0, 0, 0]] * 9}, "expected a unit quaternion"),
        ("record3d", {"K": [1, 2]}, "K: expected 9 finite numbers"),
        ("record3d", {"w": "wide"}, "w: expected a finite number"),
        ("record3d", {"perFrameIntrinsicCoeffs": [[1, 2]] * 9}, r"Coeffs\[0\]: expected 4 finite numbers"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, views, kind, values, words):
    with pytest.raises((FileError, UnsupportedError, ArgumentError), match=words):
        read_capture(WRITERS[kind](tmp_path / "a", views[:9], **values))


def test_maps_that_are_no_maps_are_errors(tmp_path, views):
    folder = write_polycam(tmp_path / "a", views[:4])
    first = next((folder / "keyframes" / "depth").iterdir())
    for content in (b"\x89PNG", (folder / "keyframes" / "corrected_images" / f"{first.stem}.jpg").read_bytes()):
        first.write_bytes(content)
        with pytest.raises(FileError, match=r"depth/.*\.png: "):
            read_capture(folder)


def test_lengths_in_a_map_of_depth_allocate_no_more_than_its_file(tmp_path, views):
    folder = write_polycam(tmp_path / "a", views[:4])
    depth = next((folder / "keyframes" / "depth").iterdir())
    content = bytearray(depth.read_bytes())
    start = content.index(b"IDAT")
    struct.pack_into(">I", content, start - 4, 2**31 - 1)
    content[start + 20 :] = content[start + 40 :]
    depth.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"depth/.*\.png: "):
            read_capture(folder)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
