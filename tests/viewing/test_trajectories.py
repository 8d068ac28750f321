"""Orbits, spirals, paths along cameras, and cameras read from a file."""

import json

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import Camera, FileError, intrinsics, look_at
from tsplat.viewing import orbit_around, path_along, read_cameras, spiral_at
from tsplat.viewing.trajectories import interpolate

UP = (0.0, -1.0, 0.0)


def center(viewmat):
    return -viewmat[:3, :3].T @ viewmat[:3, 3]


def one_sided(n=20):
    """Cameras that walk along x, all of which look ahead and slightly down, at changing heights."""
    poses = [((0.2 * i, 0.1 * (i % 3), 0.0), (0.2 * i + 0.3 * (i % 2), 0.5, 3.0)) for i in range(n)]
    return [Camera(look_at(eye, target, UP), intrinsics(40, 30, 50), 40, 30) for eye, target in poses]


@pytest.mark.parametrize("frames", [1, 7, 60])
def test_path_stays_among_cameras_and_looks_where_they_look(frames):
    cameras = one_sided()
    positions = torch.stack([camera.position for camera in cameras]).double()
    viewmats = path_along(cameras, frames)
    assert viewmats.shape == (frames, 4, 4)
    centers = torch.stack([center(viewmat) for viewmat in viewmats]).double()
    assert (centers >= positions.amin(0) - 1e-5).all()
    assert (centers <= positions.amax(0) + 1e-5).all()
    directions = torch.stack([camera.viewmat[2, :3] for camera in cameras])
    nearest = torch.cdist(centers, positions).argmin(-1)
    assert ((viewmats[:, 2, :3] * directions[nearest]).sum(-1) > 0.98).all()
    if frames > 20:
        # Closed, without jumps, from one end to the other and back.
        steps = (centers - centers.roll(1, 0)).norm(dim=-1)
        assert steps.max() < 0.2
        assert centers[:, 0].amax() - centers[:, 0].amin() > 3


def test_path_along_a_circle_is_closed():
    azimuths = torch.arange(12) * torch.pi / 6
    eyes = torch.stack([azimuths.cos(), torch.zeros(12), azimuths.sin()], -1).tolist()
    cameras = [Camera(look_at(eye, (0, 0, 0), UP), intrinsics(40, 30, 50), 40, 30) for eye in eyes]
    centers = torch.stack([center(viewmat) for viewmat in path_along(cameras, 24)])
    # One turn of equal steps: it does not return as it came.
    steps = (centers - centers.roll(1, 0)).norm(dim=-1)
    assert torch.allclose(steps, steps.mean().expand(24), rtol=0.05)
    assert (centers.norm(dim=-1) > 0.8).all()


@pytest.mark.parametrize("n", [2, 3, 12])
def test_closed_path_returns_to_its_first_camera(n):
    pytest.importorskip("scipy")
    azimuths = torch.arange(n) * 2 * torch.pi / n
    eyes = torch.stack([azimuths.cos(), torch.zeros(n), azimuths.sin()], -1).tolist()
    cameras = [Camera(look_at(eye, (0, 0, 0), UP), intrinsics(40, 30, 50), 40, 30) for eye in eyes]
    path = interpolate(cameras, 8 * n, closed=True)
    assert len(path) == 8 * n
    for camera, other in zip(cameras, path[::8], strict=True):
        assert torch.allclose(camera.viewmat, other.viewmat, atol=1e-5)
        assert torch.allclose(camera.K, other.K, rtol=1e-5)
    centers = torch.stack([camera.position for camera in path])
    steps = centers - centers.roll(1, 0)
    # The step from the last frame to the first is as smooth as the others.
    turns = (steps - steps.roll(1, 0)).norm(dim=-1)
    assert turns[:2].max() < 1.01 * turns[2:].max()
    if n == 12:
        assert torch.allclose(steps.norm(dim=-1), steps.norm(dim=-1).mean().expand(96), rtol=0.02)


def test_path_needs_cameras():
    with pytest.raises(ArgumentError, match="cameras: expected at least one"):
        path_along([], 3)


def test_orbit_around_keeps_height_distance_and_target():
    eye = (0.3, -1.0, -3.0)
    viewmats = orbit_around(eye, (0.0, 0.5, 0.0), UP, 8)
    centers = torch.stack([center(viewmat) for viewmat in viewmats])
    assert torch.allclose(centers[0], torch.tensor(eye), atol=1e-5)
    assert torch.allclose(centers[:, 1], torch.full((8,), -1.0), atol=1e-5)
    distances = (centers - torch.tensor([0.0, 0.5, 0.0])).norm(dim=-1)
    assert torch.allclose(distances, distances[:1].expand(8), atol=1e-5)
    targets = viewmats[:, :3, :3] @ torch.tensor([0.0, 0.5, 0.0]) + viewmats[:, :3, 3]
    assert torch.allclose(targets[:, :2], torch.zeros(8, 2), atol=1e-5)
    steps = (centers - centers.roll(1, 0)).norm(dim=-1)
    assert torch.allclose(steps, steps[:1].expand(8), atol=1e-5)


