"""COLMAP's camera models beyond OpenCV's: project directions to pixels, and invert the projection.

COLMAP's documentation (https://colmap.github.io/cameras.html) refers to ``src/colmap/sensor/models.h`` for parameters
and equations: FULL_OPENCV is OpenCV's rational model. FOV is the model of Devernay and Faugeras (2001), DIVISION of
Fitzgibbon (2001), EUCM of Khomutenko et al. (2016), and RAD_TAN_THIN_PRISM_FISHEYE of Project Aria. THIN_PRISM_FISHEYE
applies the model of Weng et al. (1992) to angles.

Angles [P, 2] are theta x/r and theta y/r, with the angle theta from the optical axis and the distance r = sqrt(x² + y²)
from it.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[Any]
Ratio = TypeVar("Ratio", Array, Tensor)
ColmapLens = tuple[str, tuple[float, ...]]
"""COLMAP's name of a model, and its parameters with fx, fy, cx and cy first."""

DIRECTIONS, STEPS = 64, 1024
"""Number of sampled directions around the optical axis, and of angles from it, to find where a lens stops being
monotonic."""

NEWTON_STEPS = 12
DIFFERENCE = 1e-6
"""Step in radians of the finite differences that estimate derivatives."""

INVERSE_PIXELS = 0.5
"""Maximum distance in pixels between a pixel and the projection of its inverse."""


def directions_of(angles: Array) -> Array:
    """Returns unit vectors [P, 3] of angles [P, 2]."""
    theta = np.hypot(angles[:, 0], angles[:, 1])
    # numpy.sinc has a factor of pi.
    return np.concatenate([angles * np.sinc(theta / np.pi)[:, None], np.cos(theta)[:, None]], -1)


def project(lens: ColmapLens, directions: Array) -> Array:
    """Returns the pixels [P, 2] of directions [P, 3] of any length; NaN for directions without a pixel."""
    name, (fx, fy, cx, cy, *k) = lens
    x, y, z = directions.T
    with np.errstate(all="ignore"):
        shown = np.stack(_DISTORTIONS[name](x, y, z, *k), -1)
    return shown * (fx, fy) + (cx, cy)


def invert(lens: ColmapLens, pixels: Array) -> tuple[Array, Array]:
    """Returns the angles [P, 2], up to 90 degrees, that a lens shows at pixels [P, 2], and whether each was found [P].

    Newton's method starts from a table of the mean distance from the principal point at each angle.
    """
    fx, fy, cx, cy = lens[1][:4]
    targets = (pixels - (cx, cy)) / (fx, fy)
    thetas, distances = _monotonic(lens, math.pi / 2)
    radii = np.hypot(targets[:, 0], targets[:, 1])
    start = np.interp(radii, distances.mean(1), thetas)
    angles = targets * (start / np.maximum(radii, 1e-12))[:, None]

    def errors(values: Array) -> Array:
        return (project(lens, directions_of(values)) - pixels) / (fx, fy)

    with np.errstate(all="ignore"):
        for _ in range(NEWTON_STEPS):
            offsets = DIFFERENCE * np.eye(2)
            a, c = ((errors(angles + offset) - errors(angles - offset)).T / (2 * DIFFERENCE) for offset in offsets)
            ex, ey = errors(angles).T
            determinant = a[0] * c[1] - a[1] * c[0]
            step = np.stack([c[1] * ex - c[0] * ey, a[0] * ey - a[1] * ex], -1) / determinant[:, None]
            moved = angles - np.where(np.isfinite(step), step, 0.0)
            length = np.hypot(moved[:, 0], moved[:, 1])[:, None]
            angles = moved * np.minimum(1.0, thetas[-1] / np.maximum(length, 1e-12))
        is_inverse = np.hypot(*(errors(angles) * (fx, fy)).T) <= INVERSE_PIXELS
    return angles, is_inverse


def reach(lens: ColmapLens, largest: float) -> tuple[float, float]:
    """Returns the angle in radians up to which a lens is monotonic in every direction, at most `largest`.

    Also returns the largest distance from the principal point at this angle, in focal lengths.
    """
    thetas, distances = _monotonic(lens, largest)
    return float(thetas[-1]), float(distances[-1].max())


@functools.lru_cache(maxsize=32)
def _monotonic(lens: ColmapLens, largest: float) -> tuple[Array, Array]:
    """Returns angles [S] up to :func:`reach`, and their distances from the principal point in focal lengths [S,
    directions]."""
    fx, fy, cx, cy = lens[1][:4]
    around = np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    thetas = np.linspace(0, largest, STEPS + 1)
    angles = thetas[:, None, None] * np.stack([np.cos(around), np.sin(around)], -1)
    offsets = (project(lens, directions_of(angles.reshape(-1, 2))) - (cx, cy)) / (fx, fy)
    distances = np.hypot(offsets[:, 0], offsets[:, 1]).reshape(len(thetas), -1)
    rises = (np.diff(distances, axis=0) > 0).all(1)  # False for NaN
    last = int(rises.argmin()) if not rises.all() else STEPS
    last = max(last, 1)
    return thetas[: last + 1], distances[: last + 1]


