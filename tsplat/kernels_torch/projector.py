"""The interface between the projection and its projectors: of ellipses (EWA or unscented), and of surfels."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..formulas.rotations import Triple


class RowValues(NamedTuple):
    """The differentiable values of projected rows; see ``ProjectedGaussians``."""

    means2d: Tensor
    depths: Tensor
    shapes: Tensor
    normals: Tensor | None
    compensations: Tensor | None


class ScreenCovariances(NamedTuple):
    """Means, depths and screen covariances of projected Gaussians, [nnz] each.

    Attributes:
        x, y: Pixel means.
        depths: Depths.
        z: The depths that are compared with the near and far planes.
        covariance: Upper triangle of the screen covariance, before eps2d is added.
        seen: Whether the camera sees a row; None if culling alone decides.
    """

    x: Tensor
    y: Tensor
    depths: Tensor
    z: Tensor
    covariance: Triple
    seen: Tensor | None


Bounds = Callable[[Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""Maps opacities to: whether rows pass the culling tests of the projector, the radii in the compute dtype, and the
depths that are compared with the near and far planes."""

Projector = Callable[[Gaussians3D, Cameras, ProjectionSettings, Tensor | slice], tuple[RowValues, Bounds]]
"""Projects rows, given the Gaussians, the camera of each row, and the index of the Gaussian of each row."""