def test_spiral_at_stays_near_the_eye_and_looks_at_the_target():
    viewmats = spiral_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), UP, 60)
    centers = torch.stack([center(viewmat) for viewmat in viewmats])
    offsets = centers - torch.tensor([0.0, 0.0, -4.0])
    assert 0.7 < float(offsets.norm(dim=-1).max()) < 1.0
    assert float(offsets[:, 0].min()) < -0.7 < 0.7 < float(offsets[:, 0].max())
    assert torch.allclose(viewmats[:, :2, 3], torch.zeros(60, 2), atol=1e-5)


def test_spiral_stays_inside_the_positions_of_cameras():
    """A row of cameras that starts at the eye: no other height, and only to one side."""
    K = intrinsics(40, 30, 50)
    inside = [Camera(look_at((0.3 * i, 0.0, -4.0), (0, 0, 0)), K, 40, 30) for i in range(6)]
    viewmats = spiral_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), UP, 60, inside=inside)
    found = torch.stack([center(viewmat) for viewmat in viewmats])
    assert found[:, 0].amin() == pytest.approx(0, abs=1e-5)
    assert 0.5 < found[:, 0].amax() < 1.5 + 1e-5
    assert found[:, 1:].sub(torch.tensor([0.0, -4.0])).abs().max() < 1e-5
    # Of a large extent, the spiral needs only a part.
    free = spiral_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), UP, 60)
    corners = [Camera(look_at((x, x, x - 4.0), (0, 0, 0)), K, 40, 30) for x in (-9.0, 9.0)]
    assert torch.equal(spiral_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), UP, 60, inside=corners), free)


@pytest.mark.parametrize("trajectory", [orbit_around, spiral_at])
def test_trajectories_need_at_least_one_frame(trajectory):
    with pytest.raises(ArgumentError, match="frames"):
        trajectory((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), UP, 0)


CAMERA = {"id": 0, "img_name": "a", "width": 40, "height": 30, "fx": 50.0, "fy": 51.0}


def test_read_cameras_reads_the_format_of_inria(tmp_path):
    viewmat = look_at((1, -2, -3), (0, 0, 0.5))
    pose = {"position": center(viewmat).tolist(), "rotation": viewmat[:3, :3].T.tolist()}
    path = tmp_path / "cameras.json"
    path.write_text(json.dumps([CAMERA | pose]))
    (camera,) = read_cameras(path)
    assert torch.allclose(camera.viewmat, viewmat, atol=1e-5)
    assert camera.K.tolist() == [[50, 0, 20], [0, 51, 15], [0, 0, 1]]
    assert (camera.width, camera.height) == (40, 30)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        [{}],
        3,
        [{"fx": -1}],
        [{"rotation": [1]}],
        [{"width": "4"}],
        [{"position": [0, 0, float("inf")]}],
        [{"fx": 10**400}],
        [{"fx": 1e200, "fy": 1e-200}],
        [{"position": [0, 0, 1e200]}],
        [{"cy": 10**400}],
        [{"position": [0, 0, 10**400]}],
    ],
    ids=lambda content: json.dumps(content)[:40],
)
def test_read_cameras_rejects_other_content(content, tmp_path):
    pose = {"position": [0, 0, 0], "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}
    path = tmp_path / "cameras.json"
    if content and isinstance(content, list) and content[0]:
        content = [CAMERA | pose | content[0]]
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"cameras\.json: "):
        read_cameras(path)


def test_read_cameras_names_a_missing_file(tmp_path):
    with pytest.raises(FileError, match=r"cameras\.json: cannot be read"):
        read_cameras(tmp_path / "cameras.json")


def keyframe(eye, fov=45, width=40, height=30):
    return Camera(look_at(eye, (0, 0, 0)), intrinsics(width, height, fov), width, height)


def test_interpolate_passes_through_the_cameras_and_is_smooth():
    cameras = [keyframe(eye) for eye in ((0, 0, -3), (1, -1, -3), (3, 0, -1), (3, 0, 1))]
    path = interpolate(cameras, 31)
    for i, camera in enumerate(cameras):
        assert torch.allclose(path[10 * i].viewmat, camera.viewmat, atol=1e-5)
        assert torch.allclose(path[10 * i].K, camera.K, atol=1e-4)
    for camera in path:
        rotation = camera.viewmat[:3, :3]
        assert torch.allclose(rotation @ rotation.T, torch.eye(3), atol=1e-5)
    positions = torch.stack([camera.position for camera in path])
    jerk = positions.diff(n=3, dim=0).norm(dim=-1)
    assert jerk.max() < 0.01  # that of a polyline is 0.1 at its corners


def test_interpolate_between_sizes_keeps_the_field_of_view():
    path = interpolate([keyframe((0, 0, -3)), keyframe((0, 0, -2), 45, 80, 60)], 3)
    assert [(camera.width, camera.height) for camera in path] == [(40, 30)] * 3
    assert torch.allclose(path[2].K, path[0].K, atol=1e-4)


@pytest.mark.parametrize(("n", "frames"), [(0, 5), (1, 5), (2, 0)])
def test_interpolate_needs_two_cameras_and_a_frame(n, frames):
    with pytest.raises(ArgumentError, match="cameras: expected at least two" if frames else "frames: expected"):
        interpolate([keyframe((0, 0, -3 - i)) for i in range(n)], frames)
