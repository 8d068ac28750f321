"""Spherical harmonics of degree 0 and the colors that they show."""

from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from ..config import SH_NORMS

Values = TypeVar("Values", Tensor, NDArray[Any])


def sh_of_colors(colors: Values) -> Values:
    """Returns the coefficients of degree 0 that show colors."""
    return (colors - 0.5) / SH_NORMS[0][0]


def colors_of_sh(sh0: Values) -> Values:
    """Returns the colors that coefficients of degree 0 show."""
    return 0.5 + SH_NORMS[0][0] * sh0