def radial_profile(lens: ColmapLens, thetas: Array) -> Array | None:
    """Returns the distances from the principal point at angles, both [S], in focal lengths; None if they depend on the
    direction."""
    name, (fx, _, cx, _, *k) = lens
    others = {"FULL_OPENCV": k[2:4], "THIN_PRISM_FISHEYE": [*k[2:4], *k[6:]], "RAD_TAN_THIN_PRISM_FISHEYE": k[6:]}
    if any(others.get(name, ())):
        return None
    along_x = np.stack([thetas, 0 * thetas], -1)
    profile: Array = (project(lens, directions_of(along_x))[:, 0] - cx) / fx
    return profile


def rational_factor(square: Ratio, k: Sequence[float]) -> Ratio:
    """Returns the radial factor of OpenCV's rational model at squared radii, given k1 to k6."""
    k1, k2, k3, k4, k5, k6 = k
    return (1 + square * (k1 + square * (k2 + square * k3))) / (1 + square * (k4 + square * (k5 + square * k6)))


def tangential(a: Ratio, b: Ratio, p1: float, p2: float) -> tuple[Ratio, Ratio]:
    """Returns the offset of OpenCV's tangential distortion for points (a, b) at depth 1, along both axes."""
    square, product = a * a + b * b, a * b
    return 2 * p1 * product + p2 * (square + 2 * a * a), 2 * p2 * product + p1 * (square + 2 * b * b)


def _full_opencv(x: Array, y: Array, z: Array, *k: float) -> tuple[Array, Array]:
    k1, k2, p1, p2, *more = k
    a, b = np.where(z > 0, x / z, np.nan), y / z
    radial = rational_factor(a * a + b * b, (k1, k2, *more))
    shift_a, shift_b = tangential(a, b, p1, p2)
    return a * radial + shift_a, b * radial + shift_b


def _fov(x: Array, y: Array, z: Array, omega: float) -> tuple[Array, Array]:
    # With r = tan(theta): atan(2 r tan(omega / 2)) / omega.
    radius = np.maximum(np.hypot(x, y), 1e-12)
    factor = np.arctan2(2 * radius * math.tan(omega / 2), z) / (omega * radius)
    return factor * x, factor * y


def _division(x: Array, y: Array, z: Array, k: float) -> tuple[Array, Array]:
    # The inverse of r = r_d / (1 + k r_d^2).
    factor = 2 / (z + np.sqrt(z * z - 4 * k * (x * x + y * y)))
    return factor * x, factor * y


def _eucm(x: Array, y: Array, z: Array, alpha: float, beta: float) -> tuple[Array, Array]:
    depth = alpha * np.sqrt(beta * (x * x + y * y) + z * z) + (1 - alpha) * z
    depth = np.where(depth > 0, depth, np.nan)
    return x / depth, y / depth


def _thin_prism_fisheye(x: Array, y: Array, z: Array, *k: float) -> tuple[Array, Array]:
    k1, k2, p1, p2, k3, k4, sx, sy = k
    a, b = _angles(x, y, z)
    s = a * a + b * b
    radial = 1 + s * (k1 + s * (k2 + s * (k3 + s * k4)))
    shift_a, shift_b = tangential(a, b, p1, p2)
    return a * radial + shift_a + sx * s, b * radial + shift_b + sy * s


def _rad_tan_thin_prism_fisheye(x: Array, y: Array, z: Array, *k: float) -> tuple[Array, Array]:
    radial, (p0, p1, s0, s1, s2, s3) = k[:6], k[6:]
    a, b = _angles(x, y, z)
    s = a * a + b * b
    factor = 1 + s * np.polynomial.polynomial.polyval(s, radial)
    a, b = factor * a, factor * b
    s = a * a + b * b
    shift_a, shift_b = tangential(a, b, p1, p0)
    return a + shift_a + s * (s0 + s1 * s), b + shift_b + s * (s2 + s3 * s)


def _angles(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """Returns the two components of the angles of directions."""
    radius = np.maximum(np.hypot(x, y), 1e-300)
    theta = np.arctan2(radius, z)
    return theta * (x / radius), theta * (y / radius)


_DISTORTIONS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "FULL_OPENCV": _full_opencv,
    "FOV": _fov,
    "DIVISION": _division,
    "EUCM": _eucm,
    "THIN_PRISM_FISHEYE": _thin_prism_fisheye,
    "RAD_TAN_THIN_PRISM_FISHEYE": _rad_tan_thin_prism_fisheye,
}
"""Model -> function that maps directions x, y, z to positions relative to the principal point, in focal lengths."""
