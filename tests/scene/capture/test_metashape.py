"""Cameras that Metashape exports as XML."""

import os
import random

import pytest
import torch

from tests.support.captures import sample_views, write_image
from tests.support.damaged_texts import damaged_texts
from tests.support.metashape_files import (
    camera_xml,
    project,
    sensor_xml,
    world_of,
    write_metashape,
)
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, read_capture
from tsplat.scene.capture.captures import is_capture
from tsplat.scene.capture.lenses import panorama
from tsplat.scene.capture.metashape import _read_lens
from tsplat.scene.capture.undistortion import _distortion_of
from tsplat.scene.capture.xml_tree import DEPTH_MAX, read_xml

COUNT = int(os.environ.get("TSPLAT_CORRUPTIONS", "200"))

DRONE = dict(
    f=3705.47, cx=11.67, cy=-27.75, b1=0.526, b2=-0.0306, k1=-0.0919, k2=-0.0763, k3=0.116, k4=-0.0761, p1=-3e-4,
    p2=1e-4,
)  # fmt: skip
"""The lens of a drone with 5280×3956 pixels."""


@pytest.fixture(scope="module")
def views():
    return sample_views()


@pytest.fixture
def folder(views, tmp_path):
    return write_metashape(tmp_path / "scene", views)


def edited(folder, *changes):
    """Replaces texts in the file of a folder."""
    text = (folder / "cameras.xml").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "cameras.xml").write_text(text)
    return folder


@pytest.mark.parametrize("place", ["folder", "file"])
def test_cameras_are_in_the_world_of_the_chunk(views, folder, place):
    capture = read_capture(folder if place == "folder" else folder / "cameras.xml", test_every=4)
    assert is_capture(folder) and len(capture.train) == 6 and len(capture.test) == 3 and capture.random_points
    found = {view.name: view for view in (*capture.train, *capture.test)}
    for view in views:
        other = found[f"images/{view.name}"]
        torch.testing.assert_close(other.camera.viewmat, view.camera.viewmat, atol=2e-5, rtol=0)
        torch.testing.assert_close(other.camera.K, view.camera.K, atol=1e-4, rtol=0)
        assert torch.equal(other.image, view.image)
    assert capture.notes[-1].endswith("no point cloud beside it; training starts from 20000 random points")


def test_the_world_may_be_a_single_matrix(views, folder):
    start, end = "<transform><rotation", "</scale></transform>"
    text = (folder / "cameras.xml").read_text()
    parts = text[text.index(start) : text.index(end)] + end
    numbers = " ".join(map(repr, world_of().flatten().tolist()))
    capture = read_capture(edited(folder, (parts, f"<transform>{numbers}</transform>")), test_every=0)
    found = {view.name: view for view in capture.train}
    for view in views:
        torch.testing.assert_close(found[f"images/{view.name}"].camera.viewmat, view.camera.viewmat, atol=2e-5, rtol=0)


