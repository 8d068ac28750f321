"""Converts colors to spherical harmonics of degree 0 and back."""

from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from ..config import SH_NORMS

Values = TypeVar("Values", Tensor, NDArray[Any])


def colors_to_sh0(colors: Values) -> Values:
    """Converts colors to coefficients of degree 0."""
    return (colors - 0.5) / SH_NORMS[0][0]


def sh0_to_colors(sh0: Values) -> Values:
    """Converts coefficients of degree 0 to colors."""
    return 0.5 + SH_NORMS[0][0] * sh0
