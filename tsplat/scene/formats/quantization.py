"""Quantization shared by the compressed formats: between parameters before activation and stored integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config import SH_NORMS
from ...errors import ArgumentError, UnsupportedError
from ..gaussians import Gaussians
from ..morton import morton_order

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

OPACITY_MARGIN = 1e-6
"""Opacities are clamped to [this, 1 - this], so that their logits are finite."""

LOG_SCALE_MAX = 20.0
"""Log scales are written within plus or minus this, where a format has no infinity."""

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


def smallest_three_from_quats(quats: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Normalizes quaternions and omits the largest component of each; the inverse of :func:`quats_from_smallest_three`.

    Args:
        quats: [N, 4], any norm. Zero stands for no rotation.

    Returns:
        The other components [N, 3] and the index of the omitted one [N].
    """
    unit = quats.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    largest = np.abs(unit).argmax(1)
    unit *= np.where(np.take_along_axis(unit, largest[:, None], 1) < 0, -1, 1)
    return np.take_along_axis(unit, OTHERS[largest], 1), largest


def check_valid(gaussians: Gaussians) -> None:
    """Raises `ArgumentError` if a Gaussian is invalid; the compressed formats cannot represent NaN."""
    n_invalid = int((~gaussians.valid).sum())
    if n_invalid:
        raise ArgumentError(
            f"gaussians: {n_invalid} of {len(gaussians)} have values that are not finite; remove them with "
            "gaussians.map(lambda tensor: tensor[gaussians.valid])"
        )


def morton_arrays(gaussians: Gaussians, name: str) -> dict[str, Floats]:
    """Checks Gaussians, and returns their parameters and opacities by name as float32 arrays in Morton order.

    Args:
        gaussians: Gaussians on any device.
        name: Name of the format, for messages.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid.
    """
    if gaussians.sh_degree > 3:
        raise UnsupportedError(f"sh_degree: expected at most 3 for {name}, found {gaussians.sh_degree}")
    gaussians = gaussians.map(lambda tensor: tensor.detach().float().cpu())
    check_valid(gaussians)
    order = morton_order(gaussians.means)
    tensors = {**gaussians.tensors(), "opacities": gaussians.opacities}
    return {name: tensor[order].numpy() for name, tensor in tensors.items()}


def levels(values: NDArray[Any]) -> Bytes:
    """Rounds values to bytes; those outside of [0, 255] are clamped."""
    return np.clip(np.rint(values.astype(np.float64)), 0, 255).astype(np.uint8)
