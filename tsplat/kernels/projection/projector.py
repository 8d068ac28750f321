"""Projectors: how a kind of Gaussian is projected. The kernels of the projection know only what a `Projector` says."""

import dataclasses
from typing import Any, NamedTuple

from ...config import ALPHA_MIN, FOV_MARGIN, RADIUS_MAX, Unscented
from ...data import Cameras, ProjectionSettings
from ..contract import Contract
from .lenses import LENSES, Lens


class Constants(NamedTuple):
    """Holds the constants that are compiled into the kernels of a projection.

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
            LENS=LENSES[settings.camera.model],
            READOUT=settings.camera.readout,
            N_LENS=0 if cameras.lens is None else cameras.lens.shape[-1],
            UNSCENTED=settings.unscented,
            COMPENSATE=settings.antialiased,
            FLOOR=settings.numerics.compensation_floor,
            EXTEND=settings.numerics.extend,
            OPACITY_AWARE=settings.numerics.opacity_aware,
        )


class Projection(NamedTuple):
    """Holds the results of a projector for a Gaussian and a camera.

    Attributes:
        seen: Whether the Gaussian passes the projector's own tests.
        depth, z: Its depth, and the depth that the near and the far plane cull by.
        mean2d, radii: Mean, and radii along x and y, pixels.
        shape: Values of ``ProjectedGaussians.shapes``.
        normal, compensation: As in ``ProjectedGaussians``; () if the projector has none.
        opacity: The opacity times the compensation; () without opacity.
    """

    seen: Any
    depth: Any
    z: Any
    mean2d: Any
    radii: Any
    shape: Any
    normal: Any
    compensation: Any
    opacity: Any


class RowGradients(NamedTuple):
    """Gradients of a row, which is a :class:`Projection`; None for those that are not given."""

    v_mean2d: Any
    v_depth: Any
    v_shape: Any
    v_normal: Any
    v_opacity: Any
    v_compensation: Any


class InputGradients(NamedTuple):
    """Gradients of a Gaussian and a camera.

    Attributes:
        v_gaussian: GRADIENTS values in the world frame.
        v_opacity: That of the opacity.
        v_lens, v_path: Those of the first N_COEFFICIENTS values of the lens, and PATH_GRADIENTS of the path; or ().
        saved: What ``pose_gradient`` needs.
    """

    v_gaussian: Any
    v_opacity: Any
    v_lens: Any
    v_path: Any
    saved: Any


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Projector(Contract):
    """A projection, by device functions that are differentiated by hand.

    `gaussian` is what ``load`` returned for a Gaussian: a bundle with its ``mean``. `camera` is a :class:`Camera`,
    `screen` a :class:`Screen`, and CONSTANTS are a :class:`Constants`.

    Attributes:
        SHAPE: Values of a row's shape, ``ProjectedGaussians.shapes``.
        GRADIENTS: Values of a Gaussian's gradient that are summed over its cameras; the first three are the mean's.
        load: (gaussians, i, mask) to `gaussian` of Gaussian i.
        project: (gaussian, camera, opacity or None, screen, CONSTANTS) to a :class:`Projection`.
        vjp: (gaussian, camera, opacity or None, screen, v, OF_LENS, OF_PATH, CONSTANTS) to :class:`InputGradients`,
            with v_lens if OF_LENS and v_path if OF_PATH, from v, the :class:`RowGradients`.
        pose_gradient: (gaussian, ``saved`` of ``vjp``, ROW, COLUMN, CONSTANTS) to the gradient of an entry of the view
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
