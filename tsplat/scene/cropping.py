"""Cropping a model to a box or a sphere."""

import math
from collections.abc import Sequence, Sized
from typing import TypeVar

import numpy as np

from ..errors import ArgumentError
from ..precision import fp64
from .gaussians import Gaussians
from .option_types import Box

SizedModel = TypeVar("SizedModel", bound=Sized)


def crop_gaussians(gaussians: Gaussians, box: Box) -> Gaussians:
    """Returns the Gaussians whose centers lie in a box, possibly none. A center that is NaN lies in no box.

    Args:
        box: Two opposite corners in any order, world frame.

    Raises:
        ArgumentError: A corner is not finite.
    """
    low, high = (fp64(corner).to(gaussians.means) for corner in _sorted(box))
    inside = ((gaussians.means >= low) & (gaussians.means <= high)).all(-1)
    return gaussians.select(inside)


def crop_sphere(gaussians: Gaussians, center: Sequence[float], radius: float) -> Gaussians:
    """Returns the Gaussians whose centers lie in a sphere, possibly none. A center that is NaN lies in no sphere.

    Args:
        center: [3] world frame.
        radius: World units, positive.

    Raises:
        ArgumentError: A number is not finite, or the radius is not positive.
    """
    if len(center) != 3 or not all(map(math.isfinite, center)):
        raise ArgumentError(f"center: expected three finite numbers, found {list(center)}")
    if not 0 < radius < math.inf:
        raise ArgumentError(f"radius: expected a positive number, found {radius}")
    inside = (gaussians.means - fp64(center).to(gaussians.means)).norm(dim=-1) <= radius
    return gaussians.select(inside)


def raise_if_empty(model: SizedModel, box: Box) -> SizedModel:
    """Returns a cropped model unchanged; raises ArgumentError if it is empty."""
    if len(model) == 0:
        low, high = _sorted(box)
        raise ArgumentError(f"crop: no Gaussian has its center between {low} and {high}; choose another box")
    return model


def crop_option(box: Box) -> str:
    """Returns the option ``--crop`` of ``tsplat convert`` that selects the same Gaussians as a box."""
    values = [np.format_float_positional(np.float32(value), trim="-") for corner in _sorted(box) for value in corner]
    return f"--crop {' '.join(values)}"


def _sorted(box: Box) -> Box:
    """Returns the lower and the upper corner of a box."""
    first, second = box
    if not all(math.isfinite(value) for value in (*first, *second)):
        raise ArgumentError(f"crop: expected finite corners, found {first} and {second}")
    (x0, x1), (y0, y1), (z0, z1) = (sorted(values) for values in zip(first, second, strict=True))
    return (x0, y0, z0), (x1, y1, z1)
