"""Cameras that RealityCapture and RealityScan export as tables."""

import dataclasses
import math
import os
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.captures import changed, sample_views
from tests.support.damaged_texts import damaged_texts
from tests.support.realitycapture_files import (
    LENS,
    OPENCV,
    REALITYCAPTURE,
    REALITYSCAN,
    angles_of,
    project,
    row,
    write_realitycapture,
)
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, intrinsics, look_at, read_capture
from tsplat.scene.capture.captures import is_capture
from tsplat.scene.capture.realitycapture import _read_lens, _read_pose, rotation_of
from tsplat.scene.capture.undistortion import Undistortion

COUNT = int(os.environ.get("TSPLAT_CORRUPTIONS", "200"))

BROWN4 = dict(k1=-0.0919, k2=-0.0763, k3=0.116, k4=-0.0761, t1=-3e-4, t2=1e-4)
HEADERS = (REALITYCAPTURE, REALITYSCAN, OPENCV)


@pytest.fixture(scope="module")
def views():
    return sample_views()


@pytest.fixture
def folder(views, tmp_path):
    return write_realitycapture(tmp_path / "scene", views)


def edited(folder, *changes):
    """Replaces texts in the file of a folder."""
    text = (folder / "cameras.csv").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "cameras.csv").write_text(text)
    return folder


def numbers(line, header):
    """The numbers of a line by the names that the reader has for columns."""
    names = [name.lower() for name in header.partition(" (")[0].split(",")[1:]]
    short = {"yaw": "heading", "f_35mm": "f", "px_norm": "px", "py_norm": "py"}
    return {short.get(name, name): float(word) for name, word in zip(names, line.split(",")[1:], strict=True)}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("images", ["images", "."])
def test_cameras_and_images(views, tmp_path, header, images):
    folder = write_realitycapture(tmp_path / "scene", views, header, images)
    capture = read_capture(folder if images == "images" else folder / "cameras.csv", test_every=4)
    assert is_capture(folder) and len(capture.train) == 6 and len(capture.test) == 3 and capture.random_points
    found = {view.name.rpartition("/")[2]: view for view in (*capture.train, *capture.test)}
    for view in views:
        other = found[view.name]
        torch.testing.assert_close(other.camera.viewmat, view.camera.viewmat, atol=2e-5, rtol=0)
        torch.testing.assert_close(other.camera.K, view.camera.K, atol=1e-4, rtol=0)
        assert torch.equal(other.image, view.image)
    assert capture.notes[-1].endswith("no point cloud beside it; training starts from 20000 random points")


def test_angles_are_those_of_the_manual():
    """All zero: the camera looks down, and the top of the image is to the north. A yaw of 90 degrees is east."""
    expected = {
        (0, 0, 0): [[1, 0, 0], [0, -1, 0], [0, 0, -1]],
        (90, 0, 0): [[0, -1, 0], [-1, 0, 0], [0, 0, -1]],
        (0, 90, 0): [[1, 0, 0], [0, 0, -1], [0, 1, 0]],  # looks north, upright
        (0, 0, 90): [[0, 0, -1], [0, -1, 0], [-1, 0, 0]],  # looks west
    }
    for angles, rotation in expected.items():
        found = rotation_of(torch.tensor(angles, dtype=torch.float64))
        assert torch.allclose(found, torch.tensor(rotation, dtype=torch.float64), atol=1e-12), angles


DEGREES = st.floats(-720, 720)


@given(angles=st.tuples(DEGREES, DEGREES, DEGREES))
def test_rotations_have_the_angles_from_which_they_are_made(angles):
    rotation = rotation_of(torch.tensor(angles, dtype=torch.float64))
    assert torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-12)
    again = rotation_of(torch.tensor(angles_of(rotation), dtype=torch.float64))
    assert torch.allclose(again, rotation, atol=1e-6)


PLACE = st.floats(-3, 3).filter(lambda value: abs(value) > 0.1)


