"""Visualizations of a model's Gaussians: their centers, ellipsoids, or normals."""

import dataclasses
import math

import torch
from torch import Tensor

from ..formulas.rotations import rotate
from ..scene.gaussians import Gaussians
from ..scene.sh_colors import colors_to_sh0

OPAQUE = 10.0
"""Logit of an opacity of almost 1."""

ELLIPSE_SCALE = 0.5
"""Size of ellipsoids relative to that of their Gaussians."""


def as_centers(gaussians: Gaussians) -> Gaussians:
    """Returns opaque Gaussians of zero size, which the 2D filter of the rasterizer shows as dots of a few pixels."""
    log_scales = torch.full_like(gaussians.log_scales, math.log(1e-12))
    return dataclasses.replace(_opaque(gaussians), log_scales=log_scales, antialiased=False)


def as_ellipsoids(gaussians: Gaussians) -> Gaussians:
    """Returns opaque Gaussians of half the size, so that each can be distinguished from its neighbors."""
    return dataclasses.replace(_opaque(gaussians), log_scales=gaussians.log_scales + math.log(ELLIPSE_SCALE))


def as_normals(gaussians: Gaussians, position: Tensor) -> Gaussians:
    """Returns Gaussians with colors (n + 1) / 2, where n is the shortest axis, world frame, towards a `position`."""
    quats = torch.nn.functional.normalize(gaussians.quats, dim=-1)
    w, xyz = quats[:, :1], quats[:, 1:]
    axes = torch.nn.functional.one_hot(gaussians.log_scales.argmin(-1), 3).to(quats)
    normals = rotate(w, xyz, axes)
    is_behind = (normals * (position.to(normals) - gaussians.means)).sum(-1, keepdim=True) < 0
    colors = 0.5 * torch.where(is_behind, -normals, normals) + 0.5
    return dataclasses.replace(gaussians, sh0=colors_to_sh0(colors)[:, None], shN=gaussians.shN[:, :0])


def _opaque(gaussians: Gaussians) -> Gaussians:
    return dataclasses.replace(gaussians, opacity_logits=torch.full_like(gaussians.opacity_logits, OPAQUE))
