"""Footprints evaluate alpha and gradients of splats at pixels, one file each; see `interface.Footprint`."""

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
"""``CompositingSettings.footprint`` -> footprint."""


@functools.cache
def find_footprint(name: str, normals: bool, hits: bool) -> Footprint:
    """Returns the footprint of a walk, given whether its first features are a normal, and its last one is a hit."""
    footprint = FOOTPRINTS[name]
    if footprint.HITS:  # a hit is the last feature, which other groups of channels do not contain
        return footprint if hits else SURFEL
    return seen_along_rays(footprint, normals, hits) if normals or hits else footprint
