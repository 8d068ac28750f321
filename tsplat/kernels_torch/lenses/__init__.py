"""Lenses in vectorized PyTorch, one file per lens; see `interface.Lens`."""

from .equirectangular import Equirectangular
from .fisheye import Fisheye
from .ftheta import FTheta
from .interface import Lens
from .ortho import Ortho
from .pinhole import Pinhole

__all__ = ["LENSES", "Lens"]

LENSES: dict[str, Lens] = {
    "equirectangular": Equirectangular(),
    "fisheye": Fisheye(),
    "ftheta": FTheta(),
    "ortho": Ortho(),
    "pinhole": Pinhole(),
}
"""By ``CameraSettings.model``."""
