"""The cameras of a run: reading them, and framing by them."""

import dataclasses
import math

import pytest
import torch

from tests.support.training_scenes import make_checkpoint, make_gaussians
from tsplat import ArgumentError
from tsplat.errors import FileError
from tsplat.scene import Camera, View, intrinsics, look_at
from tsplat.scene.cameras import panorama_intrinsics
from tsplat.support.files import write_json
from tsplat.training import write_checkpoint
from tsplat.viewing.run_cameras import FOV, find_background, find_cameras, frame_by_cameras, mean_up, vertical_fov
from tsplat.viewing.trajectories import choose_camera, describe_camera, describe_cameras, read_cameras

K = torch.tensor([[50.0, 0, 21], [0, 52, 14], [0, 0, 1]])
GAUSSIANS = make_gaussians()


def camera(eye, target=(0.0, 0.0, 0.0), up=(0.0, 0.0, 1.0)):
    return Camera(look_at(eye, target, up), intrinsics(40, 30, 45), 40, 30)


def dome(target=(0.0, 0.0, 0.0)):
    """Cameras on the upper half of a sphere of radius 4 around a target, z up."""
    eyes = []
    for elevation in (10, 40, 70):
        for azimuth in range(0, 360, 30):
            a, e = math.radians(azimuth), math.radians(elevation)
            eyes.append([4 * math.cos(a) * math.cos(e), 4 * math.sin(a) * math.cos(e), 4 * math.sin(e)])
    return [camera([x + t for x, t in zip(eye, target)], target) for eye in eyes]


def test_dome_of_cameras_with_z_up():
    target = (1.0, -2.0, 0.5)
    cameras = dome(target)
    assert mean_up(cameras) == pytest.approx([0, 0, 1], abs=1e-6)
    assert vertical_fov(cameras) == pytest.approx(45)
    eye, center = frame_by_cameras(GAUSSIANS, cameras, (0, 0, 1))
    assert center.tolist() == pytest.approx(target, abs=1e-4)
    offset = eye - center
    assert float(offset.norm()) == pytest.approx(4, abs=1e-4)
    assert math.degrees(math.asin(float(offset[2] / offset.norm()))) == pytest.approx(40, abs=1e-3)


