"""Gains of photographs that are known before training: those that explain the colors of sparse points in them.

Decision record 0051 has measurements.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..scene.capture.views import View
from ..scene.images import downscale, read_exposure

SIZE_MAX = 640
"""Longer side in pixels of the images in which colors are read, so that noise and small shifts average out."""

DARKEST, BRIGHTEST = 0.04, 0.92
"""Colors outside of these are not used: they are noise, or clipped."""

ROUNDS, ITERATIONS, TOLERANCE = 12, 30, 1e-8
"""Rounds of reweighting, and steps of conjugate gradients in each, until residuals are this part of the first."""

RESIDUAL_MIN = 0.03
"""Residuals below this, of logarithms, have equal weight; larger ones the weight of least absolute deviations."""

PRIOR = 0.01
"""Observations that say that a gain is 1, so that views without points, and groups that share none, have a solution."""

OBSERVATIONS_LEAST, OBSERVATIONS_MOST = 8, 1 << 19
"""Views that have fewer points in common with others have no gain; nor has any if that is their mean number. Of more
observations in total, those of every k-th point are used."""

EXPOSURES_LEAST = 0.1
"""Standard deviation of the logarithms of exposures from which on gains are fitted. Where a camera kept its exposure,
colors of points differ by the direction of light, which is a part of the model."""


class Observations(NamedTuple):
    """Colors of points in views: the index of the view [O], of the point [O], and the logarithm of the color [O, 3]."""

    views: Tensor
    points: Tensor
    colors: Tensor

    def select(self, kept: Tensor) -> Observations:
        """Returns some of them, by a mask [O]."""
        return Observations(self.views[kept], self.points[kept], self.colors[kept])


def gains_of_points(views: Sequence[View]) -> Tensor | None:
    """Returns the logarithms of gains of views [V, 3] fp64, whose mean is zero; None if they are not known.

    They are if the EXIF data of all photographs has exposures, which differ, and views share enough sparse points. A
    point has one color, and each view sees it times its gain. Both are fitted to all points in at least two views, by
    iteratively reweighted least squares.
    """
    observed = _observe(views) if _exposures_differ(views) else None
    if observed is None:
        return None
    step = 1 + len(observed.points) // OBSERVATIONS_MOST
    seen = torch.bincount(observed.points)
    observed = observed.select((seen[observed.points] > 1) & (observed.points % step == 0))
    if len(observed.points) < OBSERVATIONS_LEAST * len(views):
        return None
    observed = observed.select(torch.bincount(observed.views)[observed.views] >= OBSERVATIONS_LEAST)
    gains = torch.zeros(len(views), 3, dtype=torch.float64, device="cpu")
    weights = torch.ones(len(observed.points), 1, dtype=torch.float64, device="cpu")
    for _ in range(ROUNDS):
        gains = _fit(observed, weights, gains)
        residuals = observed.colors - gains[observed.views]
        residuals = residuals - _means(observed.points, weights, residuals)[observed.points]
        weights = 1 / residuals.abs().mean(1, keepdim=True).clamp_min(RESIDUAL_MIN)
    return gains - gains.mean(0)


def gains_of_held_out(train: Sequence[View], held_out: Sequence[View]) -> Tensor | None:
    """Returns the logarithms of gains of held-out views [V, 3] fp64 by their own points; None if they are not known.

    The mean of those of training views is zero.
    """
    gains = gains_of_points([*train, *held_out])
    return None if gains is None else gains[len(train) :] - gains[: len(train)].mean(0)


def _fit(observed: Observations, weights: Tensor, gains: Tensor) -> Tensor:
    """Minimizes squared residuals over gains [V, 3], with the best colors of points, by conjugate gradients."""
    n_views, n_points = len(gains), int(observed.points.max()) + 1
    of_points = weights.new_zeros(n_points, 1).index_add_(0, observed.points, weights).clamp_min(1e-30)
    # Without the colors of points, which are means of what views see: D - W^T P^-1 W.
    places, own = torch.stack([observed.points, observed.views]), torch.arange(n_views, device="cpu")
    seen = torch.sparse_coo_tensor(
        places, (weights / of_points.sqrt()[observed.points])[:, 0], (n_points, n_views), check_invariants=False
    )
    diagonal = torch.zeros_like(gains[:, :1]).index_add_(0, observed.views, weights) + PRIOR / RESIDUAL_MIN
    ends = torch.sparse_coo_tensor(own.expand(2, -1), diagonal[:, 0], (n_views, n_views), check_invariants=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR", UserWarning)  # PyTorch multiplies in this format
        matrix = ends - torch.sparse.mm(seen.t(), seen)
    right = weights * (observed.colors - _means(observed.points, weights, observed.colors)[observed.points])
    right = torch.zeros_like(gains).index_add_(0, observed.views, right)
    residual = right - torch.sparse.mm(matrix, gains)
    direction = scaled = residual / diagonal
    norm = (residual * scaled).sum(0)
    least = TOLERANCE**2 * (right * right / diagonal).sum(0)
    for _ in range(ITERATIONS):
        if not bool((norm > least).any()):
            break
        image = torch.sparse.mm(matrix, direction)
        step = norm / (direction * image).sum(0).clamp_min(1e-300)
        gains, residual = gains + step * direction, residual - step * image
        scaled = residual / diagonal
        norm, before = (residual * scaled).sum(0), norm
        direction = scaled + norm / before.clamp_min(1e-300) * direction
    return gains


def _exposures_differ(views: Sequence[View]) -> bool:
    """Returns whether all photographs tell their exposures, and the camera has changed it."""
    if any(view.sparse_ids is None or not view.files for view in views):
        return False
    exposures = [read_exposure(view.files[0]) for view in views]
    known = [exposure for exposure in exposures if exposure is not None]
    return len(known) == len(views) > 1 and statistics.pstdev(known) >= EXPOSURES_LEAST


def _means(groups: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Returns weighted means of values [O, 3] in groups, [G, 3]."""
    n = int(groups.max()) + 1
    total = values.new_zeros(n, values.shape[1]).index_add_(0, groups, weights * values)
    return total / weights.new_zeros(n, 1).index_add_(0, groups, weights).clamp_min(1e-30)


def _observe(views: Sequence[View]) -> Observations | None:
    """Returns the colors of sparse points in views; None if no view has any."""
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
