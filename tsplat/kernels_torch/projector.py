"""Projectors: how a kind of Gaussian is projected. The projection knows only what a `Projector` returns."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..data import Cameras, Gaussians3D, ProjectionSettings


class Screen(NamedTuple):
    """What is differentiable of projected rows: see ``ProjectedGaussians``."""

    means2d: Tensor
    depths: Tensor
    conics: Tensor
    normals: Tensor | None
    compensations: Tensor | None


Bounds = Callable[[Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""From opacities: whether rows pass the projector's own tests, radii as numbers, and the depth that planes cull by."""

Projector = Callable[[Gaussians3D, Cameras, ProjectionSettings, Tensor | slice], tuple[Screen, Bounds]]
"""Projects rows of Gaussians, given their indices, each with a camera of its own."""
