"""What a splat is at a pixel, a file for each kind; see `interface.Footprint`."""

from .ellipse import ELLIPSE
from .interface import Footprint

__all__ = ["FOOTPRINTS", "Footprint"]

FOOTPRINTS = {"ellipse": ELLIPSE}
"""By ``CompositingSettings.footprint``."""
