"""Footprints in vectorized PyTorch: how a splat is evaluated at the pixels of a tile, one kind a file."""

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