@given(
    eye=st.tuples(PLACE, PLACE, PLACE),
    header=st.sampled_from(HEADERS),
    size=st.sampled_from([(400, 300), (300, 400), (320, 320)]),
    shift=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    lens=st.fixed_dictionaries({name: st.floats(-0.02, 0.02) for name in LENS}),
)
def test_projections_are_those_of_the_camera_that_was_written(eye, header, size, shift, lens):
    pycolmap = pytest.importorskip("pycolmap")
    lens = {name: value / 10 if name.startswith("t") else value for name, value in lens.items()}
    K = intrinsics(*size, fov=50).double()
    K[:2, 2] += torch.tensor(shift, dtype=torch.float64)
    view = dataclasses.replace(SAMPLE, K=K, width=size[0], height=size[1], viewmat=look_at(eye, (0, 0, 0)).double())
    values = numbers(row("a.jpg", view, header, **lens), header)
    viewmat, position = _read_pose(values, "a")
    torch.testing.assert_close(viewmat, view.viewmat, atol=1e-6, rtol=0)
    torch.testing.assert_close(position, view.position, atol=1e-6, rtol=0)
    try:
        found = _read_lens(values, size, "a", {})
    except UnsupportedError:
        assert lens["k1"] and not any(lens[name] for name in LENS[1:])
        return
    points = torch.rand(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    expected = project(points, view.viewmat, K, lens)
    model, params = found.colmap or ("OPENCV", (found.fx, found.fy, found.cx, found.cy, *found.distortion))
    camera = pycolmap.Camera(model=model, width=size[0], height=size[1], params=params)
    local = points @ viewmat[:3, :3].T + viewmat[:3, 3]
    inside = (expected > 0).all(1) & (expected < torch.tensor(size)).all(1) & (local[:, 2] > 0.1)
    projected = torch.from_numpy(camera.img_from_cam(local[inside].numpy()))
    assert (projected - expected[inside]).norm(dim=1).max() < 0.05


SAMPLE = sample_views()[0].camera


def test_a_line_of_a_published_sample():
    """The first camera of the sample that is published with Postshot: it stands upright, and looks at the scene."""
    line = (
        "frame_00001.jpeg,44.5876747664166,138.823621534044,6.821916401534405,170.3483067926429,85.18637269312288,"
        "-22.74995074830745,14.2390682243052,-9.482184385774318e-004,-2.446553068050568e-004,3.114799768048152e-003,"
        "4.026391718074555e-003,-1.795976992379612e-003,0,0,0"
    )
    values = numbers(line, REALITYCAPTURE)
    viewmat, position = _read_pose(values, "a")
    right, down, forward = viewmat[:3, :3]
    assert position.tolist() == [44.5876747664166, 138.823621534044, 6.821916401534405]
    assert down[2] < -0.9 and abs(forward[2]) < 0.1 and forward[1] < -0.9 and right[0] < -0.9
    lens = _read_lens(values, (3840, 2880), "a", {})
    assert lens.fx == pytest.approx(1518.834, abs=1e-3)
    assert (lens.cx, lens.cy) == pytest.approx((1916.3588, 1439.0605), abs=1e-3)


def test_four_radial_coefficients_and_the_exchanged_tangential_ones():
    pycolmap = pytest.importorskip("pycolmap")
    K = intrinsics(5280, 3956, fov=56).double()
    camera = dataclasses.replace(SAMPLE, K=K, width=5280, height=3956)
    found = _read_lens(numbers(row("a", camera, **BROWN4), REALITYCAPTURE), (5280, 3956), "a", {})
    points = torch.rand(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    points = points * torch.tensor([1.2, 0.9, 0]) + torch.tensor([0, 0, 1.0])
    expected = project(points, torch.eye(4), K, BROWN4)
    model, params = found.colmap
    lens = pycolmap.Camera(model=model, width=5280, height=3956, params=params)
    assert (torch.from_numpy(lens.img_from_cam(points.numpy())) - expected).norm(dim=1).max() < 0.2


def test_other_columns_comments_and_names(views, tmp_path):
    """Numbers of cameras before the header, columns in another order, names without suffix, with commas and spaces."""
    folder = write_realitycapture(tmp_path / "scene", views[:4], REALITYSCAN)
    header = "#name,f_35mm,x,y,alt,roll,pitch,yaw"
    names = ["a, b.png", "c d.png", "e.PNG", "f.png"]
    lines = []
    for view, name in zip(views, names, strict=False):
        (folder / "images" / view.name).rename(folder / "images" / name)
        given = name.rpartition(".")[0] if name == "f.png" else name
        lines.append(row(given, view.camera, header))
    text = "\ufeff#cameras 4\r\n" + header + "\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    (folder / "cameras.csv").write_bytes(text.encode())
    capture = read_capture(folder, test_every=0)
    assert [view.name for view in capture.train] == [f"images/{name}" for name in sorted(names)]
    assert all(float(view.camera.K[0, 2]) == view.width / 2 for view in capture.train)
    by_name = {view.name: view for view in capture.train}
    for view, name in zip(views, names, strict=False):
        found = by_name[f"images/{name}"].camera.viewmat
        torch.testing.assert_close(found, view.camera.viewmat, atol=2e-5, rtol=0)


def test_coordinates_of_a_projection_are_relative_to_an_origin(views, tmp_path):
    far = torch.tensor([2600000.25, 1200000.5, 450.0], dtype=torch.float64)
    moved = []
    for view in views:
        viewmat = view.camera.viewmat.double()
        viewmat[:3, 3] -= viewmat[:3, :3] @ far
        moved.append(changed(view, viewmat=viewmat))
    capture = read_capture(write_realitycapture(tmp_path / "scene", moved), test_every=0)
    assert any("single precision cannot hold" in note for note in capture.notes)
    back = torch.linalg.inv(capture.world) @ torch.linalg.inv(capture.train[0].camera.viewmat.double())
    assert torch.allclose(back[:3, 3], moved[0].camera.position, rtol=0, atol=1e-4)


def test_each_image_has_a_lens_of_its_own(views, tmp_path, monkeypatch):
    """Maps of lenses that one image has are not kept: with those of all images, memory would run out."""
    pytest.importorskip("pycolmap")
    folder = write_realitycapture(tmp_path / "scene", views, k1=-0.02, k2=0.01)
    lines = (folder / "cameras.csv").read_text().splitlines()
    lines[3:] = [line.replace("-0.02,0.01", f"-0.02,0.0{i}") for i, line in enumerate(lines[3:], 2)]
    (folder / "cameras.csv").write_text("\n".join(lines))
    alive, counts = weakref.WeakSet(), []

    def observed(*key):
        undistortion = Undistortion(*key)
        alive.add(undistortion)
        counts.append(len(alive))
        return undistortion

    monkeypatch.setattr("tsplat.scene.capture.photographs.Undistortion", observed)
    monkeypatch.setattr("tsplat.scene.capture.photographs.WORKERS_MAX", 1)
    capture = read_capture(folder, test_every=0)
    assert len({view.camera_id for view in capture.train}) == 8
    assert len(counts) == 8 and max(counts) <= 3  # one of them is that of two images
    assert all(view.camera.distortion is None for view in capture.train)


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        (dict(k1=-0.3), "k1 = -0.3 alone may be the division model"),
        (dict(k1=0.0, k4=1e9), "k4 has no equivalent|distortion: expected"),
    ],
)
def test_lenses_that_are_not_implemented(views, lens, message):
    values = numbers(row("a", views[0].camera, **lens), REALITYCAPTURE)
    with pytest.raises((FileError, UnsupportedError), match=message):
        _read_lens(values, (4000, 3000), "a", {})


