"""Framing: camera placement for a model without known cameras."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..precision import fp32, fp64, in_full_precision
from ..scene.cameras import UP, Camera, intrinsics, look_at
from ..scene.gaussians import Gaussians
from .trajectories import orbit_around, spiral_at

VIEW_DIRECTION = (-0.35, -0.45, -1.0)
"""Direction from the model to the camera, in a frame with y down."""

TRIMMED_FRACTION = 0.0025
"""Fraction of the visible mass that may lie outside the image at each edge."""

MARGIN = 1.12
"""Ratio of the image size to that of the visible mass, without the trimmed fraction."""

SAMPLE = 1 << 17
"""Maximum number of Gaussians that are used to place cameras."""

DISTANCE_FACTORS = (1.0, 0.75, 0.5)
"""Distances of cameras around a model, relative to the distance at which it fills the image."""

AROUND_FOV = 50.0
"""Field of view of cameras around a model, in degrees."""

GROUND_MASS, GROUND_THICKNESS, GROUND_SPREAD = 0.1, 0.1, 1.5
"""A model has ground at one end if the tenth of the mass at this end is thinner than a tenth of the model's height, and
wider than the tenth at the other end by this factor."""


@in_full_precision
def place_cameras(
    gaussians: Gaussians,
    width: int,
    height: int,
    fov: float,
    *,
    eye: Sequence[float] | None = None,
    target: Sequence[float] | None = None,
    up: Sequence[float] | None = None,
    trajectory: Literal["orbit", "spiral"] | None = None,
    frames: int = 120,
    inside: Sequence[Camera] = (),
) -> list[Camera]:
    """Places one camera, or the `frames` cameras of an orbit around the target or a spiral at the eye, to view a model.

    `eye`, `target` and `up`, [3] each, world frame, are the camera position, by default one from which the whole model
    is visible; the point at the image center, by default the center of the model; and the direction that points up in
    the image, guessed by default, see :func:`guess_up`. A spiral stays `inside` the extent of cameras. Raises
    ArgumentError if no Gaussian is visible; or as :func:`tsplat.scene.look_at` and :func:`tsplat.scene.intrinsics`.
    """
    up = guess_up(gaussians) if up is None else up
    if eye is None or target is None:
        framed, center = look_at_all(gaussians, width, height, fov, up)
        target = center.tolist() if target is None else target
        if eye is None:
            # The direction and distance do not depend on the target.
            eye = (fp32(target) - center - framed[:3, :3].T @ framed[:3, 3]).tolist()
    if trajectory is None:
        poses = look_at(eye, target, up)[None]
    elif trajectory == "orbit":
        poses = orbit_around(eye, target, up, frames)
    else:
        poses = spiral_at(eye, target, up, frames, inside=inside)
    K = intrinsics(width, height, fov)
    return [Camera(viewmat, K, width, height) for viewmat in poses]


def look_at_all(
    gaussians: Gaussians, width: int, height: int, fov: float, up: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Places a camera slightly above a model so that the model fills the image; floaters are ignored.

    Gaussians are weighted by opacity times size, so that faint or tiny ones far away affect neither the center nor the
    distance. The size is the root of the area of the two longest axes, so that a broad ground does not dominate.

    Args:
        width, height, fov: As for :func:`tsplat.scene.intrinsics`.
        up: [3] world direction that points up in the image; guessed if None, see :func:`guess_up`.

    Returns:
        World-to-camera matrix [4, 4], and the point at the image center [3], world frame.

    Raises:
        ArgumentError: No Gaussian is visible; or as :func:`tsplat.scene.look_at`.
    """
    means, weights = visible_mass(gaussians)
    up = _guess_up(means, weights) if up is None else up
    upright = look_at((0.0, 0.0, 0.0), (0.0, 0.0, 1.0) if up[0] or up[1] else (1.0, 0.0, 0.0), up).double()[:3, :3]
    direction = fp64(VIEW_DIRECTION) @ upright
    direction = direction / direction.norm()
    rotation = look_at(direction.tolist(), (0.0, 0.0, 0.0), up).double()[:3, :3]
    K = intrinsics(width, height, fov).double()
    slopes = torch.stack([0.5 * width / K[0, 0], 0.5 * height / K[1, 1]])

    center = torch.stack([weighted_quantile(axis, weights, 0.5) for axis in means.unbind(-1)])
    near = _near(means, weights, center)
    means, weights = means[near], weights[near]
    local = (means - center) @ rotation.T
    # A single point has the size of its Gaussian.
    size = float(local.abs().amax()) or float(visible_size(gaussians)) or 1.0
    distance = 10 * size
    shift, edges = fp64([0.0, 0.0, 0.0]), fp64([TRIMMED_FRACTION, 1 - TRIMMED_FRACTION])
    # A fixed-point iteration, as the extent on the image depends on the distance.
    for _ in range(8):
        x, y, z = (local - shift).unbind(-1)
        # Depths are clamped, since intermediate steps may place points behind the camera.
        screen = torch.stack([x, y]) / (z + distance).clamp_min(0.1 * distance)
        low, high = torch.stack([weighted_quantile(s, weights, edges) for s in screen], 1)
        shift[:2] += 0.5 * (low + high) * distance
        filled = float((0.5 * (high - low) / slopes).max())
        distance = max(distance * MARGIN * filled, 1e-3 * size)
    target = center + shift @ rotation
    return look_at((target + distance * direction).tolist(), target.tolist(), up), target.float()


