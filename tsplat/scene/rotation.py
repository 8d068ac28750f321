"""Rotating a model: centers, rotations and spherical harmonics of its Gaussians."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import spherical_harmonics
from ..errors import ArgumentError
from .gaussians import Gaussians

N_DIRECTIONS = 200
"""Directions at which the rotated spherical harmonics are fitted; a degree has at most 9 coefficients."""


def rotate_upright(gaussians: Gaussians, up: Sequence[float]) -> Gaussians:
    """Returns a model rotated so that what points up points to -y, as in models of structure-from-motion.

    If +y points up, this is half a turn about x; if z does, a quarter.

    Args:
        up: [3] direction that points up in the model, of any length.

    Raises:
        ArgumentError: `up` is not finite, or zero.
    """
    length = math.hypot(*up)
    if not 0 < length < math.inf:
        raise ArgumentError(f"up: expected a finite direction that is not zero, found {list(up)}")
    w, *axis = rotation_to_y([-value for value in up])
    # Of both signs, the one with w >= 0, so that a rotation there and back leaves the quaternions.
    return rotate_gaussians(gaussians, (abs(w), *(math.copysign(1.0, w) * value for value in axis)))


def rotation_to_y(direction: Sequence[float]) -> list[float]:
    """Returns the rotation that turns a direction [3] to +y, as a unit quaternion wxyz."""
    length = math.hypot(*direction)
    x, y, z = (float(value) / length for value in direction)
    # The shortest rotation of the vector, or of what half a turn around x makes of it; 1 + |y| is never small.
    quat = (1 + y, -z, 0.0, x) if y >= 0 else (-z, 1 - y, x, 0.0)
    norm = math.hypot(*quat)
    return [value / norm for value in quat]


def rotate_gaussians(gaussians: Gaussians, quat: Sequence[float]) -> Gaussians:
    """Returns a model rotated about the origin, with its view-dependent colors.

    Args:
        quat: [4] rotation wxyz, of any nonzero norm.
    """
    unit = torch.nn.functional.normalize(torch.tensor(quat, dtype=torch.float64), dim=0)
    matrix = rotation_matrix(unit.tolist())
    means, quats, shN = gaussians.means, gaussians.quats, gaussians.shN
    parts, start = [], 0
    for degree, block in enumerate(_sh_blocks(gaussians.sh_degree, matrix), 1):
        coefficients = shN[:, start : start + 2 * degree + 1]
        parts.append(torch.einsum("ij,njc->nic", block.to(shN), coefficients))
        start += 2 * degree + 1
    return dataclasses.replace(
        gaussians,
        means=means @ matrix.T.to(means),
        quats=quats @ _left_product(unit).T.to(quats),
        shN=torch.cat(parts, 1) if parts else shN,
    )


def rotation_matrix(quat: Sequence[float]) -> Tensor:
    """Returns the [3, 3] fp64 rotation matrix of a unit quaternion wxyz."""
    w, x, y, z = quat
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _left_product(unit: Tensor) -> Tensor:
    """[4, 4] matrix that multiplies quaternions wxyz by one from the left."""
    w, x, y, z = unit.tolist()
    return unit.new_tensor([[w, -x, -y, -z], [x, w, -z, y], [y, z, w, -x], [z, -y, x, w]])


def _sh_blocks(degree: int, matrix: Tensor) -> list[Tensor]:
    """The matrices [2 l + 1, 2 l + 1] that rotate the coefficients of the degrees l above 0.

    The rotated color in direction d is the color before in the direction that becomes d. A degree's functions span a
    space that rotations keep, so that a fit by least squares is exact.
    """
    if degree == 0:
        return []
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(N_DIRECTIONS, 3, generator=generator, dtype=torch.float64)
    n_bases = (degree + 1) ** 2
    each = torch.eye(n_bases, dtype=torch.float64).expand(N_DIRECTIONS, n_bases, n_bases)
    # Coefficients of one function in each channel: the values of all functions. [N_DIRECTIONS, n_bases]
    after, before = (spherical_harmonics(degree, d, each, backend="torch") for d in (directions, directions @ matrix))
    bands = [slice(band * band, (band + 1) ** 2) for band in range(1, degree + 1)]
    return [torch.linalg.lstsq(after[:, band], before[:, band]).solution for band in bands]
