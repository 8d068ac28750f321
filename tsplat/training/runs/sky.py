"""The sky: Gaussians on a distant sphere, which give a color to each direction behind everything else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from ...rendering import render_views
from ...scene.cameras import centers
from ...scene.capture.views import View
from ...scene.extents import with_near_planes
from ...scene.gaussians import Gaussians
from ..trainer import scene_extent

RADIUS = 20.0
"""Radius of the sphere over the extent of the cameras, or half of this over that of the points."""

OPACITY = 0.9


@torch.no_grad()
def sky_gaussians(views: Sequence[View], points: torch.Tensor, n: int, sh_degree: int) -> Gaussians:
    """Returns those of n Gaussians, evenly spaced on a sphere around sparse points [P, 3], that training views show.

    Their color is a mean of that in these views.
    """
    poses = torch.stack([view.camera.viewmat for view in views]).to(points)
    center = centers(poses).mean(0)
    farthest = float((points - center).norm(dim=-1).quantile(0.9))
    radius = max(RADIUS * scene_extent(views), RADIUS / 2 * farthest)
    # A Fibonacci lattice: equal areas, and turns by the golden angle.
    i = torch.arange(n, device=points.device, dtype=points.dtype)
    height = 1 - (2 * i + 1) / n
    angle = math.pi * (3 - math.sqrt(5)) * i
    width = (1 - height.square()).sqrt()
    directions = torch.stack([width * angle.cos(), height, width * angle.sin()], -1)
    sphere = Gaussians.from_points(
        center + radius * directions, torch.zeros_like(directions), sh_degree, opacity=OPACITY, scale=0.7
    )
    sums, counts = torch.zeros_like(directions), torch.zeros_like(height)
    for view, camera in zip(views, with_near_planes([view.camera for view in views], points), strict=True):
        meta = render_views(sphere, [camera], sh_degree=0)[2]
        seen = (meta["radii"][0] > 0).all(-1)
        x, y = meta["means2d"][0][seen].long().unbind(-1)
        sums[seen] += view.pixels[y.clamp(0, view.height - 1), x.clamp(0, view.width - 1)]
        counts[seen] += 1
    kept = counts > 0
    colored = Gaussians.from_points(directions[kept], sums[kept] / counts[kept, None], sh_degree)
    return dataclasses.replace(sphere.select(kept), sh0=colored.sh0)
