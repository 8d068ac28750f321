"""Functions shared by glTF and OpenUSD: float32 parameters after activation, and conversions of axes."""

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....precision import identity
from ...extents import far_origin, rounding_at
from ...gaussians import Gaussians
from ...joining import merge_models
from ...quantization import (
    LOG_SCALE_MAX,
    OPACITY_MARGIN,
    Floats,
    check_degree,
    check_valid,
)
from ...rotation import flip_axes, transform_gaussians
from ..foreign import Warn

SAMPLED = 1 << 16
"""Number of positions that are used to decide whether single precision suffices."""

UNIT_TOLERANCE = 1e-6
"""Quaternions whose norm deviates from 1 by at most this value are not normalized, because files store rounded
values."""


def linear_arrays(
    gaussians: Gaussians, name: str, signs: tuple[int, int, int], degree_max: int = 3
) -> dict[str, Floats]:
    """Returns the parameters of Gaussians after activation, in the axes of a format.

    Args:
        gaussians: Gaussians on any device.
        name: Name of the format, for messages.
        signs: Factors of x, y and z, 1 or -1.
        degree_max: Maximum SH degree of the format.

    Returns:
        means [N, 3]; unit quats [N, 4] wxyz; scales [N, 3] from exp(-20) to exp(20); opacities [N] from 1e-6 to 1 -
        1e-6; SH coefficients [N, K, 3].

    Raises:
        UnsupportedError: The SH degree is above `degree_max`.
        ArgumentError: A Gaussian is invalid.
    """
    check_degree(gaussians, name, degree_max)
    check_valid(gaussians)
    gaussians = flip_axes(gaussians.map(lambda tensor: tensor.detach().float().cpu()), signs)
    quats = gaussians.quats.double()
    norms = quats.norm(dim=1, keepdim=True)
    quats /= norms.where((norms - 1).abs() > UNIT_TOLERANCE, 1)
    values = {
        "means": gaussians.means,
        "quats": quats,
        "scales": gaussians.log_scales.double().clamp(-LOG_SCALE_MAX, LOG_SCALE_MAX).exp(),
        "opacities": gaussians.opacity_logits.double().sigmoid().clamp(OPACITY_MARGIN, 1 - OPACITY_MARGIN),
        "coefficients": gaussians.sh_coeffs(gaussians.sh_degree),
    }
    return {key: np.ascontiguousarray(value.float().numpy(), "<f4") for key, value in values.items()}


def linear_colors(display: NDArray[np.floating]) -> NDArray[np.floating]:
    """Converts display colors in [0, 1], encoded as in sRGB, to linear colors."""
    linear: NDArray[np.floating] = np.where(display <= 0.04045, display / 12.92, ((display + 0.055) / 1.055) ** 2.4)
    return linear


def move_and_flip(gaussians: Gaussians, matrix: Tensor, signs: tuple[int, int, int]) -> Gaussians:
    """Transforms Gaussians by a matrix [4, 4] fp64, and then multiplies x, y and z by signs.

    Raises:
        ArgumentError: The matrix is not a similarity transform.
    """
    if not torch.equal(matrix, identity(4)):
        gaussians = transform_gaussians(gaussians, matrix)
    return flip_axes(gaussians, signs)


def join_models(path: object, models: list[Gaussians], antialiased: bool, is_moved: bool, warn: Warn) -> Gaussians:
    """Merges all models of a file, and sets the antialiased flag.

    If the file transforms them (`is_moved`) to positions that single precision rounds coarsely, such as UTM
    coordinates, it calls `warn` with a note.
    """
    if len({model.surfels for model in models}) > 1:  # 2D Gaussians become flat 3D ones
        models = [dataclasses.replace(model, surfels=False) for model in models]
    merged = merge_models(models, warn=warn)
    if is_moved and (origin := far_origin(merged.means[:: 1 + len(merged) // SAMPLED])):
        x, y, z = origin
        warn(
            f"{path}: its Gaussians are around ({x:.15g}, {y:.15g}, {z:.15g}), where single precision rounds positions "
            f"by up to {rounding_at(origin):.2g}; to keep them, export relative to an origin, or a PLY of doubles"
        )
    return dataclasses.replace(merged, antialiased=antialiased and not merged.surfels)
