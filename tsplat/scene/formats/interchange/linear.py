"""Shared parts of glTF and OpenUSD: parameters after activation, in float32, and conversions of their axes."""

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
"""Number of positions by which it is found whether single precision holds them."""

UNIT_TOLERANCE = 1e-6
"""Largest deviation from 1 of the norms of rotations that are not normalized: those of a file are rounded."""


def linear_arrays(
    gaussians: Gaussians, name: str, signs: tuple[int, int, int], degree_max: int = 3
) -> dict[str, Floats]:
    """Returns the parameters of Gaussians after activation, in the axes of a format.

    Args:
        gaussians: Gaussians on any device.
        name: Name of the format, for messages.
        signs: By which x, y and z are multiplied.
        degree_max: Largest SH degree of the format.

    Returns:
        means [N, 3]; quats [N, 4], unit, wxyz; scales [N, 3], from exp(-20) to exp(20); opacities [N], from 1e-6 to
        1 - 1e-6; coefficients [N, K, 3] of the spherical harmonics.

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
    """Returns linear colors in [0, 1] of display colors, which are encoded as in sRGB."""
    linear: NDArray[np.floating] = np.where(display <= 0.04045, display / 12.92, ((display + 0.055) / 1.055) ** 2.4)
    return linear


def move_and_flip(gaussians: Gaussians, matrix: Tensor, signs: tuple[int, int, int]) -> Gaussians:
    """Returns Gaussians moved by a matrix [4, 4] fp64, and then with x, y and z multiplied by signs.

    Raises:
        ArgumentError: The matrix shears or stretches.
    """
    if not torch.equal(matrix, identity(4)):
        gaussians = transform_gaussians(gaussians, matrix)
    return flip_axes(gaussians, signs)


def join_models(path: object, models: list[Gaussians], antialiased: bool, is_moved: bool, warn: Warn) -> Gaussians:
    """Returns the Gaussians of all models of a file as one, with its antialiased flag.

    Calls `warn` with a note if the file moves them (`is_moved`) so far from zero, as in UTM, that single precision
    rounds their positions.
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