def test_parallel_and_diverging_cameras_look_at_the_visible_gaussians():
    row = [camera((x, 0.0, -3.0), (x, 0.0, 0.0), (0.0, -1.0, 0.0)) for x in (-0.4, -0.2, 0.0, 0.2, 0.4)]
    eye, center = frame_by_cameras(GAUSSIANS, row, (0, -1, 0))
    assert center[0] == pytest.approx(0, abs=1e-5)
    assert abs(float(center[2])) < 0.5
    assert float(eye[2]) == pytest.approx(-3, abs=0.1)
    outward = [camera((0.1 * c, 0.1 * s, 0.0), (c, s, 0.0)) for c, s in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    eye, center = frame_by_cameras(GAUSSIANS, outward, (0, 0, 1))
    assert torch.isfinite(eye).all()
    assert not torch.equal(eye, center)


def test_panoramas_tell_no_field_of_view_and_look_everywhere(tmp_path):
    K = panorama_intrinsics(40, 20)
    cameras = [dataclasses.replace(c, K=K, height=20, model="equirectangular") for c in dome((1.0, -2.0, 0.5))]
    assert vertical_fov(cameras) == FOV
    assert vertical_fov([*cameras, camera((1, 1, 1))]) == pytest.approx(45)
    _, center = frame_by_cameras(GAUSSIANS, cameras, (0, 0, 1))
    assert (center - torch.tensor([1.0, -2.0, 0.5])).norm() > 0.1  # that to which the middles of the panoramas point
    write_json(tmp_path / "cameras.json", [describe_camera(c, i) for i, c in enumerate(cameras)])
    for read, c in zip(read_cameras(tmp_path / "cameras.json"), cameras, strict=True):
        assert read.model == "equirectangular"
        torch.testing.assert_close(read.K, c.K)


def test_cameras_of_rational_lenses_round_trip(tmp_path):
    lens = dataclasses.replace(camera((0.0, 3, 5)), distortion=torch.arange(8) / 16)
    write_json(tmp_path / "cameras.json", [describe_camera(lens, 0)])
    assert read_cameras(tmp_path / "cameras.json")[0].distortion.tolist() == lens.distortion.tolist()
    for wrong in (dataclasses.replace(lens, model="fisheye"), dataclasses.replace(lens, distortion=torch.zeros(5))):
        write_json(tmp_path / "cameras.json", [describe_camera(wrong, 0)])
        with pytest.raises(FileError, match="expected distortion of 4 numbers, or 8 of a pinhole lens"):
            read_cameras(tmp_path / "cameras.json")


def test_cameras_without_a_common_up_direction_have_none():
    ups = [(1.0, 0, 0), (-1.0, 0, 0), (0, 1.0, 0), (0, -1.0, 0)]
    assert mean_up([camera((0.0, 0, 5), up=up) for up in ups]) is None


def views():
    viewmat = look_at((1.0, 2, 3), (0, 0, 0))
    image = torch.zeros(28, 42, 3, dtype=torch.uint8)
    lenses = {"fisheye": DISTORTION}
    return [View(image, Camera(viewmat, K, 42, 28, model, name, False, lenses.get(model))) for name, model in NAMES]


DISTORTION = torch.tensor([0.1, -0.2, 0.3, 0.01])
NAMES = [("b/2.png", "pinhole"), ("a/1.png", "fisheye"), ("a/2.png", "pinhole")]


def test_cameras_of_a_run_round_trip(tmp_path):
    found = views()
    checkpoint = write_checkpoint(tmp_path / "run" / "checkpoints", make_checkpoint())
    assert find_cameras(tmp_path / "run") == []
    write_json(tmp_path / "run" / "cameras.json", describe_cameras(found[:2], found[2:]))
    (tmp_path / "run" / "point_cloud.ply").touch()
    for model in (tmp_path / "run", checkpoint.parent, checkpoint, tmp_path / "run" / "point_cloud.ply"):
        cameras = find_cameras(model)
        assert [(c.name, c.model, c.is_test) for c in cameras] == [
            ("a/1.png", "fisheye", False), ("a/2.png", "pinhole", True), ("b/2.png", "pinhole", False),
        ]  # fmt: skip
        assert (cameras[0].width, cameras[0].height) == (42, 28)
        assert torch.equal(cameras[0].K, K)
        assert cameras[0].distortion.tolist() == DISTORTION.tolist() and cameras[1].distortion is None
        assert torch.allclose(cameras[0].viewmat, found[0].camera.viewmat, atol=1e-6)
    # Those beside a model of another program are not its own.
    write_json(tmp_path / "cameras.json", describe_cameras(found, []))
    (tmp_path / "model.ply").touch()
    assert find_cameras(tmp_path / "model.ply") == []


def test_choose_camera(tmp_path):
    write_json(tmp_path / "cameras.json", describe_cameras(views(), []))
    cameras = read_cameras(tmp_path / "cameras.json")
    assert [choose_camera(cameras, view).name for view in ("0", "1.png", "1", "a/2.png")] == [
        "a/1.png", "a/1.png", "a/1.png", "a/2.png",
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="2 views have the name '2'"):
        choose_camera(cameras, "2")
    with pytest.raises(ArgumentError, match=r"there is no view '7'; expected an index from 0 to 2 or a name such as"):
        choose_camera(cameras, "7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"background": [0, 0.5, 1]}', (0, 0.5, 1)),
        ('{"background": null}', None),
        ('{"background": [0, NaN, 0]}', None),
        ('{"background": [0, 0, 2]}', None),
        ('{"background": [0, 0, 1%s]}' % ("0" * 400), None),
        ("[" * 100_000, None),
    ],
    ids=lambda value: str(value)[:24],
)
def test_background_is_that_of_the_configuration(text, expected, tmp_path):
    write_checkpoint(tmp_path / "checkpoints", make_checkpoint(7, 5))
    (tmp_path / "config.json").write_text(text)
    assert find_background(tmp_path) == expected
