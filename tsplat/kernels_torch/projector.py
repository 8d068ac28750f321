"""Projectors: how a kind of Gaussian is projected. The projection knows only what a `Projector` returns."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..formulas.rotations import Triple


class RowValues(NamedTuple):
    """Holds the differentiable values of projected rows: see ``ProjectedGaussians``."""

    means2d: Tensor
    depths: Tensor
    shapes: Tensor
    normals: Tensor | None
    compensations: Tensor | None


class ScreenCovariances(NamedTuple):
    """Means, depths and screen covariances of projected Gaussians, [nnz] each.

    Attributes:
        x, y: Pixel means.
        depths, z: Depths, and the depths that the planes cull by.
        covariance: Upper triangle of the screen covariance, before eps2d is added.
        seen: Which rows their cameras see; None if culling tells.
    """

    x: Tensor
    y: Tensor
    depths: Tensor
    z: Tensor
    covariance: Triple
    seen: Tensor | None


Bounds = Callable[[Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""From opacities: whether rows pass the projector's own tests, radii as numbers, and the depth that planes cull by."""

Projector = Callable[[Gaussians3D, Cameras, ProjectionSettings, Tensor | slice], tuple[RowValues, Bounds]]
"""Projects rows of Gaussians, given their indices, each with a camera of its own."""
