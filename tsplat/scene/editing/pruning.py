"""Pruning: removes Gaussians that are faint, large, isolated or invalid."""

import math

import torch

from ...errors import ArgumentError
from ..gaussians import Gaussians, neighbor_distances


def prune_gaussians(
    gaussians: Gaussians,
    *,
    min_opacity: float | None = None,
    max_scale: float | None = None,
    max_isolation: float | None = None,
    drop_invalid: bool = False,
) -> Gaussians:
    """Returns the Gaussians that meet all given conditions, possibly none. NaN meets no condition.

    Args:
        min_opacity: Minimum opacity after the sigmoid, 0 to 1.
        max_scale: Maximum standard deviation along the longest axis, world units.
        max_isolation: Maximum mean distance to the three nearest neighbors, relative to the median of the model, at
            least 1. Floaters have values of 5 and more.
        drop_invalid: Whether to remove Gaussians that cannot be rendered, see :attr:`Gaussians.valid`.

    Raises:
        ArgumentError: A number is out of its range.
        MissingExtraError: SciPy, which finds neighbors, is not installed.

    Example::

        import torch
        from tsplat.scene import Gaussians, prune_gaussians

        gaussians = Gaussians.from_points(torch.rand(1000, 3), torch.rand(1000, 3))
        small = prune_gaussians(gaussians, min_opacity=0.05, max_scale=0.04)
        assert 0 < len(small) < 1000 and small.scales.max() <= 0.04
    """
    for name, value, low, high, limits in (
        ("min_opacity", min_opacity, 0.0, 1.0, "from 0 to 1"),
        ("max_scale", max_scale, math.ulp(0.0), math.inf, "above 0"),
        ("max_isolation", max_isolation, 1.0, math.inf, "of at least 1"),
    ):
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            raise ArgumentError(f"{name}: expected a number {limits}, found {value}")
    kept = torch.ones(len(gaussians), dtype=torch.bool, device=gaussians.means.device)
    if min_opacity is not None:
        kept &= gaussians.opacities >= min_opacity
    if max_scale is not None:
        kept &= (gaussians.scales <= max_scale).all(-1)
    if drop_invalid:
        kept &= gaussians.valid
    if max_isolation is not None:
        gaussians = gaussians.select(kept & gaussians.means.isfinite().all(-1))
        if len(gaussians) < 2:
            return gaussians
        distances = neighbor_distances(gaussians.means).mean(-1)
        kept = (distances <= max_isolation * distances.median()).to(kept.device)
    return gaussians.select(kept)
