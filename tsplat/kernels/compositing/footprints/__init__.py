"""What a splat is at a pixel, a file for each kind; see `interface.Footprint`."""

from .ellipse import ELLIPSE
from .interface import Footprint
from .ray import RAY, RAY_IN_FRONT
from .surfel import SURFEL

__all__ = ["FOOTPRINTS", "Footprint"]

FOOTPRINTS = {"ellipse": ELLIPSE, "ray": RAY, "ray in front": RAY_IN_FRONT, "surfel": SURFEL}
"""By ``CompositingSettings.footprint``."""
