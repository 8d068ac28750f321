"""Tests of the procedural scene: ray hits, and the consistency of images and cameras."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import intrinsics, look_at, orbit, procedural_capture
from tsplat.scene.capture.procedural import FOV, ORBIT_RADIUS, SKY, SOLIDS, TARGET, distance, trace


def test_rays_hit_a_ball_at_its_radius():
    ball = SOLIDS[1]
    center = torch.tensor(ball.center)[:, None]
    radius = float(-ball.distance(center))
    eye = (ball.center[0], ball.center[1], -6.0)
    viewmat, K = look_at(eye, ball.center), intrinsics(64, 48, 5)
    (image,), points, _ = trace(viewmat[None], K, 64, 48)
    # The ball fills the image.
    assert points.shape == (3, 64 * 48)
    torch.testing.assert_close((points - center).norm(dim=0), torch.full((64 * 48,), radius), atol=1e-3, rtol=0)
    nearest = points.view(3, 48, 64)[:, 24, 32]
    assert float(nearest[2]) == pytest.approx(ball.center[2] - radius, abs=1e-2)
    assert image.shape == (48, 64, 3)


def test_rays_without_a_hit_have_the_color_of_the_sky():
    viewmat = look_at((0.0, -2.0, -6.0), (0.0, -20.0, 0.0))
    images, points, _ = trace(viewmat[None], intrinsics(16, 12, 30), 16, 12)
    assert points.shape == (3, 0)
    torch.testing.assert_close(images, torch.tensor(SKY).expand(1, 12, 16, 3))


def test_views_traced_together_match_single_views():
    viewmats = orbit(TARGET, ORBIT_RADIUS, [0.0, 130.0, 250.0], [20.0, 35.0, 50.0])
    images, points, colors = trace(viewmats, intrinsics(40, 30, FOV), 40, 30, 2)
    single = [trace(viewmat[None], intrinsics(40, 30, FOV), 40, 30, 2) for viewmat in viewmats]
    torch.testing.assert_close(images, torch.cat([image for image, _, _ in single]))
    torch.testing.assert_close(points, torch.cat([points for _, points, _ in single], 1))
    torch.testing.assert_close(colors, torch.cat([colors for _, _, colors in single], 1))


@pytest.mark.parametrize("index", range(len(SOLIDS)))
def test_solids_are_signed_distance_functions(index):
    """The gradient has norm 1, and the bounding sphere and box contain the solid."""
    solid = SOLIDS[index]
    torch.manual_seed(index)
    directions = torch.nn.functional.normalize(torch.randn(3, 500, dtype=torch.float64), dim=0)
    center, half = (torch.tensor(point, dtype=torch.float64)[:, None] for point in (solid.center, solid.half))
    points = (center + 1.3 * solid.radius * directions).requires_grad_()
    found = solid.distance(points)
    assert (found > 0).all()
    (gradient,) = torch.autograd.grad(found.sum(), points)
    torch.testing.assert_close(gradient.norm(dim=0), torch.ones(500, dtype=torch.float64))
    assert (solid.distance(center + 1.001 * solid.radius * directions) >= 0).all()
    on_box = half * directions / directions.abs().amax(0)
    assert (solid.field(1.001 * on_box) >= 0).all()


@pytest.mark.slow
def test_images_are_multi_view_consistent():
    """Surface points of one image project to pixels of their color in another one, unless they are occluded."""
    clean = dict(supersampling=1, position_noise=0.0, color_noise=0.0)
    capture = procedural_capture(384, 288, n_train=2, n_test=1, n_points=4000, **clean)
    assert distance(capture.points.T).abs().max() < 1e-3
    view = capture.test[0]
    center = -view.camera.viewmat[:3, :3].T @ view.camera.viewmat[:3, 3]
    camera = capture.points @ view.camera.viewmat[:3, :3].T + view.camera.viewmat[:3, 3]
    pixels = (camera @ view.camera.K.T)[:, :2] / camera[:, 2:]
    x, y = pixels.floor().long().unbind(-1)
    inside = (x >= 0) & (x < 384) & (y >= 0) & (y < 288)
    # Visible if there is no surface on the way from the camera.
    ts = torch.linspace(0, 0.97, 200)[:, None, None]
    samples = center + ts * (capture.points - center)
    visible = inside & (distance(samples.view(-1, 3).T).view(200, -1) > 0.01).all(0)
    assert visible.sum() > 500
    error = (view.pixels[y[visible], x[visible]] - capture.colors[visible]).abs().amax(-1)
    assert error.median() < 0.03
    assert (error < 0.15).float().mean() > 0.85


def test_seed_determines_only_the_points():
    size = dict(width=24, height=18, n_train=3, n_test=2, n_points=200, supersampling=1)
    a, b, c = (procedural_capture(**size, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(a.points, b.points)
    assert torch.equal(a.colors, b.colors)
    assert not torch.equal(a.points, c.points)
    assert all(torch.equal(u.image, v.image) for u, v in zip(a.train + a.test, c.train + c.test))
    assert (len(a.train), len(a.test), len(a.points)) == (3, 2, 200)
    assert a.colors.amin() >= 0
    assert a.colors.amax() <= 1
    assert {tuple(view.camera.viewmat.flatten().tolist()) for view in a.train}.isdisjoint(
        tuple(view.camera.viewmat.flatten().tolist()) for view in a.test
    )


def test_position_noise_has_the_given_standard_deviation():
    size = dict(width=48, height=36, n_train=4, n_test=1, n_points=2000, supersampling=1)
    clean, noisy = (procedural_capture(**size, position_noise=noise, color_noise=0.0) for noise in (0.0, 0.05))
    assert float((noisy.points - clean.points).std()) == pytest.approx(0.05, rel=0.1)
    assert torch.equal(noisy.colors, clean.colors)


def test_supersampling_reduces_aliasing():
    viewmat, K = look_at((0.0, -1.5, -4.0), (0.0, -0.3, 0.0)), intrinsics(40, 30, 45)
    fine, aliased, smooth = (trace(viewmat[None], K, 40, 30, n)[0] for n in (8, 1, 3))
    aliased, smooth = (math.sqrt(float((images - fine).square().mean())) for images in (aliased, smooth))
    assert smooth < 0.5 * aliased


@pytest.mark.parametrize("name", ["width", "n_train", "n_test", "n_points", "supersampling"])
def test_invalid_size_is_rejected(name):
    with pytest.raises(ArgumentError, match=name):
        procedural_capture(**{name: 0})
