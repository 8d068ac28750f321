"""Estimates the gain of each photograph before training, from the colors of sparse points that photographs share.

Decision record 0051 has measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..scene.capture.views import View
from ..scene.images import downscale, read_exposure
from ..support.extras import require

SIZE_MAX = 640
"""Longer side in pixels of the images in which colors are read, so that noise and small shifts average out."""

DARKEST, BRIGHTEST = 0.04, 0.92
"""Colors outside this range are not used: they are noise, or clipped."""

ROUNDS, ITERATIONS, TOLERANCE = 12, 30, 1e-8
"""Rounds of reweighting, maximum number of conjugate gradient steps per round, and relative residual that ends one."""

RESIDUAL_MIN = 0.03
"""Residuals of logarithms below this have equal weight. Larger ones have the weight of least absolute deviations."""

PRIOR = 0.01
"""Weight, in observations, of a prior that a gain is 1. It determines the gains of views that share no points."""

VIEW_OBSERVATIONS_MIN, OBSERVATIONS_MAX = 8, 1 << 19
"""Minimum number of shared points of a view, and of the mean over all views; with fewer, gains are not estimated. If
there are more than OBSERVATIONS_MAX observations in total, only every k-th point is used."""

EXPOSURE_SPREAD_MIN = 0.1
"""Minimum standard deviation of the logarithms of exposures. With a constant exposure, the colors of a point differ by
view-dependent appearance, which the model has to learn."""


class Observations(NamedTuple):
    """Colors of points in views: the index of the view [O], of the point [O], and the logarithm of the color [O, 3]."""

    views: Tensor
    points: Tensor
    colors: Tensor

    def select(self, kept: Tensor) -> Observations:
        """Returns the observations that a mask [O] selects."""
        return Observations(self.views[kept], self.points[kept], self.colors[kept])


def gains_of_points(views: Sequence[View]) -> Tensor | None:
    """Returns the logarithms of the gains of views [V, 3] fp64, with a mean of zero; None if they cannot be estimated.

    The estimate requires EXIF exposures of all photographs, which differ, and enough sparse points that views share. It
    assumes that a point has one color, which each view multiplies by its gain. Colors and gains are fitted to all
    points that at least two views see, by iteratively reweighted least squares.
    """
    observed = _observe(views) if _exposures_differ(views) else None
    if observed is None:
        return None
    step = 1 + len(observed.points) // OBSERVATIONS_MAX
    seen = torch.bincount(observed.points)
    observed = observed.select((seen[observed.points] > 1) & (observed.points % step == 0))
    if len(observed.points) < VIEW_OBSERVATIONS_MIN * len(views):
        return None
    observed = observed.select(torch.bincount(observed.views)[observed.views] >= VIEW_OBSERVATIONS_MIN)
    require("scipy")
    gains = torch.zeros(len(views), 3, dtype=torch.float64, device="cpu")
    weights = torch.ones(len(observed.points), 1, dtype=torch.float64, device="cpu")
    for _ in range(ROUNDS):
        gains = _fit(observed, weights, gains)
        residuals = observed.colors - gains[observed.views]
        residuals = residuals - _means(observed.points, weights, residuals)[observed.points]
        weights = 1 / residuals.abs().mean(1, keepdim=True).clamp_min(RESIDUAL_MIN)
    return gains - gains.mean(0)


def gains_of_held_out(train: Sequence[View], held_out: Sequence[View]) -> Tensor | None:
    """Returns the logarithms of the gains of held-out views [V, 3] fp64, relative to the mean of the training views.

    They are estimated from sparse points, like the gains of training views; None if they cannot be.
    """
    gains = gains_of_points([*train, *held_out])
    return None if gains is None else gains[len(train) :] - gains[: len(train)].mean(0)


def _fit(observed: Observations, weights: Tensor, gains: Tensor) -> Tensor:
    """Returns gains [V, 3] that minimize the weighted squared residuals, by conjugate gradients from `gains`."""
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import cg

    n_views, n_points = len(gains), int(observed.points.max()) + 1
    of_points = weights.new_zeros(n_points, 1).index_add_(0, observed.points, weights).clamp_min(1e-30)
    # The colors of points are eliminated (Schur complement): D - W^T P^-1 W.
    entries = (weights / of_points.sqrt()[observed.points])[:, 0].numpy()
    seen = coo_array((entries, (observed.points.numpy(), observed.views.numpy())), (n_points, n_views)).tocsr()
    diagonal = weights.new_zeros(n_views).index_add_(0, observed.views, weights[:, 0]) + PRIOR / RESIDUAL_MIN
    matrix = diags_array(diagonal.numpy()) - seen.T @ seen
    right = weights * (observed.colors - _means(observed.points, weights, observed.colors)[observed.points])
    right = torch.zeros_like(gains).index_add_(0, observed.views, right)
    options = dict(rtol=TOLERANCE, maxiter=ITERATIONS, M=diags_array(1 / diagonal.numpy()))
    fitted = [cg(matrix, b, start, **options)[0] for b, start in zip(right.T.numpy(), gains.T.numpy())]
    return torch.from_numpy(np.stack(fitted, 1))


def _exposures_differ(views: Sequence[View]) -> bool:
    """Returns whether all photographs have an exposure in their EXIF data, and the exposures differ."""
    if any(view.sparse_ids is None or not view.files for view in views):
        return False
    exposures = [read_exposure(view.files[0]) for view in views]
    known = [exposure for exposure in exposures if exposure is not None]
    return len(known) == len(views) > 1 and statistics.pstdev(known) >= EXPOSURE_SPREAD_MIN


def _means(groups: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Returns the weighted mean of values [O, 3] in each group, [G, 3]."""
    n = int(groups.max()) + 1
    total = values.new_zeros(n, values.shape[1]).index_add_(0, groups, weights * values)
    return total / weights.new_zeros(n, 1).index_add_(0, groups, weights).clamp_min(1e-30)


def _observe(views: Sequence[View]) -> Observations | None:
    """Returns the colors of sparse points in views; None if no view has sparse points."""
    of_views, points, colors = [], [], []
    for i, view in enumerate(views):
        if view.sparse is None or view.sparse_ids is None or not len(view.sparse):
            continue
        color, valid = colors_of_points(view)
        of_views.append(torch.full((int(valid.sum()),), i, dtype=torch.int64, device="cpu"))
        points.append(view.sparse_ids.cpu()[valid])
        colors.append(color[valid].log())
    if not points:
        return None
    _, ranks = torch.cat(points).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return Observations(torch.cat(of_views), ranks, torch.cat(colors))


def colors_of_points(view: View) -> tuple[Tensor, Tensor]:
    """Returns the colors of a view's sparse points [P, 3] fp64 on the CPU, and which are usable [P] bool."""
    assert view.sparse is not None
    image, mask = view.image.cpu(), view.mask
    x, y = view.sparse[:, :2].cpu().double().unbind(-1)
    factor = max(1.0, max(view.width, view.height) / SIZE_MAX)
    width, height = (max(1, round(side / factor)) for side in (view.width, view.height))
    small = downscale(image, width, height)
    columns = (x * width / view.width).long().clamp(0, width - 1)
    rows = (y * height / view.height).long().clamp(0, height - 1)
    colors = small[rows, columns].double() / 255
    valid = (colors.amin(1) > DARKEST) & (colors.amax(1) < BRIGHTEST)
    if mask is not None:
        valid &= mask.cpu()[y.long().clamp(0, view.height - 1), x.long().clamp(0, view.width - 1)]
    return colors, valid
