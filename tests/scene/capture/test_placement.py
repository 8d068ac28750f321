"""Captures in other units and far from the origin: local frames, and the way back to the frame of the files."""

import json

import pytest
import torch
from scipy.spatial.transform import Rotation

from tests.support.captures import POINTS, changed, sample_views, write_colmap, write_transforms
from tests.support.model_files import random_gaussians
from tsplat import ArgumentError
from tsplat.scene import Camera, FileError, intrinsics, look_at, normalize_capture, read_capture, read_colmap
from tsplat.scene.capture.local_frame import LocalFrame, frame_from_json
from tsplat.viewing import render

UTM = (447_000.0, 4_412_000.0, 120.0)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A scene whose points are in a PLY of doubles."""
    folder = write_transforms(tmp_path_factory.mktemp("scene"), sample_views(), ply_file_path="points.ply")
    write_points(folder, start_points())
    return folder


def start_points():
    return (2 * torch.rand(60, 3, generator=torch.Generator().manual_seed(2)) - 1).double()


def write_points(folder, points):
    header = ["ply", "format ascii 1.0", f"element vertex {len(points)}", *(f"property double {n}" for n in "xyz")]
    rows = [" ".join(map(repr, point)) for point in points.tolist()]
    (folder / "points.ply").write_text("\n".join([*header, "end_header", *rows]) + "\n")


def moved(scene, unit=1.0, offset=(0.0, 0.0, 0.0)):
    """Changes the unit and then the origin of the files of a scene, which are written again in place."""
    path = scene / "transforms.json"
    original = scene / "original.json"
    if not original.exists():
        original.write_text(path.read_text())
    content = json.loads(original.read_text())
    for entry in content["frames"]:
        for row, shift in zip(entry["transform_matrix"], offset):
            # Of single precision, so that the sum is exact.
            row[3] = unit * float(torch.tensor(row[3]).float()) + shift
    path.write_text(json.dumps(content))
    write_points(scene, unit * start_points() + torch.tensor(offset, dtype=torch.float64))
    return scene


def assert_equal_captures(one, other):
    assert torch.equal(one.points, other.points)
    for first, second in zip((*one.train, *one.test), (*other.train, *other.test), strict=True):
        assert torch.equal(first.camera.viewmat, second.camera.viewmat)
        assert first.camera.near == second.camera.near


@pytest.mark.parametrize(
    ("exponent", "steps"),
    [
        (0, (3, -1, 2)),
        (1, (0, 0, 0)),
        (-30, (0, 0, 0)),
        (13, (5, 7, -9)),
        (-10, (2**20, -(2**19), 1)),
        (-3, (300, 1, 0)),
    ],
)
def test_local_frames_are_equal_in_any_unit_and_at_any_place(scene, exponent, steps):
    plain = read_capture(moved(scene), frame="local")
    unit = 2.0**exponent
    offset = tuple(step * plain.frame.unit * unit for step in steps)
    other = read_capture(moved(scene, unit, offset), frame="local")
    assert_equal_captures(plain, other)
    assert other.frame.unit == unit * plain.frame.unit
    assert other.frame.near == unit * plain.frame.near


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_georeferenced_scenes_are_moved_in_double_precision_with_a_note(scene, unit):
    expected = start_points() * unit + torch.tensor(UTM, dtype=torch.float64)
    capture = read_capture(moved(scene, unit, UTM))
    if unit == 1e4:  # which is not far for a scene of this size
        assert torch.equal(capture.world, torch.eye(4, dtype=torch.float64))
        assert not [note for note in capture.notes if "single precision" in note]
    else:
        (note,) = (note for note in capture.notes if "single precision" in note)
        assert "relative to (44" in note
        back = capture.points.double() - capture.world[:3, 3]
        torch.testing.assert_close(back, expected, rtol=0, atol=5e-7 * unit + 1e-9)
    near = read_capture(moved(scene, unit))
    for here, there in zip(near.train, capture.train):
        torch.testing.assert_close(here.camera.K, there.camera.K)
        assert there.camera.near == pytest.approx(here.camera.near, rel=1e-3)
    local = read_capture(moved(scene, unit, UTM), frame="local")
    assert local.points.abs().max() < 4
    places = local.frame.points_of_model(local.points).float()
    torch.testing.assert_close(places, capture.points, rtol=1e-6, atol=1e-6 * unit)


def test_normalized_captures_are_those_of_normalize_capture(scene):
    expected, _ = normalize_capture(read_capture(moved(scene)))
    found = read_capture(moved(scene), normalize=True)
    torch.testing.assert_close(found.points, expected.points)
    for one, other in zip(found.train, expected.train):
        torch.testing.assert_close(one.camera.viewmat, other.camera.viewmat)
        assert one.camera.near == pytest.approx(other.camera.near, rel=1e-5)
    again = read_capture(moved(scene, 8.0, (64.0, 0.0, -32.0)), normalize=True)
    torch.testing.assert_close(again.points, found.points)
    with pytest.raises(ArgumentError, match="normalize: not with another frame"):
        read_capture(scene, normalize=True, frame="local")
    with pytest.raises(ArgumentError, match="frame: expected one of 'model', 'local', 'normalized'"):
        read_capture(scene, frame="files")


def test_frames_of_runs_are_read_again(scene):
    frame = read_capture(moved(scene), frame="local").frame
    again = read_capture(scene, frame=frame_from_json(json.loads(json.dumps(frame.to_json())), "run"))
    assert_equal_captures(again, read_capture(scene, frame="local"))
    for change in ({"unit": 0}, {"unit": "x"}, {"origin": [0, 0]}, {"world": [[1]]}, {"near": float("nan")}):
        with pytest.raises(FileError, match="run: expected a local frame"):
            frame_from_json(frame.to_json() | change, "run")
    with pytest.raises(FileError, match="run: expected a local frame"):
        frame_from_json(None, "run")


@pytest.mark.parametrize("surfels", [False, True])
def test_models_look_the_same_from_cameras_that_move_along(surfels):
    gaussians = random_gaussians(40, degree=1)
    gaussians = gaussians.as_surfels() if surfels else gaussians
    camera = Camera(look_at((0, 0, -6), (0, 0, 0)), intrinsics(40, 30, 50), 40, 30, near=0.02)
    frame = LocalFrame(origin=(8.0, -16.0, 24.0), unit=8.0)
    model, other = frame.gaussians_of_model(gaussians), frame.camera_of_model(camera)
    assert model.surfels == surfels
    assert other.near == pytest.approx(0.16)
    assert torch.equal(model.means, 8 * gaussians.means + torch.tensor(frame.origin))
    torch.testing.assert_close(render(model, other), render(gaussians, camera), atol=1e-4, rtol=0)
    same = LocalFrame()
    assert same.gaussians_of_model(gaussians) is gaussians
    assert same.camera_of_model(camera) is camera


def test_photographs_with_poses_far_away_are_named(tmp_path):
    views = sample_views()
    wrong = views[4].camera.viewmat.clone()
    wrong[:3, 3] *= 40
    views[4] = changed(views[4], viewmat=wrong)
    capture = read_capture(write_transforms(tmp_path, views))
    (note,) = (note for note in capture.notes if "far from the others" in note)
    assert "1 of 9 cameras are far from the others" in note
    assert views[4].name in note
    normalized = read_capture(tmp_path, normalize=True)
    distances = torch.stack([v.camera.position for v in (*normalized.train, *normalized.test)]).norm(dim=-1)
    assert distances.sort().values[-2] == pytest.approx(1.0)


def test_random_points_are_drawn_where_the_cameras_are(tmp_path):
    """Whatever the unit and the origin, and without cameras that are far away."""
    views = sample_views()
    capture = read_capture(write_transforms(tmp_path, views), frame="local")
    scale = 2.0**12
    for view in views:
        view.camera.viewmat[:3, 3] = scale * view.camera.viewmat[:3, 3]
    assert torch.equal(read_capture(write_transforms(tmp_path, views), frame="local").points, capture.points)


def test_colmap_points_keep_their_digits(tmp_path):
    """COLMAP's files hold translations, whose rotation rounds a little in double precision."""
    offset = torch.tensor(UTM, dtype=torch.float64)
    views = []
    for view in sample_views():
        viewmat = view.camera.viewmat.double()
        viewmat[:3, :3] = torch.from_numpy(Rotation.from_matrix(viewmat[:3, :3].numpy()).as_matrix())
        views.append(changed(view, viewmat=viewmat))
    plain = read_colmap(write_colmap(tmp_path / "plain", views, POINTS.double()), frame="local")
    far = []
    for view in views:
        viewmat = view.camera.viewmat.clone()
        viewmat[:3, 3] -= viewmat[:3, :3] @ offset
        far.append(changed(view, viewmat=viewmat))
    other = read_colmap(write_colmap(tmp_path / "far", far, POINTS.double() + offset), frame="local")
    assert other.frame.unit == plain.frame.unit
    assert plain.frame.world.equal(torch.eye(4, dtype=torch.float64))
    shift = -other.frame.world[:3, 3] - offset - offset.new_tensor(plain.frame.origin)
    shift /= plain.frame.unit
    torch.testing.assert_close(other.points + shift.float(), plain.points, atol=1e-6, rtol=0)
    for one, two in zip(other.train, plain.train):
        torch.testing.assert_close(one.camera.position, two.camera.position - shift, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.sparse, two.sparse, atol=1e-4, rtol=1e-5)


def test_legacy_frames_keep_the_coordinates_of_the_files(scene):
    capture = read_capture(moved(scene, 1.0, (1000.0, 0.0, 0.0)), frame=LocalFrame(near=0.01))
    assert torch.equal(capture.points, (start_points() + torch.tensor([1000.0, 0, 0]).double()).float())
    assert {view.camera.near for view in (*capture.train, *capture.test)} == {0.01}
    assert capture.frame.is_of_model
