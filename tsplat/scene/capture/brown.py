"""Brown's lens model of survey software, with four radial coefficients."""

import math
from collections.abc import Sequence

import numpy as np

from ...errors import UnsupportedError
from .lens_conversions import colmap_lens
from .lenses import Lens

NEGLIGIBLE, FITTED = 0.05, 0.25
"""Maximum error in pixels when a small coefficient is ignored, and when a polynomial is fitted."""

SAMPLES = 256
"""Number of radii at which a lens is fitted."""


def brown_lens(size: tuple[int, int], K: Sequence[float], k: Sequence[float], p: Sequence[float], where: str) -> Lens:
    """Returns a pinhole camera with Brown's distortion.

    Args:
        size: Width and height in pixels.
        K: fx, fy, cx and cy in pixels.
        k: k1 to k4 of the polynomial 1 + k1 r² + k2 r⁴ + k3 r⁶ + k4 r⁸.
        p: OpenCV's p1 and p2.
        where: Description of the camera for messages.

    Raises:
        UnsupportedError: No implemented lens approximates the polynomial within a quarter of a pixel.
    """
    fx, fy, cx, cy = K
    radius = corner_radius(size, K)
    if abs(k[2]) * radius**7 * fy < NEGLIGIBLE / 10 and abs(k[3]) * radius**9 * fy < NEGLIGIBLE / 10:
        return Lens(*size, fx, fy, cx, cy, (k[0], k[1], p[0], p[1]))
    radial = _fit_radial(k, radius, fy, where) if k[3] else [*k[:3], 0.0, 0.0, 0.0]
    return colmap_lens("FULL_OPENCV", *size, (fx, fy, cx, cy, *radial[:2], *p, *radial[2:]))


def corner_radius(size: tuple[int, int], K: Sequence[float]) -> float:
    """Returns the largest distance of a corner of the image from the optical axis, at depth 1."""
    fx, fy, cx, cy = K
    return math.hypot(max(cx, size[0] - cx) / fx, max(cy, size[1] - cy) / fy)


def _fit_radial(k: Sequence[float], radius: float, f: float, where: str) -> list[float]:
    """Fits OpenCV's k1 to k6 to a polynomial with four coefficients, up to a radius.

    Raises UnsupportedError if the fit is not accurate enough.
    """
    s = np.linspace(0, radius**2, SAMPLES)
    factors = 1 + s * (k[0] + s * (k[1] + s * (k[2] + s * k[3])))
    scaled = s / radius**2
    powers = np.stack([scaled, scaled**2, scaled**3], 1)
    best, smallest_error = np.zeros(6), math.inf
    for n in range(4):  # number of coefficients of the denominator; with more, it is more likely to have zeros
        columns = np.concatenate([powers, -factors[:, None] * powers[:, :n]], 1)
        coefficients = np.zeros(6)
        coefficients[: 3 + n] = np.linalg.lstsq(columns, factors - 1, rcond=None)[0]
        numerator, denominator = 1 + powers @ coefficients[:3], 1 + powers @ coefficients[3:]
        if (denominator > 0).all():
            error = float(np.abs((numerator / denominator - factors) * np.sqrt(s)).max()) * f
            if error < smallest_error:
                best, smallest_error = coefficients, error
    if not smallest_error <= FITTED:
        raise UnsupportedError(
            f"{where}: k4 has no equivalent in the lenses that are implemented; export undistorted photographs"
        )
    return [float(value) for value in best / radius ** (2 * np.array([1, 2, 3, 1, 2, 3]))]
