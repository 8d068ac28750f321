"""Conversions of lenses: from COLMAP's camera models, and to lenses that the rasterizer supports."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from ...config import CameraModel
from . import colmap_lenses
from .lenses import Lens, border_points, distorted_angle, largest_angle
from .undistortion import coverage

COLMAP_MODELS: dict[str, CameraModel] = {
    "FULL_OPENCV": "pinhole",
    "FOV": "pinhole",
    "SIMPLE_DIVISION": "pinhole",
    "DIVISION": "pinhole",
    "EUCM": "pinhole",
    "THIN_PRISM_FISHEYE": "fisheye",
    "RAD_TAN_THIN_PRISM_FISHEYE": "fisheye",
}
"""Model of ``colmap_lenses`` -> model of the undistorted images, unless the lens is wide."""

PINHOLE_SHARE_MIN, PINHOLE_SCALE_MIN = 0.75, 0.6
"""Minimum share of a photograph's pixels that the pinhole image shows, and its minimum scale in the center; otherwise
the photograph becomes an equidistant fisheye image."""

FIT_PIXELS = 0.05
"""Maximum error in pixels of a fisheye polynomial that replaces a lens."""

FIT_SAMPLES = 512
"""Number of angles at which a polynomial is fitted."""

SHOWN_SIDE = 512
"""Image size at which the share of a photograph that a lens of the rasterizer shows is measured."""


def colmap_lens(model: str, width: int, height: int, params: Sequence[float]) -> Lens:
    """Returns the lens of a camera of :data:`COLMAP_MODELS`, given its parameters in COLMAP's order.

    If the additional coefficients are zero, the lens is one of OpenCV's: a pinhole camera, OPENCV or OPENCV_FISHEYE.
    Images become equidistant fisheye images if a pinhole image would show less than :data:`PINHOLE_SHARE_MIN` of their
    pixels, or their center at less than :data:`PINHOLE_SCALE_MIN` of the original scale.
    """
    if model == "SIMPLE_DIVISION":
        params = (params[0], *params)
    fx, fy, cx, cy, *rest = params
    projection, distortion = COLMAP_MODELS[model], (0.0, 0.0, 0.0, 0.0)
    if model in ("FULL_OPENCV", "RAD_TAN_THIN_PRISM_FISHEYE"):
        distortion, others = (rest[0], rest[1], rest[2], rest[3]), rest[4:]
    elif model == "THIN_PRISM_FISHEYE":
        distortion, others = (rest[0], rest[1], rest[4], rest[5]), [*rest[2:4], *rest[6:]]
    else:
        others = rest[:1]  # With a first coefficient of zero, FOV, DIVISION and EUCM are pinhole cameras.
    if not any(others):
        return Lens(width, height, fx, fy, cx, cy, distortion, projection)
    name = "DIVISION" if model == "SIMPLE_DIVISION" else model
    lens = Lens(width, height, fx, fy, cx, cy, model=projection, colmap=(name, tuple(params)))
    if projection == "pinhole" and lens.problem is None:
        as_pinhole = coverage(lens)
        if as_pinhole.share < PINHOLE_SHARE_MIN or as_pinhole.scale < PINHOLE_SCALE_MIN:
            return dataclasses.replace(lens, model="fisheye")
    return lens


@functools.lru_cache(maxsize=32)
def native_lens(lens: Lens) -> tuple[Lens, float] | None:
    """Returns the rasterizer's equivalent of a lens of :data:`COLMAP_MODELS`, and its largest error in pixels.

    FULL_OPENCV is exact. A rotationally symmetric lens may have a fisheye polynomial within :data:`FIT_PIXELS`. Returns
    None if there is no equivalent, if the lens has skew, or if FULL_OPENCV would show less than
    :data:`PINHOLE_SHARE_MIN`.
    """
    if lens.skew:
        return None
    if lens.colmap is None:
        return lens, 0.0
    name, (fx, fy, cx, cy, *k) = lens.colmap
    if name == "FULL_OPENCV":
        exact = Lens(lens.width, lens.height, fx, fy, cx, cy, tuple(k))
        if float(exact.shown(SHOWN_SIDE, SHOWN_SIDE).float().mean()) >= PINHOLE_SHARE_MIN:
            return exact, 0.0
    # Up to the corners, or to the end of the lens's field of view.
    angles, is_inverse = colmap_lenses.invert(lens.colmap, border_points(lens)[0])
    largest = float(np.hypot(angles[:, 0], angles[:, 1])[is_inverse].max(initial=0.0))
    if not is_inverse.all():
        largest = colmap_lenses.reach(lens.colmap, math.pi / 2)[0]
    # Samples are denser at both ends, which reduces the largest error.
    thetas = largest * (1 - np.cos(np.linspace(0, np.pi, FIT_SAMPLES))) / 2
    profile = colmap_lenses.radial_profile(lens.colmap, thetas)
    if profile is None:
        return None
    powers = np.arange(1, 10, 2)
    scaled = np.linalg.lstsq((thetas / largest)[:, None] ** powers, profile, rcond=None)[0] / largest**powers
    zoom, *coefficients = (float(value) for value in scaled)
    if not zoom > 0:
        return None
    distortion = tuple(value / zoom for value in coefficients)
    error = float(np.abs(zoom * distorted_angle(thetas, distortion) - profile).max()) * max(fx, fy)
    if not (error <= FIT_PIXELS and largest_angle(distortion) >= largest):
        return None
    return Lens(lens.width, lens.height, zoom * fx, zoom * fy, cx, cy, distortion, "fisheye"), error
