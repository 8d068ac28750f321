"""Steps that several compressed formats share, from bytes to parameters before their activation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config import SH_NORMS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

OPACITY_EDGE = 1e-6
"""Opacities of 0 and 1 are read as this far from them, so that their logits stay finite."""

OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
"""[largest] The three other components of a quaternion, in order."""


def logits(opacities: NDArray[Any]) -> Floats:
    """Opacities in [0, 1], any shape, as logits."""
    inside = np.clip(opacities.astype(np.float64), OPACITY_EDGE, 1 - OPACITY_EDGE)
    return np.log(inside / (1 - inside)).astype(np.float32)


def color_coefficients(colors: NDArray[Any]) -> Floats:
    """RGB around [0, 1] as spherical harmonics coefficients of degree 0, same shape."""
    return ((colors - 0.5) / SH_NORMS[0][0]).astype(np.float32)


def whole_quaternions(others: NDArray[Any], largest: NDArray[Any]) -> Floats:
    """Unit quaternions of which the largest component was left out, being positive.

    Args:
        others: [N, 3] the other components, in order.
        largest: [N] which of the four is left out.

    Returns:
        [N, 4] in the components' own order.
    """
    quats = np.empty((len(others), 4), np.float32)
    np.put_along_axis(quats, OTHERS[largest], others.astype(np.float32), 1)
    left = np.sqrt(np.maximum(1 - np.square(others, dtype=np.float64).sum(1), 0)).astype(np.float32)
    np.put_along_axis(quats, largest[:, None].astype(np.intp), left[:, None], 1)
    return quats
