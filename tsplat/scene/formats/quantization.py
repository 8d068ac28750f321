"""Dequantization shared by the compressed formats: from stored integers to parameters before activation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config import SH_NORMS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

OPACITY_MARGIN = 1e-6
"""Opacities are clamped to [this, 1 - this], so that their logits are finite."""

OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
"""Indices of a quaternion's other three components, by the index of the largest one."""


def logits_from_opacities(opacities: NDArray[Any]) -> Floats:
    """Converts opacities in [0, 1], of any shape, to finite logits."""
    inside = np.clip(opacities.astype(np.float64), OPACITY_MARGIN, 1 - OPACITY_MARGIN)
    return np.log(inside / (1 - inside)).astype(np.float32)


def sh0_from_colors(colors: NDArray[Any]) -> Floats:
    """Converts RGB colors, of any shape, to spherical harmonics coefficients of degree 0."""
    return ((colors - 0.5) / SH_NORMS[0][0]).astype(np.float32)


def quats_from_smallest_three(others: NDArray[Any], largest: NDArray[Any]) -> Floats:
    """Reconstructs unit quaternions stored by their three smallest components; the largest one is positive.

    Args:
        others: [N, 3] the stored components, in the order of the quaternion.
        largest: [N] index (0 to 3) of the omitted component.

    Returns:
        [N, 4], components in the order of the format.
    """
    quats = np.empty((len(others), 4), np.float32)
    np.put_along_axis(quats, OTHERS[largest], others.astype(np.float32), 1)
    omitted = np.sqrt(np.maximum(1 - np.square(others, dtype=np.float64).sum(1), 0)).astype(np.float32)
    np.put_along_axis(quats, largest[:, None].astype(np.intp), omitted[:, None], 1)
    return quats
