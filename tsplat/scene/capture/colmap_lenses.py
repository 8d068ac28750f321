"""Projects directions through COLMAP's camera models beyond OpenCV's, and inverts the projection, by pycolmap.

COLMAP's documentation (https://colmap.github.io/cameras.html) refers to ``src/colmap/sensor/models.h`` for parameters
and equations: FULL_OPENCV is OpenCV's rational model. FOV is the model of Devernay and Faugeras (2001), DIVISION of
Fitzgibbon (2001), EUCM of Khomutenko et al. (2016), and RAD_TAN_THIN_PRISM_FISHEYE of Project Aria. THIN_PRISM_FISHEYE
applies the model of Weng et al. (1992) to angles.

Angles [P, 2] are theta x/r and theta y/r, with the angle theta from the optical axis and the distance r = sqrt(x² + y²)
from it.
"""

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.extras import require

Array = npt.NDArray[Any]
ColmapLens = tuple[str, tuple[float, ...]]
"""COLMAP's name of a model, and its parameters with fx, fy, cx and cy first."""

DIRECTIONS, STEPS = 64, 1024
"""Number of sampled directions around the optical axis, and of angles from it, to find where a lens stops being
monotonic."""

INVERSE_PIXELS = 0.5
"""Maximum distance in pixels between a pixel and the projection of its inverse."""


def directions_of(angles: Array) -> Array:
    """Returns unit vectors [P, 3] of angles [P, 2]."""
    theta = np.hypot(angles[:, 0], angles[:, 1])
    # numpy.sinc has a factor of pi.
    return np.concatenate([angles * np.sinc(theta / np.pi)[:, None], np.cos(theta)[:, None]], -1)


def camera_of(lens: ColmapLens, width: int = 1, height: int = 1) -> Any:
    """Returns the camera of pycolmap for a lens. Only :func:`pycolmap.undistort_camera` reads the image size.

    Raises MissingExtraError if pycolmap is not installed.
    """
    require("pycolmap")
    import pycolmap

    model, params = lens
    return pycolmap.Camera(model=model, width=width, height=height, params=list(params))


def project(lens: ColmapLens, directions: Array) -> Array:
    """Returns the pixels [P, 2] of directions [P, 3] of any length; NaN for directions without a pixel."""
    pixels: Array = camera_of(lens).img_from_cam(directions)
    return pixels


def invert(lens: ColmapLens, pixels: Array) -> tuple[Array, Array]:
    """Returns the angles [P, 2], up to :func:`reach`, that a lens shows at pixels [P, 2], and whether each was found
    [P]."""
    points = camera_of(lens).cam_from_img(pixels)  # at depth 1; NaN where COLMAP finds none
    radii = np.hypot(points[:, 0], points[:, 1])
    thetas = np.arctan(radii)
    angles = points * (thetas / np.maximum(radii, 1e-300))[:, None]
    errors = project(lens, directions_of(angles)) - pixels
    is_inverse = (thetas <= reach(lens, math.pi / 2)[0]) & (np.hypot(errors[:, 0], errors[:, 1]) <= INVERSE_PIXELS)
    return angles, is_inverse


@functools.lru_cache(maxsize=32)
def reach(lens: ColmapLens, largest: float) -> tuple[float, float]:
    """Returns the angle in radians up to which a lens is monotonic in every direction, at most `largest`.

    Also returns the largest distance from the principal point at this angle, in focal lengths.
    """
    fx, fy, cx, cy = lens[1][:4]
    around = np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    thetas = np.linspace(0, largest, STEPS + 1)
    angles = thetas[:, None, None] * np.stack([np.cos(around), np.sin(around)], -1)
    offsets = (project(lens, directions_of(angles.reshape(-1, 2))) - (cx, cy)) / (fx, fy)
    distances = np.hypot(offsets[:, 0], offsets[:, 1]).reshape(len(thetas), -1)
    rises = (np.diff(distances, axis=0) > 0).all(1)  # False for NaN
    last = max(int(rises.argmin()) if not rises.all() else STEPS, 1)
    return float(thetas[last]), float(distances[last].max())


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
