"""Tests of cameras, by projecting points."""

import dataclasses
import math

import pytest
import torch

from tests.support.captures import project
from tsplat import ArgumentError, fully_fused_projection
from tsplat.scene import Camera, intrinsics, look_at, orbit
from tsplat.scene.cameras import centers, project_points, rasterization_arguments, resize_camera


@pytest.mark.parametrize("up", [(0, -1, 0), (0, 0, 1), (0.3, 2.0, -0.4)])
def test_look_at_centers_the_target_and_points_up(up):
    eye, target = torch.tensor([1.0, -2.0, -5.0]), torch.tensor([0.5, 0.25, 1.0])
    viewmat, K = look_at(eye.tolist(), target.tolist(), up), intrinsics(640, 480, 60)
    rotation = viewmat[:3, :3]
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(3))
    assert float(torch.linalg.det(rotation)) == pytest.approx(1)
    points = torch.stack([target, target + 0.1 * torch.tensor(up, dtype=torch.float32)])
    pixels, depths = project(points, viewmat, K)
    torch.testing.assert_close(pixels[0].float(), torch.tensor([320.0, 240.0]))
    assert float(depths[0]) == pytest.approx(float((target - eye).norm()))
    assert float(pixels[1, 0]) == pytest.approx(320, abs=1e-2)
    assert pixels[1, 1] < 240  # y points down


def test_look_at_along_z_is_the_identity():
    viewmat = look_at((0, 0, -3), (0, 0, 0), up=(0, -1, 0))
    torch.testing.assert_close(viewmat[:3, :3], torch.eye(3))


def test_fov_is_vertical():
    K = intrinsics(640, 480, 60)
    edge = torch.tensor([[0.0, math.tan(math.radians(30)), 1.0]])
    pixels, _ = project(edge, torch.eye(4), K)
    assert float(pixels[0, 1]) == pytest.approx(480)
    assert K[0, 0] == K[1, 1]


@pytest.mark.parametrize(
    ("eye", "target", "up", "words"),
    [
        ((1, 2, 3), (1, 2, 3), (0, 1, 0), "eye"),
        ((0, 0, 0), (0, 0, 0), (0, 1, 0), "eye"),
        ((math.nan, 0, 0), (0, 0, 1), (0, 1, 0), "eye"),
        ((0, 0, 0), (0, math.inf, 1), (0, 1, 0), "target"),
        ((0, 0, 0), (0, 0, 1), (0, 0, 0), "up"),
        ((0, 0, 0), (0, 0, 1), (0, 0, -2), "up"),
        ((0, 0), (0, 0, 1), (0, 1, 0), "eye"),
    ],
)
def test_look_at_rejects_degenerate_arguments(eye, target, up, words):
    with pytest.raises(ArgumentError, match=words):
        look_at(eye, target, up)


@pytest.mark.parametrize("fov", [0, -10, 180, math.nan])
def test_invalid_fov_is_rejected(fov):
    with pytest.raises(ArgumentError, match="fov"):
        intrinsics(10, 10, fov)


@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 0.0, 2.0)])
def test_orbit_has_the_given_radius_azimuths_and_elevations(up):
    target, elevations = torch.tensor([1.0, 2.0, 3.0]), [10.0, 45.0, -20.0, 0.0]
    viewmats = orbit(target.tolist(), 4.0, [0, 90, 180, 300], elevations, up)
    eyes = torch.linalg.inv(viewmats)[:, :3, 3]
    torch.testing.assert_close(centers(viewmats), eyes, atol=1e-5, rtol=0)
    offsets = (eyes - target) / 4
    torch.testing.assert_close(offsets.norm(dim=-1), torch.ones(4), atol=1e-5, rtol=0)
    axis = torch.tensor(up) / torch.tensor(up).norm()
    torch.testing.assert_close(offsets @ axis, torch.tensor(elevations).deg2rad().sin(), atol=1e-5, rtol=0)
    flat = torch.nn.functional.normalize(offsets - (offsets @ axis)[:, None] * axis, dim=-1)
    torch.testing.assert_close(flat @ flat[0], torch.tensor([0, 90, 180, 300]).deg2rad().cos(), atol=1e-5, rtol=0)


