"""Needles: long, thin Gaussians that few views see, which fit these views and show from anywhere else."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ..scene.cameras import Camera, project_points

LENGTH = 1 / 2000
"""Standard deviation that is never too long, over the square of the number of views that see the Gaussian: a part of
the longer side of the image of the nearest of them."""

LIMITS = 60
"""Number of times that a run shortens needles."""

BLOCK = 2**17
"""Projected centers at a time: of few cameras where memory or the cache of a CPU limits them."""


def limits_needles(step: int, steps: int) -> bool:
    """Returns whether needles are shortened after a step, counted from 0, of a run."""
    return (step + 1) % max(1, steps // LIMITS) == 0


def shorten_needles(log_scales: Tensor, means: Tensor, cameras: Sequence[Camera], elongation: float) -> None:
    """Shortens longest axes, in place, to `elongation` times the second or to :func:`harmless_lengths`, the longer one.

    `log_scales` are logarithms of standard deviations in world units, `means` centers in the world frame, [N, 3] each.
    """
    second = log_scales.sum(1) - log_scales.amax(1) - log_scales.amin(1)
    limits = second.exp() * elongation
    rows = (log_scales.amax(1).exp() > limits).nonzero()[:, 0]
    limits = torch.maximum(limits[rows], harmless_lengths(means[rows], cameras))
    log_scales[rows] = torch.minimum(log_scales[rows], limits.log()[:, None])


def harmless_lengths(means: Tensor, cameras: Sequence[Camera]) -> Tensor:
    """Returns the standard deviation up to which an axis is not too long, in world units, [N]; 0 where no view sees.

    Centers [N, 3] are projected without the distortion of lenses, by the first pose of a rolling shutter.
    """
    counts, largest = torch.zeros_like(means[:, 0]), torch.full_like(means[:, 0], torch.inf)
    alike = defaultdict(list)
    for camera in cameras:
        alike[camera.width, camera.height, camera.model].append(camera)
    for group in alike.values():
        matrices = (torch.stack([getattr(c, name) for c in group]).to(means) for name in ("viewmat", "K"))
        n = max(1, BLOCK // max(1, len(means)))
        for viewmat, K in zip(*(torch.split(matrix, n) for matrix in matrices)):
            camera = dataclasses.replace(group[0], viewmat=viewmat, K=K)
            *_, depths, sees = project_points(camera, means)
            scale = 1.0 if camera.model == "ortho" else depths
            lengths = max(camera.width, camera.height) / K[:, :1, 0] * scale
            counts += sees.sum(0)
            largest = torch.minimum(largest, torch.where(sees, lengths, torch.inf).amin(0))
    return torch.where(counts > 0, LENGTH * counts.square() * largest, 0.0)
