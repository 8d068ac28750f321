"""Captures in other units and far from the origin: local frames, and the way back to the frame of the files."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from tests.support.captures import POINTS, changed, frame, sample_views, write_colmap, write_image, write_transforms
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


def flung(view, offset):
    """The view with a pose that is moved by an offset [3]."""
    viewmat = view.camera.viewmat.double()
    viewmat[:3, 3] -= viewmat[:3, :3] @ torch.tensor(offset, dtype=torch.float64)
    return changed(view, viewmat=viewmat)


def write_as(kind, folder, views):
    """Writes views and the points that they look at as COLMAP, with or without observations, or as transforms.json."""
    if kind == "transforms":
        write_transforms(folder, views, ply_file_path="points.ply")
        write_points(folder, start_points())
        return folder
    write_colmap(folder, views, start_points())
    if kind == "unobserved":
        path = folder / "sparse" / "0" / "images.txt"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line if i % 2 == 0 else "" for i, line in enumerate(lines)) + "\n")
    return folder


@pytest.mark.parametrize("kind", ["observed", "unobserved", "transforms"])
@pytest.mark.parametrize("frame", ["local", "model", "normalized"])
@settings(max_examples=4, deadline=None)
@given(
    places=st.lists(st.integers(0, 8), min_size=1, max_size=2, unique=True),
    distance=st.floats(100.0, 1e7),
    axis=st.integers(0, 2),
    side=st.sampled_from((-1.0, 1.0)),
)
def test_photographs_whose_poses_failed_are_left_out(tmp_path_factory, kind, frame, places, distance, axis, side):
    """As if they were not in the scene, bit by bit."""
    views = sample_views()
    wrong = [
        flung(view, [side * distance * (i + 1 if k == axis else 0.1) for k in range(3)]) if i in places else view
        for i, view in enumerate(views)
    ]
    folder = tmp_path_factory.mktemp("scene")
    found = read_capture(write_as(kind, folder / "wrong", wrong), test_every=4, frame=frame)
    right = [view for i, view in enumerate(views) if i not in places]
    expected = read_capture(write_as(kind, folder / "right", right), test_every=4, frame=frame)
    assert_equal_captures(found, expected)
    assert [view.name for view in found.train] == [view.name for view in expected.train]
    assert [Path(name).name for name in sorted(found.left_out)] == [views[i].name for i in sorted(places)]
    (note,) = (note for note in found.notes if "far from the others" in note)
    assert f"left out {len(places)} of 9 photographs" in note
    assert views[min(places)].name in note
    assert expected.left_out == ()


@pytest.mark.parametrize("kind", ["unobserved", "transforms"])
def test_poses_far_away_that_show_a_spot_are_left_out(kind, tmp_path):
    """Whose distance was multiplied, so that they look at the scene still."""
    views = sample_views()
    wrong = views[4].camera.viewmat.clone()
    wrong[:3, 3] *= 300
    views[4] = changed(views[4], viewmat=wrong)
    folder = write_as(kind, tmp_path / kind, views)
    assert [Path(name).name for name in read_capture(folder).left_out] == [views[4].name]
    kept = read_capture(folder, keep_far=True)
    assert kept.left_out == ()
    assert len(kept.train) + len(kept.test) == 9
    (note,) = (note for note in kept.notes if "far from the others" in note)
    assert "the cameras of 1 of 9 photographs" in note and views[4].name in note
    normalized = read_capture(folder, normalize=True, keep_far=True)
    distances = torch.stack([v.camera.position for v in (*normalized.train, *normalized.test)]).norm(dim=-1)
    assert distances.sort().values[-2] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["observed", "unobserved", "transforms"])
@pytest.mark.parametrize("height", [-12.0, -25.0, -60.0])
def test_photographs_from_the_air_are_kept(kind, height, tmp_path):
    """Two of ten, of a lens that suits the distance."""
    scale, views = 0.12, []
    for view in sample_views():
        viewmat = view.camera.viewmat.double()
        viewmat[:3, 3] *= scale
        views.append(changed(view, viewmat=viewmat))
    for i in (2, 5):
        camera = views[i].camera
        K = camera.K.clone()
        K[0, 0] *= -height / 12
        K[1, 1] *= -height / 12
        views[i] = changed(views[i], viewmat=look_at((0.3 * i, height, 0.2), (0, 0, 0.01)).double(), K=K)
    folder = write_as(kind, tmp_path / kind, views)
    if kind == "transforms":
        path = folder / "transforms.json"
        content = json.loads(path.read_text())
        for entry, view in zip(content["frames"], views, strict=True):
            entry |= {"fl_x": float(view.camera.K[0, 0]), "fl_y": float(view.camera.K[1, 1])}
        path.write_text(json.dumps(content))
    capture = read_capture(folder)
    assert capture.left_out == ()
    (note,) = (note for note in capture.notes if "far from the others" in note)
    assert "the cameras of 2 of 9 photographs" in note


def test_photographs_of_another_place_with_points_of_its_own_are_kept(tmp_path):
    """The last ones of a walk, which show none of the points where most photographs were taken."""
    views = sample_views()
    views[3] = flung(views[3], (72.0, 0, 0))
    views[8] = flung(views[8], (72.0, 0, 0))
    folder = write_as("transforms", tmp_path, views)
    assert len(read_capture(folder).left_out) == 2
    there = start_points()[:20] + torch.tensor([72.0, 0, 0], dtype=torch.float64)
    write_points(folder, torch.cat([start_points(), there]))
    assert read_capture(folder).left_out == ()


def test_scenes_without_points_leave_cameras_out_by_the_box_of_the_others(tmp_path):
    """The box of random points, also of synthetic scenes, lies where it would without them."""
    views = sample_views()
    wrong = [*views[:2], flung(views[2], (400.0, -300.0, 900.0)), *views[3:]]
    for name, kept in (("wrong", wrong), ("right", [*views[:2], *views[3:]])):
        write_transforms(tmp_path / name, kept[:-1])
        content = json.loads((tmp_path / name / "transforms.json").read_text())
        for key in ("fl_x", "fl_y", "cx", "cy"):
            content.pop(key)
        content["camera_angle_x"] = 0.8
        (tmp_path / name / "transforms_train.json").write_text(json.dumps(content))
        content["frames"] = [frame(kept[-1])]
        write_image(tmp_path / name / "images" / kept[-1].name, kept[-1].image)
        (tmp_path / name / "transforms_test.json").write_text(json.dumps(content))
    found = read_capture(tmp_path / "wrong")
    assert found.left_out == (f"images/{views[2].name}",)
    assert_equal_captures(found, read_capture(tmp_path / "right"))
    by_file = read_capture(tmp_path / "wrong" / "transforms.json")
    assert_equal_captures(by_file, read_capture(tmp_path / "right" / "transforms.json"))


def test_scenes_that_are_left_without_training_photographs_are_refused(tmp_path):
    views = sample_views()
    wrong = [*views[:8], flung(views[8], (0, 0, 4000.0))]
    folder = write_transforms(tmp_path, wrong, train_filenames=[f"images/{views[8].name}"])
    with pytest.raises(ArgumentError, match=r"0 training images and 8 held-out images.*left out 1 of 9 photographs"):
        read_capture(folder)


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
    assert capture.frame.is_model_frame
