"""The interface of lenses: projection of points to image positions, and the inverse."""

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...formulas.rotations import Triple

Row = tuple[Tensor | None, Tensor | None, Tensor | None]
"""A row of a Jacobian. Entries that are zero are None."""

Projected = tuple[Tensor, Tensor, Row, Row]
"""The pixel u, v, and the two rows of the Jacobian."""

NoCoefficients = namedtuple("NoCoefficients", ())


class Lens(ABC):
    """A camera model, differentiated by autograd; see ``kernels/projection/lenses/interface.py``.

    A point p is in the camera frame. The coefficients k are None without distortion. The image position (x, y) is
    relative to the principal point, for a focal length of 1.

    Attributes:
        coefficients: Class of the coefficients, in the order of ``Cameras.lens``.
        arguments: The arguments of ``rasterization()`` that hold coefficients, with their number of values.
        has_jacobian: Whether the lens has a ``project_with_jacobian``, for EWA splatting.
        culls_by_distance: Whether near and far planes cull by the distance from the camera, if depth is this distance.
        is_parallel: Whether rays start at (x, y) and are parallel to the optical axis (orthographic projection).
        wraps: Whether x is a longitude over the full circle. The camera then sees all directions, and u has a period.
    """

    coefficients: ClassVar[Any] = NoCoefficients
    arguments: ClassVar[Mapping[str, int]] = {}
    has_jacobian: ClassVar[bool] = True
    culls_by_distance: ClassVar[bool] = False
    is_parallel: ClassVar[bool] = False
    wraps: ClassVar[bool] = False

    def read(self, values: tuple[Tensor, ...]) -> Any:
        """Returns the coefficients from ``Cameras.lens``, or None if there are no values."""
        return self.coefficients._make(values[: len(self.coefficients._fields)]) if values else None

    def pack(self, given: Mapping[str, Tensor], zeros: Tensor) -> Tensor:
        """Packs the arguments that are passed, [..., n] each, into ``Cameras.lens`` [..., 12]. Others are zero."""
        values = [given.get(name, zeros[..., :n]) for name, n in self.arguments.items()]
        return torch.cat([*values, zeros[..., sum(self.arguments.values()) :]], -1)

    def project_with_jacobian(self, p: Triple, intrinsics: tuple[Tensor, ...], width: int, height: int) -> Projected:
        """Returns the pixel of a point, without distortion, and the two rows of the Jacobian."""
        raise NotImplementedError

    def shows_behind(self, p: Triple, k: Any) -> Tensor | None:
        """Returns which points the lens shows even if they are behind the camera, or None for no point."""
        return None

    def project_difference(self, p: Triple, d: Triple) -> Triple:
        """Returns (x, y) of p + d minus (x, y) of p, without the rounding errors of both, and whether p + d has one.

        Only for lenses that wrap. x is the shorter way around.
        """
        raise NotImplementedError

    @abstractmethod
    def project(self, p: Triple, k: Any) -> Triple:
        """Returns x and y of a point, and whether the lens sees it. The point is in front of the camera, or
        anywhere if the lens wraps."""

    @abstractmethod
    def unproject(self, x: Tensor, y: Tensor, k: Any) -> Triple:
        """Returns the unit direction at an image position (x, y); zeros if there is none."""
