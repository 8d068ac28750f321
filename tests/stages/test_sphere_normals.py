"""Normals of a unit sphere whose cap is covered by 2D Gaussians: placed on it, and fitted to images of it."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import normalize

from tsplat.rendering import render_views
from tsplat.scene import Camera, Gaussians, intrinsics, look_at
from tsplat.scene.capture.views import View
from tsplat.scene.images import to_bytes
from tsplat.training import Config, Trainer

UP = (0.1, -0.9, 0.3)


def cap(n, degrees):
    """Directions on a cap around z, evenly spaced. [n, 3]"""
    i = torch.arange(n) + 0.5
    z = 1 - (1 - math.cos(math.radians(degrees))) * i / n
    turn, radius = math.pi * (3 - math.sqrt(5)) * i, (1 - z * z).sqrt()
    return torch.stack([radius * turn.cos(), radius * turn.sin(), z], -1)


def camera_at(eye, size, fov):
    return Camera(look_at(eye.tolist(), (0, 0, 1), up=UP), intrinsics(size, size, fov), size, size)


def trace(camera, shift=(0.5, 0.5)):
    """What the rays of pixels meet of the unit sphere, which is its normal, too; or zero. [H, W, 3]"""
    y, x = torch.meshgrid(torch.arange(camera.height) + shift[1], torch.arange(camera.width) + shift[0], indexing="ij")
    K, rotation = camera.K, camera.viewmat[:3, :3]
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
    rays, eye = normalize(rays @ rotation, dim=-1), camera.position.float()
    along = rays @ eye
    squares = along**2 - eye @ eye + 1
    hits = eye - (along + squares.clamp_min(0).sqrt())[..., None] * rays
    return torch.where(squares[..., None] > 0, hits, 0.0)


def errors_of(surfels, camera, degrees):
    """Angles between rendered and true normals, in degrees, on a cap."""
    with torch.no_grad():
        _, alphas, meta = render_views(surfels, [camera], render_mode="RGB+ED")
    hits = trace(camera)
    inside = hits[..., 2] > math.cos(math.radians(degrees))
    assert inside.sum() > 500 and alphas[0, ..., 0][inside].min() > 0.8
    cosines = (normalize(meta["render_normals"][0], dim=-1) * hits).sum(-1)[inside]
    return cosines.clamp(max=1).acos().rad2deg()


@pytest.mark.triton
def test_normals_are_off_by_about_the_size_of_a_disc():
    """Of overlapping discs, those in front count most, whose centers are nearer, and whose normals face the camera."""
    errors = []
    for sigma in (0.04, 0.02, 0.01):
        points = cap(int(2 * math.pi * (1 - math.cos(math.radians(9.0))) / (1.25 * sigma) ** 2), 9.0)
        n = len(points)
        cloud = Gaussians.from_points(points, points.clamp(0, 1), sh_degree=0)
        surfels = dataclasses.replace(
            cloud, log_scales=torch.full((n, 3), math.log(sigma)), opacity_logits=torch.full((n,), 2.2),
            quats=torch.stack([1 + points[:, 2], -points[:, 1], points[:, 0], torch.zeros(n)], -1),
        ).as_surfels()  # fmt: skip
        camera = camera_at(torch.tensor([4 * math.sin(0.5), 0, 4 * math.cos(0.5)]), 96, 8.0)
        errors.append(float(errors_of(surfels, camera, 5.0).mean()) / math.degrees(sigma))
    assert all(0.8 < error < 1.2 for error in errors)


@pytest.mark.slow
@pytest.mark.triton
def test_normals_of_a_fitted_sphere_are_right_within_a_degree():
    generator = torch.Generator().manual_seed(0)
    waves = 36 * torch.randn(24, 3, generator=generator)
    phases, weights = 6.28 * torch.rand(24, generator=generator), torch.randn(24, 3, generator=generator)
    n, size, fov = 2400, 80, 14.0

    def texture(points):
        return (0.5 + 0.25 * torch.sin(points @ waves.T + phases) @ weights / math.sqrt(12)).clamp(0, 1)

    views = []
    for eye in 3.4 * cap(24, 50.0):
        camera = camera_at(eye, size, fov)
        samples = [(a, b) for a in (1 / 6, 1 / 2, 5 / 6) for b in (1 / 6, 1 / 2, 5 / 6)]
        image = sum(texture(trace(camera, sample)) for sample in samples) / 9
        views.append(View(to_bytes(image), camera, mask=trace(camera)[..., 2] > math.cos(math.radians(16.0))))
    points = cap(n, 20.0)
    points = points * (1 + 0.002 * torch.randn(n, 1, generator=generator))
    cloud = Gaussians.from_points(points, texture(points), sh_degree=0)
    quats = normalize(torch.randn(n, 4, generator=generator), dim=-1)
    start = dataclasses.replace(cloud, quats=quats, opacity_logits=torch.ones(n)).as_surfels()
    config = Config(steps=500, normal_weight=1.0, sh_interval=1, means_rate=2e-4, quats_rate=3e-3)
    trainer = Trainer(start, views, config)
    cameras = [camera_at(eye + 0.05, size, fov) for eye in 3.4 * cap(4, 35.0)]
    for _ in range(config.steps):
        trainer.advance()
    found = torch.cat([errors_of(trainer.gaussians, camera, 13.0) for camera in cameras]).mean()
    assert found < 1
