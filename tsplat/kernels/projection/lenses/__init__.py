"""Lenses, one file each. `interface.Lens` is their interface."""

from .equirectangular import EQUIRECTANGULAR
from .fisheye import FISHEYE
from .ftheta import FTHETA
from .interface import Lens
from .ortho import ORTHO
from .pinhole import PINHOLE

__all__ = ["LENSES", "Lens"]

LENSES = {
    "equirectangular": EQUIRECTANGULAR,
    "fisheye": FISHEYE,
    "ftheta": FTHETA,
    "ortho": ORTHO,
    "pinhole": PINHOLE,
}
"""``CameraSettings.model`` -> lens."""
