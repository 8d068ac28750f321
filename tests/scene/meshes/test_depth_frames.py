"""Depth frames of models: z along the axis, expected and median depth, what is not known, lenses."""

import math

import pytest
import torch

from tests.support.shapes import sphere_of_gaussians
from tsplat import UnsupportedError
from tsplat.scene import Camera, Gaussians, intrinsics, look_at
from tsplat.scene.gaussians import concatenate
from tsplat.scene.meshes.depth_frames import DepthRenderer, as_pinhole


def wall(z, opacity, *, n=40, half=6.0):
    """Discs in a plane of constant z."""
    grid = torch.linspace(-half, half, n)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    size = half / n * 2.5
    return Gaussians(
        means=torch.stack([x.flatten(), y.flatten(), torch.full((n * n,), z)], 1),
        log_scales=torch.tensor([size, size, 1e-3]).log().expand(n * n, 3).clone(),
        quats=torch.tensor([[1.0, 0, 0, 0]]).expand(n * n, 4).clone(),
        opacity_logits=torch.full((n * n,), opacity).logit(),
        sh0=torch.zeros(n * n, 1, 3),
        shN=torch.zeros(n * n, 0, 3),
    )


CAMERA = Camera(torch.eye(4), intrinsics(32, 24, fov=70), 32, 24, near=0.01)


@pytest.mark.parametrize(
    ("surfels", "depth"),
    [
        (False, "expected"),
        pytest.param(False, "median", marks=pytest.mark.slow),
        (True, "expected"),
        (True, "median"),
    ],
)
def test_depth_is_z(surfels, depth):
    gaussians = wall(4.0, 0.9)
    frame = DepthRenderer(gaussians.as_surfels() if surfels else gaussians, depth, "auto").render(CAMERA)
    assert torch.allclose(frame.depths, torch.full_like(frame.depths, 4.0), atol=1e-3)
    points = frame.points()
    assert torch.allclose(points[:, 2], torch.tensor(4.0), atol=1e-3)
    center = frame.weights[12, 16]
    assert center > 0.99 and frame.weights[0, 0] < center


# With 40 rows, one slab has Gaussians of both walls, and its depth lies between them.
@pytest.mark.parametrize(("n", "tolerance"), [(36, 0.02), (40, 0.05)])
@pytest.mark.parametrize("surfels", [False, True])
def test_the_median_is_of_the_surface_that_takes_half_of_the_light(surfels, n, tolerance):
    both = concatenate([wall(2.0, 0.03, n=n), wall(4.0, 0.95, n=n)])
    both = both.as_surfels() if surfels else both
    expected, median = (DepthRenderer(both, kind, "auto").render(CAMERA).depths for kind in ("expected", "median"))
    assert ((expected > 2.3) & (expected < 3.95)).all()
    assert torch.allclose(median, torch.full_like(median, 4.0), atol=tolerance)


@pytest.mark.parametrize("surfels", [False, True])
@pytest.mark.parametrize("depth", ["expected", "median"])
def test_cameras_that_see_no_gaussian_see_no_surface(surfels, depth):
    behind = wall(-4.0, 0.9)
    frame = DepthRenderer(behind.as_surfels() if surfels else behind, depth, "auto").render(CAMERA)
    assert (frame.depths == math.inf).all()


def test_the_median_of_discs_is_of_their_planes():
    """A wall that is seen from the side."""
    camera = Camera(look_at((2.6, 0, 2.5), (0, 0, 4)), intrinsics(48, 32, fov=50), 48, 32, near=0.01)
    frame = DepthRenderer(wall(4.0, 0.9).as_surfels(), "median", "auto").render(camera)
    assert frame.shown.sum() > 700 and (frame.points()[:, 2] - 4).abs().mean() < 0.01


def test_the_median_averages_the_discs_of_a_rough_surface():
    """One disc is 0.05 away from the wall, and so would the depth be."""
    discs = wall(4.0, 0.5).as_surfels()
    discs.means[:, 2] += 0.05 * torch.randn(len(discs), generator=torch.Generator().manual_seed(0))
    camera = Camera(look_at((2.6, 0, 2.5), (0, 0, 4)), intrinsics(48, 32, fov=50), 48, 32, near=0.01)
    frame = DepthRenderer(discs, "median", "auto").render(camera)
    assert frame.shown.sum() > 700 and (frame.points()[:, 2] - 4).abs().mean() < 0.03


def test_pixels_without_a_surface_and_those_that_are_not_known():
    ball = sphere_of_gaussians(800)
    camera = Camera(look_at((0, 0, -3), (0, 0, 0)), intrinsics(48, 48, fov=60), 48, 48, near=0.01)
    frame = DepthRenderer(ball, "expected", "auto").render(camera)
    assert frame.depths[0, 0] == math.inf and abs(float(frame.depths[24, 24]) - 2) < 0.2
    assert frame.weights[24, 24] > 0.5 and frame.weights[0, 0] == pytest.approx(0.1)
    faint = DepthRenderer(sphere_of_gaussians(400, opacity=0.1), "median", "auto").render(camera)
    assert faint.depths[24, 24] == 0 and not faint.shown.any()


def test_lenses_are_replaced_by_pinhole_cameras():
    distorted = Camera(torch.eye(4), CAMERA.K, 32, 24, "fisheye", distortion=torch.zeros(4), near=0.01)
    camera = as_pinhole(distorted)
    assert (camera.model, camera.distortion) == ("pinhole", None) and camera.K is distorted.K
    with pytest.raises(UnsupportedError, match="expected pinhole or fisheye cameras, found 'ortho'"):
        as_pinhole(Camera(torch.eye(4), CAMERA.K, 32, 24, "ortho"))
