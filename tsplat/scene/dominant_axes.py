"""The axes along which the surfaces of a scene lie, such as those of walls, floors and table tops."""

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
"""Number of nearest positions through which the surface at a point is laid."""

FLATNESS_MIN = 1e-3
"""Flatness below which points are on a line: rounding alone gives some."""

POINTS_MAX, START_POINTS_MAX = 8192, 1024
"""Number of points whose normals are used, and of those by which the start is found."""

STARTS, START_STEPS = 48, 10
"""Number of rotations from which axes are sought, and of steps from each."""

POWERS, STEPS = (4, 16), 40
"""Powers of the cosines between normals and axes whose sum is maximized, one after the other: the higher, the fewer
normals beside an axis count. And the number of steps for each."""

UNIFORM = 3 / 5
"""Mean sum of the fourth powers of the cosines between three axes and normals in all directions."""

LEAD, LEAD_OF_FEW = 0.05, 2.0
"""Smallest excess of this mean over :data:`UNIFORM` for clear axes: the first, and for few normals the second over the
root of their number, as some axes suit a few random normals by chance."""


def dominant_axes(points: Tensor) -> list[float] | None:
    """Returns the rotation whose axes most surfaces of points [N, 3] are parallel to, as a unit quaternion wxyz.

    Turned points have the turned axes. Of the 24 rotations with the same axes, it is the one closest to the identity.
    None if the surfaces lie in all directions, or the points are on no surfaces.
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
    """Returns the normals [M, 3] of the surfaces at some of points [N, 3], of either sign, and how flat they are, [M].

    Flatness is from 0, for points along a line or in all directions, to 1, for points in a plane.
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
    """Returns axes [S, 3, 3], the columns, turned towards normals [M, 3], so that :func:`agreement` becomes larger.

    Each step maximizes a linear lower bound, as the sum of even powers is convex: the axes are the orthogonal matrix
    closest to its gradient.
    """
    weighted = (normals * weights[:, None]).T
    for _ in range(steps):
        gradient = weighted @ _power(_cosines(axes, normals), power - 1)
        u, _, v = np.linalg.svd(gradient.reshape(3, -1, 3).swapaxes(0, 1))
        axes = u @ v
    return axes


def agreement(axes: Floats, normals: Floats, weights: Floats, power: int) -> Floats:
    """Returns the weighted mean of the sums of powers of cosines between axes [S, 3, 3] and normals [M, 3], [S]."""
    sums: Floats = weights @ _power(_cosines(axes, normals), power)
    means: Floats = sums.reshape(-1, 3).sum(-1) / weights.sum()
    return means


def _cosines(axes: Floats, normals: Floats) -> Floats:
    """Returns cosines between normals [M, 3] and axes [S, 3, 3], [M, 3 S]: one product of matrices."""
    cosines: Floats = normals @ axes.swapaxes(0, 1).reshape(3, -1)
    return cosines


def _power(values: Floats, power: int) -> Floats:
    """Raises to a positive power by products, which are ten times as fast as NumPy's."""
    if power == 1:
        return values
    half = _power(values, power // 2)
    return half * half * values if power % 2 else half * half


def _starts() -> Floats:
    """Returns rotations and reflections that lie in all directions, [S, 3, 3]."""
    random = np.random.default_rng(0).standard_normal((STARTS, 3, 3))
    rotations: Floats = np.linalg.qr(random)[0]
    return rotations


def _closest_to_identity(axes: Floats) -> list[float]:
    """Returns the rotation by the smallest angle whose axes are these [3, 3], in any order and of any sign, as a
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