@in_full_precision
def cameras_around(gaussians: Gaussians, n: int = 60, size: int = 400) -> list[Camera]:
    """Places n cameras of `size` pixels on spheres around a model, looking at it.

    Their distances are between that at which the model fills the image and half of it. Raises ArgumentError if no
    Gaussian is visible.
    """
    viewmat, center = look_at_all(gaussians, size, size, AROUND_FOV)
    radius = float((viewmat[:3, :3] @ center + viewmat[:3, 3]).norm())
    K = intrinsics(size, size, AROUND_FOV)
    cameras = []
    for i in range(n):
        # A Fibonacci sphere, whose points are evenly spaced; none is at a pole.
        height, azimuth = 1 - (2 * i + 1) / n, i * math.pi * (3 - math.sqrt(5))
        side = math.sqrt(1 - height**2)
        offset = fp32([side * math.cos(azimuth), height, side * math.sin(azimuth)])
        eye = center + DISTANCE_FACTORS[i % len(DISTANCE_FACTORS)] * radius * offset
        cameras.append(Camera(look_at(eye.tolist(), center.tolist()), K, size, size))
    return cameras


def guess_up(gaussians: Gaussians) -> tuple[float, float, float]:
    """Guesses the up direction of a model: -y, as after structure from motion, or +y, as in most other software.

    Returns +y only if the model stands on ground at its -y end: a thin sheet, clearly wider than the other end.

    Raises:
        ArgumentError: No Gaussian is visible.
    """
    return _guess_up(*visible_mass(gaussians))


def weighted_quantile(values: Tensor, weights: Tensor, q: float | Tensor) -> Tensor:
    """Returns the weighted quantiles ``q`` [...] of values [N]: the smallest values at which cumulative weight is q."""
    values, order = values.sort()
    cumulative = weights[order].cumsum(0)
    return values[torch.searchsorted(cumulative, q * cumulative[-1]).clamp_max(len(values) - 1)]


def visible_size(gaussians: Gaussians) -> Tensor:
    """Returns the median of the largest scales of the valid Gaussians, []; 0 if there are none."""
    largest = gaussians.scales.detach()[gaussians.valid].amax(-1)
    return largest.median().cpu() if len(largest) else fp32(0.0)


def visible_mass(gaussians: Gaussians) -> tuple[Tensor, Tensor]:
    """Returns the centers [M, 3] and weights [M] of the valid Gaussians, fp64 on the CPU.

    Of more than 131,072 Gaussians, every k-th is used, unless none of these is visible.
    """
    for step in (max(1, -(-len(gaussians) // SAMPLE)), 1):
        sample = gaussians.select(slice(None, None, step))
        is_valid = sample.valid
        valid = sample.map(lambda tensor: tensor.detach()[is_valid].double().cpu())  # noqa: B023 - called at once
        sizes = valid.scales.sort(-1).values[:, 1:].prod(-1).sqrt()
        # Clamped, so that a backdrop of a few huge Gaussians does not outweigh the model in front of it.
        largest = weighted_quantile(sizes, torch.ones_like(sizes), 0.9) if len(valid) else sizes.sum()
        weights = valid.opacities * sizes.clamp_max(largest)
        if weights.sum() > 0:
            return valid.means, weights
    raise ArgumentError("model: no Gaussian is visible; all are transparent, of zero size or invalid")


def _near(means: Tensor, weights: Tensor, center: Tensor) -> Tensor:
    """Returns a mask [M] of rows within three times the distance that contains nine tenths of the mass, per axis."""
    offsets = (means - center).abs()
    reach = torch.stack([weighted_quantile(axis, weights, 0.9) for axis in offsets.unbind(-1)])
    return (offsets <= 3 * reach).all(-1)


def _guess_up(means: Tensor, weights: Tensor) -> tuple[float, float, float]:
    x, y, z = means.unbind(-1)
    lowest, sheet, other, highest = weighted_quantile(y, weights, fp64([0.01, GROUND_MASS, 1 - GROUND_MASS, 0.99]))

    def spread(chosen: Tensor) -> float:
        deciles = [weighted_quantile(axis[chosen], weights[chosen], fp64([0.1, 0.9])) for axis in (x, z)]
        a, b = (high - low for low, high in deciles)
        return math.sqrt(float(a * b))

    is_thin = sheet - lowest < GROUND_THICKNESS * (highest - lowest)
    is_wide = spread(y <= sheet) > GROUND_SPREAD * spread(y >= other)
    return (0.0, 1.0, 0.0) if is_thin and is_wide else UP