def test_a_single_coefficient_is_noted_if_models_differ(views, tmp_path):
    pytest.importorskip("pycolmap")
    notes = read_capture(write_realitycapture(tmp_path / "scene", views, k1=0.1), test_every=0).notes
    assert any("1 of 1 lenses: k1 alone is taken for Brown's" in note for note in notes)


@pytest.mark.parametrize(
    "header",
    ["#name,x,y,z", "#name,x,y,z,heading,pitch,roll", "#name,x,y,z,omega,phi,kappa", "#name,x,y,alt,heading,pitch,f"],
)
def test_tables_without_orientations_or_lenses_are_refused(folder, header):
    edited(folder, (REALITYCAPTURE, header))
    assert is_capture(folder)
    with pytest.raises(UnsupportedError, match="export the registration as Internal/External camera parameters"):
        read_capture(folder)


def test_other_tables_are_no_cameras_and_several_are_ambiguous(views, folder):
    (folder / "weights.csv").write_text("name,x,y\na,1,2\n")
    (folder / "positions.csv").write_text("#name,x,y,z\na.png,1,2,3\n")
    assert len(read_capture(folder, test_every=0).train) == 9
    write_realitycapture(folder, views, file="others.csv")
    with pytest.raises(FileError, match=r"no cameras found; .* one CSV file of RealityCapture's"):
        read_capture(folder)
    assert len(read_capture(folder / "others.csv", test_every=0).train) == 9


