"""Levels of detail: each has half of the Gaussians of the one before, merged into neighbors without rendering."""

from __future__ import annotations

import dataclasses

import torch

from ..gaussians import Gaussians
from ..morton import morton_order
from .moments import merge_into_neighbors

LEVELS_MAX = 8
COARSEST = 1 << 14
"""Gaussians of the coarsest level that are few enough to be shown at once."""

LOG_SCALE_MAX = 20.0
"""Infinite log scales are clamped to this, so that covariances are finite."""


@torch.no_grad()
def detail_levels(gaussians: Gaussians, n_levels: int | None = None) -> list[Gaussians]:
    """Returns levels of detail, the finest one, which is the model itself, first.

    Of two Gaussians that follow each other in Morton order, the one that shows less, by opacity times area, is merged
    into a neighbor (:mod:`.moments`), so that each region keeps half of its Gaussians. 2D Gaussians have one level.

    Args:
        gaussians: All valid.
        n_levels: Their number, if there are enough Gaussians; None for as many as leave at most 16,384, up to 8.

    Raises:
        MissingExtraError: SciPy is not installed, and there are several levels.
    """
    levels = [gaussians]
    most = 1 if gaussians.surfels else n_levels or LEVELS_MAX
    while len(levels) < most and len(levels[-1]) > (COARSEST if n_levels is None else 1):
        levels.append(_halve(levels[-1]))
    return levels


def _halve(gaussians: Gaussians) -> Gaussians:
    log_scales = gaussians.log_scales.clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX)
    gaussians = dataclasses.replace(gaussians, log_scales=log_scales)
    two_largest = log_scales.topk(2).values.sum(1)
    weights = (two_largest.double().exp() * gaussians.opacities.double()).float()
    order = morton_order(gaussians.means)
    couples = order[: len(order) // 2 * 2].reshape(-1, 2)
    kept = torch.ones(len(gaussians), dtype=torch.bool, device=weights.device)
    kept[couples.gather(1, weights[couples].argmin(1, keepdim=True))] = False
    return merge_into_neighbors(gaussians, kept, weights)
