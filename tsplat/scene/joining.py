"""Merges models, and changes the degree of their spherical harmonics."""

import dataclasses
import warnings
from collections.abc import Sequence

import torch

from ..config import SH_DEGREE_MAX
from ..errors import ArgumentError
from .formats.foreign import Warn
from .gaussians import Gaussians, concatenate


def merge_models(models: Sequence[Gaussians], *, warn: Warn = warnings.warn) -> Gaussians:
    """Merges several models into one; the Gaussians keep the order of the models.

    The result has the highest SH degree of the models; missing coefficients are zero. Device, dtypes and the
    antialiased flag are those of the first model.

    Args:
        models: At least one.
        warn: Called with a note if only some models were trained for antialiased rendering.

    Raises:
        ArgumentError: There is no model, or some have 2D and some 3D Gaussians.
    """
    if not models:
        raise ArgumentError("models: expected at least one, found none")
    first = models[0]
    if any(model.antialiased != first.antialiased for model in models):
        kind = "antialiased" if first.antialiased else "classic"
        warn(f"some models were trained for antialiased rendering and some were not; all are marked as {kind}")
    degree = max(model.sh_degree for model in models)
    padded = [set_sh_degree(model, degree) for model in models]
    if any(model.surfels != first.surfels for model in models):
        raise ArgumentError("models: expected only 2D or only 3D Gaussians, found both")
    return concatenate(padded)


def set_sh_degree(gaussians: Gaussians, degree: int) -> Gaussians:
    """Changes the SH degree of a model: removes higher coefficients, and sets missing ones to zero.

    Args:
        degree: 0 to 4. 0 removes the view dependence.

    Raises:
        ArgumentError: The degree is out of range.
    """
    if degree not in range(SH_DEGREE_MAX + 1):
        raise ArgumentError(f"degree: expected an int from 0 to {SH_DEGREE_MAX}, found {degree!r}")
    missing = (degree + 1) ** 2 - 1 - gaussians.shN.shape[1]
    return dataclasses.replace(gaussians, shN=torch.nn.functional.pad(gaussians.shN, (0, 0, 0, missing)))