def test_degrees_are_refused(views, tmp_path):
    moved = []
    for i, view in enumerate(views):
        viewmat = view.camera.viewmat.double()
        position = torch.tensor([8.5 + 1e-4 * i, 47.3 - 1e-4 * i, 500 + 3.0 * i], dtype=torch.float64)
        viewmat[:3, 3] = -viewmat[:3, :3] @ position
        moved.append(changed(view, viewmat=viewmat))
    with pytest.raises(UnsupportedError, match="x and y look like longitudes and latitudes in degrees"):
        read_capture(write_realitycapture(tmp_path / "scene", moved))


ZEROS = ",0.0,0.0,0.0,0.0,0.0,0.0\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ZEROS, ",0.0\n", "line 2: expected 16 values, found 11"),
        (ZEROS, ",0.0,0.0,0.0,0.0,0.0,nan\n", "line 2: t2: expected a number of at most .* found 'nan'"),
        (ZEROS, ",0.0,0.0,0.0,0.0,0.0,1e99\n", "line 2: t2: expected a number of at most"),
        (ZEROS, ",0.0,0.0,0.0,0.0,0.0,\n", "line 2: t2: expected a number of at most .* found ''"),
        ("train_000.png,", "train_001.png,", "another camera has the same photograph, 'train_001.png'"),
        ("train_000.png,", "../../secret/..,", "expected labels of cameras that are names of files"),
        ("#name,x,y", "#name,x,x,y", "expected columns of different names, found 'x' twice"),
        (",k1,", ",k1,more,", "line 2: expected 17 values, found 16"),
    ],
)  # fmt: skip
def test_damaged_values_are_errors(folder, old, new, message):
    with pytest.raises(ArgumentError, match=message):
        read_capture(edited(folder, (old, new)))


@pytest.mark.parametrize("column", ["f", "px"])
def test_lenses_without_meaning_are_errors(views, folder, column):
    lines = (folder / "cameras.csv").read_text().splitlines()
    place = REALITYCAPTURE.split(",").index(column)
    words = lines[1].split(",")
    words[place] = "-20" if column == "f" else "1e9"
    (folder / "cameras.csv").write_text("\n".join([lines[0], ",".join(words), *lines[2:]]))
    with pytest.raises(FileError, match=r"camera .*: (focal|principal|center)"):
        read_capture(folder)


def test_a_matrix_that_is_no_rotation_is_an_error(views, tmp_path):
    folder = write_realitycapture(tmp_path / "scene", views, OPENCV)
    lines = (folder / "cameras.csv").read_text().splitlines()
    words = lines[1].split(",")
    words[4] = "3.0"
    (folder / "cameras.csv").write_text("\n".join([lines[0], ",".join(words), *lines[2:]]))
    with pytest.raises(FileError, match="R00 to R22: expected a rotation"):
        read_capture(folder)


def test_photographs_that_are_missing_or_outside_are_not_read(views, folder, tmp_path):
    (folder / "images" / views[0].name).rename(tmp_path / views[0].name)
    edited(folder, (f"{views[0].name},", f"../../{views[0].name},"))
    notes = " ".join(read_capture(folder, test_every=0).notes)
    assert f"skipped 1 of 9 images whose files are missing (first: {folder / 'images' / views[0].name}" in notes
    with pytest.raises(FileError, match="no such file"):
        read_capture(folder, strict=True)


@pytest.mark.parametrize("header", [REALITYSCAN, OPENCV])
def test_damaged_files_are_read_or_refused(views, tmp_path, header):
    folder = write_realitycapture(tmp_path / "scene", views[:4], header)
    content = (folder / "cameras.csv").read_bytes()
    n_refused = 0
    for damaged in damaged_texts(content, COUNT // 4, (b",", b"9" * 30, b"e308", b"-", b"\x00", b"nan", b"\n")):
        (folder / "cameras.csv").write_bytes(damaged)
        try:
            capture = read_capture(folder, test_every=0)
            assert all(view.camera.viewmat.isfinite().all() for view in capture.train)
            assert all(math.isfinite(float(view.camera.K.sum())) for view in capture.train)
        except ArgumentError:
            n_refused += 1
        except UnsupportedError:
            n_refused += 1
    assert n_refused > COUNT // 20
