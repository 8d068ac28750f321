"""Footprints in vectorized PyTorch: each evaluates splats at the pixels of a tile. One file per footprint."""

from .ellipse import Ellipse
from .interface import Footprint, Local, Pixels
from .ray import Ray
from .shifted import Shifted
from .surfel import Surfel, SurfelPlane
from .wrapped import Wrapped

__all__ = ["FOOTPRINTS", "Footprint", "Local", "Pixels"]

FOOTPRINTS: dict[str, Footprint] = {
    "ellipse": Ellipse(),
    "ray": Ray(in_front=False),
    "ray in front": Ray(in_front=True),
    "shifted": Shifted(),
    "surfel": Surfel(),
    "surfel plane": SurfelPlane(),
    "wrapped ellipse": Wrapped(),
}
"""By ``CompositingSettings.footprint``."""
