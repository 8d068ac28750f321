"""Footprints evaluate splats at pixels, a file for each kind; see `interface.Footprint`."""

import functools

from .ellipse import ELLIPSE
from .interface import Footprint
from .ray import RAY, RAY_IN_FRONT, seen_along_rays
from .shifted import SHIFTED
from .surfel import SURFEL, SURFEL_PLANE
from .wrapped import WRAPPED

__all__ = ["FOOTPRINTS", "Footprint", "find_footprint"]

FOOTPRINTS = {
    "ellipse": ELLIPSE,
    "ray": RAY,
    "ray in front": RAY_IN_FRONT,
    "shifted": SHIFTED,
    "surfel": SURFEL,
    "surfel plane": SURFEL_PLANE,
    "wrapped ellipse": WRAPPED,
}
"""By ``CompositingSettings.footprint``."""


@functools.cache
def find_footprint(name: str, normals: bool, hits: bool) -> Footprint:
    """Returns the footprint of a walk whose first features are a normal, and whose last is a hit, if so."""
    footprint = FOOTPRINTS[name]
    if footprint.HITS:  # always of the last feature, which other groups of channels do not have
        return footprint if hits else SURFEL
    return seen_along_rays(footprint, normals, hits) if normals or hits else footprint