def test_points_are_those_of_the_only_ply(folder):
    header = (
        "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    )
    (folder / "tie points.ply").write_text(header + "0 0 0\n1 0 0\n0 1 0.5\n")
    capture = read_capture(folder, test_every=0)
    assert capture.points.tolist()[2] == [0, 1, 0.5] and not capture.random_points
    (folder / "other.ply").write_text(header + "0 0 0\n1 0 0\n0 1 0.5\n")
    assert "2 point clouds beside it" in read_capture(folder, test_every=0).notes[-1]


def test_what_is_left_out_is_noted(views, folder):
    names = [view.name.rpartition(".")[0] for view in views]
    text = (folder / "cameras.xml").read_text()
    first = text.index(f'label="C:\\photos\\{names[0]}" enabled="true"')
    text = text[:first] + text[first:].replace('enabled="true"', 'enabled="false"', 1)
    second = text.index('id="1" sensor_id="0" component_id="0"')
    text = text[:second] + text[second:].replace('component_id="0"', 'component_id="5"', 1)
    text = text.replace("</group>", camera_xml(50, "unaligned", None) + "</group>")
    other = '<chunk label="small"><cameras/></chunk></document>'
    (folder / "cameras.xml").write_text(text.replace("</document>", other))
    notes = " ".join(read_capture(folder, test_every=0).notes)
    assert "left out 1 of 10 cameras that have no pose" in notes
    assert "left out 1 of 10 cameras that are disabled" in notes
    assert "left out 1 of 10 cameras that belong to other components" in notes
    assert "read the chunk 'Chunk 1' of 2" in notes


def test_several_sensors_and_a_chunk_far_away(views, tmp_path):
    identity = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    folder = write_metashape(tmp_path / "scene", views, (identity, (0.0, 0.0, 0.0), 1.0))
    far = (-2499366.25, -4256836.5, 4029217.75)
    text = " ".join(map(str, far))
    edited(folder, ('<translation locked="true">0.0 0.0 0.0', f'<translation locked="true">{text}'))
    edited(folder, ('<scale locked="true">1.0', '<scale locked="true">12.5'))
    sensor = sensor_xml(3, views[0].width, views[0].height, dict(f=44.0, cx=1.0, cy=0.0))
    edited(folder, ("</sensors>", sensor + "</sensors>"), ('id="4" sensor_id="0"', 'id="4" sensor_id="3"'))
    capture = read_capture(folder, test_every=0)
    by_name = {view.name: view for view in capture.train}
    other, first = by_name[f"images/{views[4].name}"], by_name[f"images/{views[0].name}"]
    assert other.camera_id != first.camera_id and float(other.camera.K[0, 0]) == 44
    assert any("single precision cannot hold" in note for note in capture.notes)
    back = torch.linalg.inv(capture.world) @ torch.linalg.inv(first.camera.viewmat.double())
    position = torch.linalg.inv(views[0].camera.viewmat.double())[:3, 3]
    expected = 12.5 * position + torch.tensor(far, dtype=torch.float64)
    assert torch.allclose(back[:3, 3], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_lenses_project_as_the_manual_says(tmp_path, seed):
    pytest.importorskip("pycolmap")
    generator = random.Random(seed)
    calibration = {name: value * generator.uniform(0.5, 1) for name, value in DRONE.items()} if seed else DRONE
    calibration = {**calibration, "f": DRONE["f"]} | ({"k3": 0.0, "k4": 0.0} if seed == 3 else {})
    calibration |= {"b2": generator.uniform(-30, 30)} if seed else {}
    (tmp_path / "a.xml").write_text(sensor_xml(0, 5280, 3956, calibration))
    notes = []
    lens = _read_lens(read_xml(tmp_path / "a.xml"), "a.xml", notes)
    assert not notes
    assert bool(lens.skew) == bool(seed)  # that of the drone moves points by less than 0.05 pixels
    grid = torch.rand(500, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    points = torch.cat([grid * torch.tensor([1.4, 1.0]), torch.ones(500, 1, dtype=torch.float64)], 1)
    expected = project(points, calibration, 5280, 3956)
    inside = (expected > 0).all(1) & (expected[:, 0] < 5280) & (expected[:, 1] < 3956)
    found = torch.from_numpy(_distortion_of(lens).sources(points[inside, :2].numpy())[0])
    assert inside.sum() > 300
    assert float((found - expected[inside]).norm(dim=1).max()) < 0.1


@pytest.mark.parametrize(
    ("calibration", "kind", "message"),
    [
        (dict(f=40.0), "cylindrical", "type: expected frame, fisheye or spherical, found 'cylindrical'"),
        (dict(f=40.0), "equisolid_fisheye", "type: expected frame, fisheye or spherical, found 'equisolid_fisheye'"),
        (dict(f=40.0, b2=9.0), "frame", "skew: expected at most 0.1 of the focal length, 40, found 9"),
        (dict(f=40.0, p1=0.1), "fisheye", "p1 and p2 moves points"),
        (dict(f=0.0), "frame", "focal lengths: expected"),
        (dict(f=40.0, k4=1e9), "frame", "k4 has no equivalent|distortion: expected"),
        (dict(f=float("nan")), "frame", "f: expected 1 finite numbers, found 'nan'"),
    ],
)
def test_lenses_that_are_not_implemented(tmp_path, calibration, kind, message):
    (tmp_path / "a.xml").write_text(sensor_xml(0, 40, 30, calibration, kind))
    with pytest.raises((FileError, UnsupportedError), match=message):
        _read_lens(read_xml(tmp_path / "a.xml"), "a.xml", [])


def test_spherical_sensors_need_no_calibration(tmp_path):
    sensor = '<sensor id="0" label="a camera" type="spherical"><resolution width="{}" height="{}"/></sensor>'
    (tmp_path / "a.xml").write_text(sensor.format(80, 40))
    assert _read_lens(read_xml(tmp_path / "a.xml"), "a.xml", []) == panorama(80, 40)
    (tmp_path / "a.xml").write_text(sensor.format(80, "none"))
    with pytest.raises(FileError, match=r"width and height: expected .* found 80×0"):
        _read_lens(read_xml(tmp_path / "a.xml"), "a.xml", [])


@pytest.mark.parametrize("kind", ["fisheye", "equidistant_fisheye"])
def test_fisheye_lenses_are_read(tmp_path, kind):
    (tmp_path / "a.xml").write_text(sensor_xml(0, 40, 30, dict(f=30.0, b2=0.5, k1=0.1, k2=0.01, p1=3e-3), kind))
    notes = []
    lens = _read_lens(read_xml(tmp_path / "a.xml"), "a.xml", notes)
    assert (lens.model, lens.distortion, lens.skew) == ("fisheye", (0.1, 0.01, 0.0, 0.0), 0.5)
    assert notes == ["a.xml: p1 and p2 is ignored, which moves points by up to 0.19 pixels"]


@pytest.mark.parametrize("cameras", ["undistorted", "native"])
def test_photographs_of_lenses_with_skew_are_sheared_back(views, tmp_path, cameras):
    """A gradient along x, whose rows are shifted by the skew."""
    pytest.importorskip("pycolmap")
    folder = write_metashape(tmp_path / "scene", views)
    K, (width, height) = views[0].camera.K, (views[0].width, views[0].height)
    edited(folder, ("<cx>", "<b2>4.0</b2><cx>"))
    x, y = torch.arange(width) + 0.5, torch.arange(height)[:, None] + 0.5
    shift = 4.0 / K[1, 1] * (y - K[1, 2])
    for view in views:
        gradient = (100 + 3 * (x - shift)).round().byte()
        write_image(folder / "images" / view.name, gradient[..., None].expand(-1, -1, 3).contiguous())
    capture = read_capture(folder, test_every=0, cameras=cameras)
    note = "with the lens OPENCV and a skew (first"
    assert any(note in text for text in capture.notes) == (cameras == "native")
    view = capture.train[0]
    found = view.camera.K
    expected = 100 + 3 * ((x - found[0, 2]) / found[0, 0] * K[0, 0] + K[0, 2])
    error = (view.image[..., 0].float() - expected).abs()[:, 1:-1]  # borders are between pixels
    shown = error.new_ones(error.shape, dtype=torch.bool) if view.mask is None else view.mask[:, 1:-1]
    assert view.camera.distortion is None and shown.float().mean() > 0.95
    assert error[shown].max() <= 1.0 and 3 * shift.abs().max() > 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<document", '<!DOCTYPE a [<!ENTITY b SYSTEM "/etc/passwd">]><document', "declares a document type"),
        ("</document>", "", "not a valid XML file"),
        ('sensor_id="0"', 'sensor_id="9"', "sensor_id: expected one of the file's sensors, found '9'"),
        ('enabled="true"', 'enabled="false"', "expected cameras that are enabled and have a transform"),
        ('<scale locked="true">4.0', '<scale locked="true">-4.0', "expected a rotation, a positive scale"),
        ('<scale locked="true">4.0', '<scale locked="true">1 2', "scale: expected 1 finite numbers, found '1 2'"),
        ('<translation locked="true">-3.0', '<translation locked="true">1e99', "expected numbers of at most"),
        ("<transform>", "<transform>7 ", "transform: expected 16 finite numbers"),
        ('label="C:\\photos\\', 'label="..', "no such file|expected labels"),
        ('label="C:\\photos\\', 'label="..\\..\\secret\\..', "no such file|expected labels"),
        ('class="adjusted"><resolution width="40"', 'class="adjusted"><resolution width="x"', "width and height"),
    ],
)
def test_damaged_values_are_errors(folder, old, new, message):
    with pytest.raises(ArgumentError, match=message):
        read_capture(edited(folder, (old, new)))


def test_photographs_outside_of_the_folder_are_not_read(views, folder, tmp_path):
    (folder / "images" / views[0].name).rename(tmp_path / views[0].name)
    name = views[0].name.rpartition(".")[0]
    edited(folder, (f"C:\\photos\\{name}", f"../../{name}.png"))
    notes = " ".join(read_capture(folder, test_every=0).notes)
    assert f"skipped 1 of 9 images whose files are missing (first: {folder / 'images' / name}.png" in notes


def test_deep_files_are_refused(tmp_path):
    (tmp_path / "a.xml").write_text("<a>" * (DEPTH_MAX + 2))
    with pytest.raises(FileError, match="nested at most"):
        read_xml(tmp_path / "a.xml")
    (tmp_path / "a.xml").write_bytes(b'<?xml version="1.0" encoding="nothing"?><a/>')
    with pytest.raises(FileError, match="not a valid XML file"):
        read_xml(tmp_path / "a.xml")


def test_damaged_files_are_read_or_refused(folder):
    content = (folder / "cameras.xml").read_bytes()
    n_refused = 0
    for damaged in damaged_texts(content, COUNT // 4, (b"<", b"9" * 30, b"e308", b"-", b"\x00", b"nan", b"&a;")):
        (folder / "cameras.xml").write_bytes(damaged)
        try:
            capture = read_capture(folder, test_every=0)
            assert all(view.camera.viewmat.isfinite().all() for view in capture.train)
        except ArgumentError:
            n_refused += 1
    assert n_refused > COUNT // 20


def test_documents_without_a_component(views, tmp_path):
    folder = write_metashape(tmp_path / "scene", views, version="1.4.0")
    text = (folder / "cameras.xml").read_text()
    start, end = text.index("<components"), text.index("</components>") + len("</components>")
    transform = text[text.index("<transform><rotation") : text.index("</component>")]
    moved = text[:start] + text[end:].replace("</chunk>", transform + "</chunk>")
    (folder / "cameras.xml").write_text(moved.replace(' component_id="0"', ""))
    found = {view.name: view for view in read_capture(folder, test_every=0).train}
    for view in views:
        camera = found[f"images/{view.name}"].camera
        torch.testing.assert_close(camera.viewmat, view.camera.viewmat, atol=2e-5, rtol=0)
