"""Shortens needles: long, thin Gaussians that fit the few views that see them, and are artifacts in all others."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ..scene.cameras import Camera, project_points

LENGTH = 1 / 2000
"""Standard deviation up to which a Gaussian that one view sees is harmless, as a fraction of the longer side of the
image. If n views see it, n^2 times this fraction is harmless, measured in the nearest view."""

LIMITS = 60
"""Number of times that a run shortens needles."""

BLOCK = 2**17
"""Number of centers times cameras that are projected at a time, so that they fit into the cache of a CPU."""


def limits_needles(step: int, steps: int) -> bool:
    """Returns whether needles are shortened after a step, counted from 0, of a run."""
    return (step + 1) % max(1, steps // LIMITS) == 0


def shorten_needles(log_scales: Tensor, means: Tensor, cameras: Sequence[Camera], elongation: float) -> None:
    """Limits the longest axis of each Gaussian, in place, to `elongation` times its second axis.

    No axis is shortened below :func:`length_limits`. `log_scales` are logarithms of standard deviations in world
    units, `means` centers in the world frame, [N, 3] each.
    """
    second = log_scales.sum(1) - log_scales.amax(1) - log_scales.amin(1)
    limits = second.exp() * elongation
    rows = (log_scales.amax(1).exp() > limits).nonzero()[:, 0]
    limits = torch.maximum(limits[rows], length_limits(means[rows], cameras))
    log_scales[rows] = torch.minimum(log_scales[rows], limits.log()[:, None])


def length_limits(means: Tensor, cameras: Sequence[Camera]) -> Tensor:
    """Returns the standard deviations below which axes are not shortened, in world units, [N]; 0 if no view sees it.

    Centers [N, 3] are projected without the distortion of lenses, by the first pose of a rolling shutter.
    """
    counts, largest = torch.zeros_like(means[:, 0]), torch.full_like(means[:, 0], torch.inf)
    groups = defaultdict(list)
    for camera in cameras:
        groups[camera.width, camera.height, camera.model].append(camera)
    for group in groups.values():
        matrices = (torch.stack([getattr(c, name) for c in group]).to(means) for name in ("viewmat", "K"))
        n = max(1, BLOCK // max(1, len(means)))
        for viewmat, K in zip(*(torch.split(matrix, n) for matrix in matrices)):
            camera = dataclasses.replace(group[0], viewmat=viewmat, K=K)
            *_, depths, visible = project_points(camera, means)
            scale = 1.0 if camera.model == "ortho" else depths
            lengths = max(camera.width, camera.height) / K[:, :1, 0] * scale
            counts += visible.sum(0)
            largest = torch.minimum(largest, torch.where(visible, lengths, torch.inf).amin(0))
    return torch.where(counts > 0, LENGTH * counts.square() * largest, 0.0)
