"""Projectors: how a kind of Gaussian is projected. The kernels of the projection know only what a `Projector` says."""

import dataclasses
from typing import Any, NamedTuple

from ...config import ALPHA_MIN, FOV_MARGIN, RADIUS_MAX, Unscented
from ...data import Cameras, ProjectionSettings
from ..contract import Contract
from .lenses import LENSES, Lens


class Constants(NamedTuple):
    """What is compiled into the kernels of a projection.

    Attributes:
        LENS, READOUT: The camera model, and the direction in which a rolling shutter exposes, of ``CameraSettings``.
        N_LENS: Values of a lens, 0 without one.
        UNSCENTED: Parameters of the unscented transform; None for other projections.
        COMPENSATE, FLOOR: Whether there are compensations, and their least value.
        EXTEND, OPACITY_AWARE: Of ``Numerics``: how far a Gaussian reaches, and whether that depends on its opacity.
        ALPHA_MIN, FOV_MARGIN, RADIUS_MAX: Of ``config``.
    """

    LENS: Lens
    READOUT: str
    N_LENS: int
    UNSCENTED: Unscented | None
    COMPENSATE: bool
    FLOOR: float
    EXTEND: float
    OPACITY_AWARE: bool
    ALPHA_MIN: float = ALPHA_MIN
    FOV_MARGIN: float = FOV_MARGIN
    RADIUS_MAX: float = float(RADIUS_MAX)

    @classmethod
    def of(cls, settings: ProjectionSettings, cameras: Cameras) -> "Constants":
        return cls(
            LENSES[settings.camera.model],
            settings.camera.readout,
            0 if cameras.lens is None else cameras.lens.shape[-1],
            settings.unscented,
            settings.antialiased,
            settings.numerics.compensation_floor,
            settings.numerics.extend,
            settings.numerics.opacity_aware,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Projector(Contract):
    """A projection, by device functions that are differentiated by hand.

    `gaussian` is what ``load`` returned for a Gaussian: a tuple whose first entry is the mean. A `camera` is (w, t,
    intrinsics, lens, path): rotation and translation from world to camera, (fx, fy, cx, cy), and what ``load_lens`` and
    ``load_path`` return. A `plane` is (width, height, eps2d). CONSTANTS are a :class:`Constants`.

    Attributes:
        SHAPE: Values of a row's shape, ``ProjectedGaussians.conics``.
        GRADIENTS: Values of a Gaussian's gradient that are summed over its cameras; the first three are the mean's.
        load: (gaussians, i, mask) to `gaussian` of Gaussian i.
        project: (gaussian, camera, opacity or None, plane, CONSTANTS) to whether a Gaussian passes the projector's own
            tests; its depth, and the depth that the near and the far plane cull by; mean in pixels; radii along x and
            y; shape; and, () if there is none, normal; compensation; and the opacity times it.
        vjp: (gaussian, camera, opacity or None, plane, v, OF_LENS, OF_PATH, CONSTANTS) to gradients: GRADIENTS values
            in the world frame; that of the opacity; those of the lens if OF_LENS, followed by those of the path if
            OF_PATH, or (); and what ``pose_gradient`` needs. v are the gradients of the mean in pixels, the depth, the
            shape, the normal, the opacity and the compensation; None for those that are not given.
        pose_gradient: (gaussian, what ``vjp`` returned for it, ROW, COLUMN, CONSTANTS) to that of an entry of the view
            matrix.
        finish: (gaussians, i, mask, gaussian, sums of GRADIENTS values) to the gradients of quaternion, scales and
            covariance, () for those that the Gaussian does not have.
    """

    SHAPE: int
    GRADIENTS: int
    load: Any
    project: Any
    vjp: Any
    pose_gradient: Any
    finish: Any
