"""The procedural scene: what rays hit, and whether pictures and cameras agree."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import intrinsics, look_at, procedural_capture
from tsplat.scene.capture.procedural import SKY, SOLIDS, distance, trace


def test_rays_hit_a_ball_where_they_should():
    ball = SOLIDS[1]
    radius = float(-ball.distance(torch.tensor([ball.center])))
    eye = (ball.center[0], ball.center[1], -6.0)
    viewmat, K = look_at(eye, ball.center), intrinsics(64, 48, 5)
    picture, points, _ = trace(viewmat, K, 64, 48)
    # Nothing else is in sight, and the ball is larger than the picture.
    assert len(points) == 64 * 48
    torch.testing.assert_close(
        (points - torch.tensor(ball.center)).norm(dim=-1), torch.full((64 * 48,), radius), atol=1e-3, rtol=0
    )
    nearest = points.view(48, 64, 3)[24, 32]
    assert float(nearest[2]) == pytest.approx(ball.center[2] - radius, abs=1e-2)
    assert picture.shape == (48, 64, 3)


def test_rays_that_miss_see_the_sky():
    viewmat = look_at((0.0, -2.0, -6.0), (0.0, -20.0, 0.0))
    picture, points, _ = trace(viewmat, intrinsics(16, 12, 30), 16, 12)
    assert len(points) == 0
    torch.testing.assert_close(picture, torch.tensor(SKY).expand(12, 16, 3))


@pytest.mark.parametrize("index", range(len(SOLIDS)))
def test_distances_are_distances(index):
    """The gradient of a distance has norm 1, and the ball around a solid holds it."""
    solid = SOLIDS[index]
    torch.manual_seed(index)
    directions = torch.nn.functional.normalize(torch.randn(500, 3, dtype=torch.float64), dim=-1)
    places = (torch.tensor(solid.center) + 1.3 * solid.reach * directions).requires_grad_()
    found = solid.distance(places)
    assert (found > 0).all()
    (slope,) = torch.autograd.grad(found.sum(), places)
    torch.testing.assert_close(slope.norm(dim=-1), torch.ones(500, dtype=torch.float64))
    around = torch.tensor(solid.center) + 1.001 * solid.reach * directions
    assert (solid.distance(around) >= 0).all()


def test_what_one_camera_sees_another_sees_in_its_place():
    """Surface points of one picture fall on pixels of their color in another, unless something is before them."""
    capture = procedural_capture(192, 144, n_train=2, n_test=1, n_points=4000, position_noise=0.0, color_noise=0.0)
    assert distance(capture.points).abs().max() < 1e-3
    view = capture.test[0]
    center = -view.viewmat[:3, :3].T @ view.viewmat[:3, 3]
    camera = capture.points @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
    pixels = (camera @ view.K.T)[:, :2] / camera[:, 2:]
    x, y = pixels.floor().long().unbind(-1)
    inside = (x >= 0) & (x < 192) & (y >= 0) & (y < 144)
    # Seen if nothing lies within the first nine tenths of the way from the camera.
    ts = torch.linspace(0, 0.97, 200)[:, None, None]
    way = center + ts * (capture.points - center)
    seen = inside & (distance(way.view(-1, 3)).view(200, -1) > 0.01).all(0)
    assert seen.sum() > 500
    error = (view.pixels[y[seen], x[seen]] - capture.colors[seen]).abs().amax(-1)
    assert error.median() < 0.03
    assert (error < 0.15).float().mean() > 0.8


def test_a_seed_decides_the_cloud_and_nothing_else():
    size = dict(width=24, height=18, n_train=3, n_test=2, n_points=200, supersampling=1)
    a, b, c = (procedural_capture(**size, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(a.points, b.points)
    assert torch.equal(a.colors, b.colors)
    assert not torch.equal(a.points, c.points)
    assert all(torch.equal(u.image, v.image) for u, v in zip(a.train + a.test, c.train + c.test))
    assert (len(a.train), len(a.test), len(a.points)) == (3, 2, 200)
    assert a.colors.amin() >= 0
    assert a.colors.amax() <= 1
    assert {tuple(view.viewmat.flatten().tolist()) for view in a.train}.isdisjoint(
        tuple(view.viewmat.flatten().tolist()) for view in a.test
    )


def test_noise_is_as_large_as_asked():
    size = dict(width=48, height=36, n_train=4, n_test=1, n_points=2000, supersampling=1)
    clean, noisy = (procedural_capture(**size, position_noise=noise, color_noise=0.0) for noise in (0.0, 0.05))
    assert float((noisy.points - clean.points).std()) == pytest.approx(0.05, rel=0.1)
    assert torch.equal(noisy.colors, clean.colors)


def test_supersampling_smooths_edges():
    viewmat, K = look_at((0.0, -1.5, -4.0), (0.0, -0.3, 0.0)), intrinsics(40, 30, 45)
    fine = trace(viewmat, K, 40, 30, 8)[0]
    rough, smooth = (math.sqrt(float((trace(viewmat, K, 40, 30, n)[0] - fine).square().mean())) for n in (1, 3))
    assert smooth < 0.5 * rough


@pytest.mark.parametrize("name", ["width", "n_train", "n_test", "n_points", "supersampling"])
def test_sizes_without_a_meaning(name):
    with pytest.raises(ArgumentError, match=name):
        procedural_capture(**{name: 0})
