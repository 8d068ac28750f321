"""Where to stand to see a model of which nothing is known but its Gaussians."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..scene.cameras import UP, intrinsics, look_at
from ..scene.gaussians import Gaussians

VIEW_FROM = (-0.35, -0.45, -1.0)
"""Where the camera stands as seen from the model, in a frame with y down."""

TRIMMED = 0.0025
"""The share of the visible mass that may fall outside the frame on each side."""

MARGIN = 1.12
"""How much wider than the rest the frame is."""

SHEET_SHARE, SHEET_THICKNESS, SHEET_SPREAD = 0.1, 0.1, 1.5
"""Ground at an end of the height: a tenth of the mass, thinner than a tenth, and this much wider than the other end."""


def look_at_all(
    gaussians: Gaussians, width: int, height: int, fov: float, up: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """A view of a whole model from slightly above that fills the frame; floaters are left outside.

    Gaussians count by opacity times size, so that faint or tiny ones far away move neither the center nor the
    distance; size is the root of the area of their two wider axes, so that a broad ground does not outvote detail.

    Args:
        width, height, fov: Of the picture, as for :func:`tsplat.scene.intrinsics`.
        up: World direction that shall point upwards; guessed where None, see :func:`guess_up`.

    Returns:
        World-to-camera matrix [4, 4], and the point in its middle [3], world frame.

    Raises:
        ArgumentError: There is no Gaussian to see; or as :func:`look_at`.
    """
    means, weights = _visible_mass(gaussians)
    up = _guess_up(means, weights) if up is None else up
    upright = look_at((0.0, 0.0, 0.0), (0.0, 0.0, 1.0) if up[0] or up[1] else (1.0, 0.0, 0.0), up).double()[:3, :3]
    direction = torch.tensor(VIEW_FROM, dtype=torch.float64) @ upright
    direction = direction / direction.norm()
    rotation = look_at(direction.tolist(), (0.0, 0.0, 0.0), up).double()[:3, :3]
    K = intrinsics(width, height, fov).double()
    slopes = torch.stack([0.5 * width / K[0, 0], 0.5 * height / K[1, 1]])

    center = torch.stack([weighted_quantile(axis, weights, 0.5) for axis in means.unbind(-1)])
    near = _near(means, weights, center)
    means, weights = means[near], weights[near]
    local = (means - center) @ rotation.T
    size = float(local.abs().amax())
    distance = 10 * max(size, 1e-6)
    shift = torch.zeros(3, dtype=torch.float64)
    for _ in range(8):
        x, y, z = (local - shift).unbind(-1)
        # Nothing is nearer than this, so that what is behind the camera on the way there does no harm.
        screen = torch.stack([x, y]) / (z + distance).clamp_min(0.1 * distance)
        low, high = (torch.stack([weighted_quantile(s, weights, q) for s in screen]) for q in (TRIMMED, 1 - TRIMMED))
        shift[:2] += 0.5 * (low + high) * distance
        filled = float((0.5 * (high - low) / slopes).max())
        distance = max(distance * MARGIN * filled, 1e-3 * size, 1e-6)
    target = center + shift @ rotation
    return look_at((target + distance * direction).tolist(), target.tolist(), up), target.float()


def guess_up(gaussians: Gaussians) -> tuple[float, float, float]:
    """Which way is up, -y or +y: structure-from-motion leaves y pointing down, most other software up.

    It is -y unless the model stands on ground at its -y end: a thin sheet, clearly wider than what is at the other end.

    Raises:
        ArgumentError: There is no Gaussian to see.
    """
    return _guess_up(*_visible_mass(gaussians))


def weighted_quantile(values: Tensor, weights: Tensor, q: float) -> Tensor:
    """The smallest of values [N] up to which there is a share ``q`` of the weights [N]."""
    values, order = values.sort()
    cumulative = weights[order].cumsum(0)
    return values[torch.searchsorted(cumulative, q * cumulative[-1]).clamp_max(len(values) - 1)]


def _visible_mass(gaussians: Gaussians) -> tuple[Tensor, Tensor]:
    """Centers [M, 3] and what they count [M], fp64 on the CPU."""
    seen = gaussians.map(lambda tensor: tensor.detach()[gaussians.valid].double().cpu())
    sizes = seen.scales.sort(-1).values[:, 1:].prod(-1).sqrt()
    # A backdrop of a few huge Gaussians shall not outweigh the model before it.
    most = weighted_quantile(sizes, torch.ones_like(sizes), 0.9) if len(seen) else sizes.sum()
    weights = seen.opacities * sizes.clamp_max(most)
    if not weights.sum() > 0:
        raise ArgumentError("model: there is no Gaussian to look at; every one is transparent, empty or not a number")
    return seen.means, weights


def _near(means: Tensor, weights: Tensor, center: Tensor) -> Tensor:
    """[M] bool: within three times the reach of nine tenths of the mass, axis by axis."""
    offsets = (means - center).abs()
    reach = torch.stack([weighted_quantile(axis, weights, 0.9) for axis in offsets.unbind(-1)])
    return (offsets <= 3 * reach).all(-1)


def _guess_up(means: Tensor, weights: Tensor) -> tuple[float, float, float]:
    x, y, z = means.unbind(-1)
    lowest, sheet, other, highest = (
        weighted_quantile(y, weights, q) for q in (0.01, SHEET_SHARE, 1 - SHEET_SHARE, 0.99)
    )

    def spread(rows: Tensor) -> float:
        a, b = (
            weighted_quantile(axis[rows], weights[rows], 0.9) - weighted_quantile(axis[rows], weights[rows], 0.1)
            for axis in (x, z)
        )
        return math.sqrt(float(a * b))

    is_thin = sheet - lowest < SHEET_THICKNESS * (highest - lowest)
    is_wide = spread(y <= sheet) > SHEET_SPREAD * spread(y >= other)
    return (0.0, 1.0, 0.0) if is_thin and is_wide else UP