def test_cameras_as_arguments_of_rasterization():
    viewmat = torch.eye(4).requires_grad_()
    cameras = [
        Camera(viewmat, intrinsics(8, 6, 50), 8, 6, "ortho"), Camera(torch.eye(4), intrinsics(8, 6, 60), 8, 6, "ortho")
    ]  # fmt: skip
    arguments = rasterization_arguments(cameras)
    arguments["viewmats"].sum().backward()
    assert torch.equal(viewmat.grad, torch.ones(4, 4))
    assert torch.equal(arguments["Ks"], torch.stack([camera.K for camera in cameras]))
    assert [arguments[name] for name in ("width", "height", "camera_model")] == [8, 6, "ortho"]
    alone, none = rasterization_arguments(cameras[:1]), rasterization_arguments(cameras[:1], 0)
    assert alone["viewmats"].data_ptr() == viewmat.data_ptr(), "a single camera is not copied"
    assert alone["viewmats"].shape == (1, 4, 4) and none["viewmats"].shape == (0, 4, 4)
    assert none["Ks"].shape == (0, 3, 3) and none["camera_model"] == "ortho"


@pytest.mark.parametrize("change", [dict(width=9), dict(height=9), dict(model="fisheye")])
def test_cameras_of_one_call_are_alike(change):
    first = Camera(torch.eye(4), intrinsics(8, 6, 50), 8, 6)
    with pytest.raises(ArgumentError, match=r"expected 8×6 pinhole cameras as the first, found a .*(9|fisheye)"):
        rasterization_arguments([first, dataclasses.replace(first, **change)])


def test_camera_on_another_device():
    camera = Camera(torch.eye(4), intrinsics(8, 6, 50), 8, 6, name="a", is_test=True).to("meta")
    assert camera.viewmat.is_meta and camera.K.is_meta and camera.name == "a" and camera.is_test


def test_resized_cameras_see_the_same():
    K = torch.tensor([[500.0, 0, 310], [0, 520, 190], [0, 0, 1]])
    camera = Camera(look_at((1, -2, -5), (0, 0, 0)), K, 640, 400)
    small = resize_camera(camera, 160)
    assert (small.width, small.height) == (160, 100)
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    pixels, resized = (project(points, one.viewmat, one.K)[0] for one in (camera, small))
    torch.testing.assert_close(resized, pixels / 4)
    assert resize_camera(camera, 640) is camera


@pytest.mark.parametrize("model", ["pinhole", "fisheye", "ortho"])
def test_projected_points_are_those_of_the_rasterizer(model):
    generator = torch.Generator().manual_seed(0)
    points = 4 * torch.randn(2000, 3, generator=generator)
    camera = Camera(look_at((0.5, -1, -3), (0, 0, 0)), intrinsics(80, 60, 60), 80, 60, model)
    sizes, quats = torch.full((2000, 3), 1e-6), torch.eye(1, 4).expand(2000, 4)
    radii, means2d, z, *_ = fully_fused_projection(
        points, None, quats, sizes, camera.viewmat[None], camera.K[None], 80, 60, eps2d=1e-9, camera_model=model
    )
    *pixels, depths, inside = project_points(camera, points)
    seen = inside & (z[0] > 0.01)
    assert 20 < seen.sum() < 1900
    torch.testing.assert_close(torch.stack(pixels, -1)[seen], means2d[0, seen], rtol=1e-4, atol=1e-3)
    assert (radii[0, seen] > 0).all()
    if model != "fisheye":  # whose lens also shows points at more than a right angle
        torch.testing.assert_close(depths[seen], z[0, seen])
        assert (depths[inside] > 0).all()
