"""Lenses: where a camera shows a point, and what a pixel shows. Everything else knows only what a `Lens` says."""

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...formulas.rotations import Triple

Row = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Row of a Jacobian; None where it is zero."""

Projected = tuple[Tensor, Tensor, Row, Row]
"""A pixel, and both rows of the Jacobian."""

NoCoefficients = namedtuple("NoCoefficients", ())


class Lens(ABC):
    """A camera model, differentiated by autograd; see ``kernels/projection/lenses/interface.py``.

    A point p is in the frame of the camera, and k are the coefficients, None without distortion. Positions x and y are
    those of a camera with a focal length of 1, from the principal point.

    Attributes:
        coefficients: Class of the coefficients, in the order of ``Cameras.lens``.
        arguments: Arguments of ``rasterization()`` that are coefficients, and how many values each has.
        has_jacobian: Whether there is a ``project_with_jacobian``, for EWA splatting.
        culls_by_distance: Whether planes cull by the distance from the camera, where depth is that distance.
        is_parallel: Whether rays are parallel to the axis, from x and y, rather than from the center of the camera.
        wraps: Whether x is an angle of a full circle. Then the camera sees all directions, and u has a period.
    """

    coefficients: ClassVar[Any] = NoCoefficients
    arguments: ClassVar[Mapping[str, int]] = {}
    has_jacobian: ClassVar[bool] = True
    culls_by_distance: ClassVar[bool] = False
    is_parallel: ClassVar[bool] = False
    wraps: ClassVar[bool] = False

    def read(self, values: tuple[Tensor, ...]) -> Any:
        """Returns the coefficients among the values of a lens; None of ()."""
        return self.coefficients._make(values[: len(self.coefficients._fields)]) if values else None

    def pack(self, given: Mapping[str, Tensor], zeros: Tensor) -> Tensor:
        """Returns the values of lenses from the arguments [..., n] that are given, and zeros. [..., 12]"""
        values = [given.get(name, zeros[..., :n]) for name, n in self.arguments.items()]
        return torch.cat([*values, zeros[..., sum(self.arguments.values()) :]], -1)

    def project_with_jacobian(self, p: Triple, intrinsics: tuple[Tensor, ...], width: int, height: int) -> Projected:
        """Returns the pixel of a point, without distortion, and both rows of the Jacobian."""
        raise NotImplementedError

    def shows_behind(self, p: Triple, k: Any) -> Tensor | None:
        """Returns where :meth:`project` takes points even if they are behind the camera; None if it never does."""
        return None

    def project_difference(self, p: Triple, d: Triple) -> Triple:
        """Returns x and y of p + d less those of p, without the rounding errors of either; and whether p + d has any.

        For lenses that wrap: x is the shorter way around.
        """
        raise NotImplementedError

    @abstractmethod
    def project(self, p: Triple, k: Any) -> Triple:
        """Returns x and y of a point in front of the camera, or anywhere if it wraps; and whether the lens sees it."""

    @abstractmethod
    def unproject(self, x: Tensor, y: Tensor, k: Any) -> Triple:
        """Returns the unit direction that is shown at x and y; zeros if there is none."""
