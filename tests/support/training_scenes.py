"""A small scene for tests of training: random Gaussians, and views around them."""

import dataclasses
import math

import torch
from PIL import Image

from tsplat.rendering import render
from tsplat.scene import Camera, Gaussians, View, intrinsics, look_at
from tsplat.scene.gaussians import concatenate
from tsplat.scene.images import to_bytes
from tsplat.strategies import MCMCStrategy
from tsplat.training import Checkpoint, RunConfig

WIDTH, HEIGHT = 40, 30


def make_gaussians(n=60, sh_degree=0):
    """Returns anisotropic Gaussians with random colors."""
    generator = torch.Generator().manual_seed(5)
    points = 0.5 * torch.randn(n, 3, generator=generator)
    gaussians = Gaussians.from_points(points, torch.rand(n, 3, generator=generator), sh_degree)
    log_scales = math.log(0.15) + 0.3 * torch.randn(n, 3, generator=generator)
    return dataclasses.replace(gaussians, log_scales=log_scales, opacity_logits=torch.full((n,), 1.0))


def make_views(gaussians, n=6, background=(0.0, 0.0, 0.0), model="pinhole"):
    """Returns views from a circle around the origin, named by their index."""
    views = []
    for i in range(n):
        angle = 2 * math.pi * i / n
        viewmat = look_at((3 * math.sin(angle), -1.0, -3 * math.cos(angle)), (0, 0, 0))
        camera = Camera(viewmat, intrinsics(WIDTH, HEIGHT, 45), WIDTH, HEIGHT, model, name=f"{i}")
        with torch.no_grad():
            image = render(gaussians, camera, background=background)
        views.append(View(to_bytes(image), camera))
    return views


PLACES, APART = 5, 30.0
"""Number of places of :func:`make_places`, and the distance between them."""


def make_places():
    """Returns Gaussians at five places in turn, and two views of each place."""
    parts = []
    for i in range(PLACES):
        part = make_gaussians(60, sh_degree=1)
        parts.append(dataclasses.replace(part, means=part.means + torch.tensor([APART * i, 0.0, 0.0])))
    gaussians = concatenate(parts)
    gaussians = gaussians.select(torch.arange(len(gaussians)).view(PLACES, -1).T.flatten())
    views = []
    for i in range(2 * PLACES):
        x = APART * (i // 2)
        viewmat = look_at((x + i % 2, -1.0, -3.0), (x, 0.0, 0.0))
        camera = Camera(viewmat, intrinsics(40, 30, 45), 40, 30, name=f"{i}")
        with torch.no_grad():
            views.append(View(to_bytes(render(gaussians, camera)), camera))
    generator = torch.Generator().manual_seed(1)
    logits = torch.where(torch.arange(len(gaussians)) % 3 == 0, -4.0, 1.0)
    moved = gaussians.means + 0.1 * torch.randn(gaussians.means.shape, generator=generator)
    return dataclasses.replace(gaussians, means=moved, opacity_logits=logits), views


def gray(gaussians):
    """Returns the Gaussians in gray, as a start for training."""
    return dataclasses.replace(gaussians, sh0=torch.zeros_like(gaussians.sh0))


def image_sizes(folder):
    """Returns the name -> (width, height) of each image file in a folder."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            sizes[path.name] = image.size
    return sizes


def make_checkpoint(step=1, n=500):
    """Returns a checkpoint with n random Gaussians."""
    generator = torch.Generator().manual_seed(step)
    points = torch.randn(n, 3, generator=generator)
    gaussians = Gaussians.from_points(points, torch.rand(n, 3, generator=generator), 1)
    tensors = {"adam/means/exp_avg": torch.rand(n, 3, generator=generator)}
    return Checkpoint(step, gaussians, tensors, {"trainer": {"step": step}}, RunConfig(strategy=MCMCStrategy()))
