"""Estimates the dominant axes of a scene, to which surfaces such as walls, floors and table tops are parallel."""

import itertools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..support.extras import require
from .rotation import positive_quaternions

Floats = NDArray[np.float64]

NEIGHBORS = 8
"""Number of nearest neighbors to which the surface at a point is fitted."""

FLATNESS_MIN = 1e-3
"""Flatness below which points count as collinear; rounding alone makes it nonzero."""

POINTS_MAX, START_POINTS_MAX = 8192, 1024
"""Maximum number of points whose normals are used, and of points for choosing the initial axes."""

STARTS, START_STEPS = 48, 10
"""Number of initial rotations, and of steps from each."""

POWERS, STEPS = (4, 16), 40
"""Powers p, and the number of steps for each. The sum of the p-th powers of the cosines between normals and axes is
maximized for one p after the other; with a higher power, normals far from an axis count less."""

UNIFORM = 3 / 5
"""Sum of the fourth powers of the cosines between three axes and a normal, averaged over uniform normals."""

LEAD, LEAD_OF_FEW = 0.05, 2.0
"""Minimum excess of this mean over :data:`UNIFORM` for the axes to be accepted: the larger of the first value, and the
second value divided by the square root of the number of normals, because some axes fit a few random normals by
chance."""


def dominant_axes(points: Tensor) -> list[float] | None:
    """Returns the rotation to the dominant axes of the surfaces of points [N, 3], as a unit quaternion wxyz.

    The axes rotate with the points. Of the 24 rotations with the same axes, the one closest to the identity is
    returned. Returns None if the surfaces have no dominant directions, or if the points do not lie on surfaces.
    """
    require("scipy")
    normals, weights = surface_normals(points.detach().double().cpu().numpy())
    if not weights.sum() > 0:
        return None
    subset = slice(None, None, 1 + len(normals) // START_POINTS_MAX)
    axes = ascend(_starts(), normals[subset], weights[subset], POWERS[0], START_STEPS)
    axes = axes[[agreement(axes, normals[subset], weights[subset], POWERS[0]).argmax()]]
    axes = ascend(axes, normals, weights, POWERS[0], STEPS)
    n = weights.sum() ** 2 / np.square(weights).sum()
    if agreement(axes, normals, weights, POWERS[0])[0] < UNIFORM + max(LEAD, LEAD_OF_FEW / math.sqrt(n)):
        return None
    return _closest_to_identity(ascend(axes, normals, weights, POWERS[1], STEPS)[0])


def surface_normals(points: Floats) -> tuple[Floats, Floats]:
    """Returns the surface normals [M, 3] at a subset of points [N, 3], of either sign, and their flatness [M].

    Flatness ranges from 0, for neighbors along a line or spread equally in all directions, to 1, for neighbors in a
    plane.
    """
    from scipy.spatial import cKDTree

    points = points[np.sort(np.unique(points, axis=0, return_index=True)[1])]
    if len(points) <= NEIGHBORS:
        return np.zeros((0, 3)), np.zeros(0)
    _, nearest = cKDTree(points).query(points[:: 1 + len(points) // POINTS_MAX], k=NEIGHBORS + 1)
    near = points[nearest] - points[nearest[:, :1]]
    near -= near.mean(1, keepdims=True)
    variances, directions = np.linalg.eigh(near.transpose(0, 2, 1) @ near)
    widths = np.sqrt(variances.clip(0))
    flatness = (widths[:, 1] - widths[:, 0]) / np.where(widths[:, 2] > 0, widths[:, 2], 1)
    return directions[:, :, 0], np.where(flatness < FLATNESS_MIN, 0, flatness)


def ascend(axes: Floats, normals: Floats, weights: Floats, power: int, steps: int) -> Floats:
    """Rotates axes [S, 3, 3], given as columns, so that their :func:`agreement` with normals [M, 3] increases.

    The sum of even powers is convex, so each step maximizes its linear lower bound: the new axes are the orthogonal
    matrix closest to the gradient.
    """
    weighted = (normals * weights[:, None]).T
    for _ in range(steps):
        gradient = weighted @ _cosines(axes, normals) ** (power - 1)
        u, _, v = np.linalg.svd(gradient.reshape(3, -1, 3).swapaxes(0, 1))
        axes = u @ v
    return axes


def agreement(axes: Floats, normals: Floats, weights: Floats, power: int) -> Floats:
    """Returns the weighted mean over normals [M, 3] of the sum of powers of their cosines with axes [S, 3, 3], [S]."""
    sums: Floats = weights @ _cosines(axes, normals) ** power
    means: Floats = sums.reshape(-1, 3).sum(-1) / weights.sum()
    return means


def _cosines(axes: Floats, normals: Floats) -> Floats:
    """Returns the cosines between normals [M, 3] and axes [S, 3, 3] as one matrix product, [M, 3 S]."""
    cosines: Floats = normals @ axes.swapaxes(0, 1).reshape(3, -1)
    return cosines


def _starts() -> Floats:
    """Returns random rotations and reflections, [S, 3, 3]."""
    random = np.random.default_rng(0).standard_normal((STARTS, 3, 3))
    rotations: Floats = np.linalg.qr(random)[0]
    return rotations


def _closest_to_identity(axes: Floats) -> list[float]:
    """Returns the rotation closest to the identity with the given axes [3, 3], in any order and sign, as a
    quaternion."""
    best: Any = max(
        (
            axes[:, order] * signs
            for order in itertools.permutations(range(3))
            for signs in itertools.product((1.0, -1.0), repeat=3)
            if np.linalg.det(axes[:, order] * signs) > 0
        ),
        key=np.trace,
    )
    quaternion: list[float] = positive_quaternions(torch.from_numpy(np.ascontiguousarray(best))).tolist()
    return quaternion
