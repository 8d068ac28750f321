"""Projectors: the interface by which the projection kernels project a Gaussian and differentiate the projection."""

import dataclasses
from typing import Any, NamedTuple

from ...config import ALPHA_MIN, FOV_MARGIN, RADIUS_MAX, Unscented
from ...data import Cameras, ProjectionSettings
from ..contract import Contract
from .lenses import LENSES, Lens


class Constants(NamedTuple):
    """Constants that are compiled into the projection kernels.

    Attributes:
        LENS, READOUT: The lens, and the readout direction of the rolling shutter, from ``CameraSettings``.
        N_LENS: Number of values of a lens, 0 without one.
        UNSCENTED: Parameters of the unscented transform; None for other projectors.
        COMPENSATE, FLOOR: Whether to compute compensations, and their lower bound.
        EXTEND, OPACITY_AWARE: From ``Numerics``: the radius in standard deviations, and whether it depends on opacity.
        ALPHA_MIN, FOV_MARGIN, RADIUS_MAX: From ``config``.
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
    """The projection of a Gaussian with a camera.

    Attributes:
        seen: Whether the Gaussian passes the culling tests of the projector.
        depth, z: The depth, and the depth that is compared with the near and far planes.
        mean2d, radii: The mean, and the radii along x and y, pixels.
        shape: The values of ``ProjectedGaussians.shapes``.
        normal, compensation: As in ``ProjectedGaussians``; () if the projector has none.
        opacity: opacity * compensation; () without opacity.
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
    """Incoming gradients of a :class:`Projection`; None if not given."""

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
        v_opacity: The gradient of the opacity.
        v_lens, v_path: Gradients of the N_COEFFICIENTS first values of the lens, and of PATH_GRADIENTS values of the
            path; or ().
        saved: Values for ``pose_gradient``.
    """

    v_gaussian: Any
    v_opacity: Any
    v_lens: Any
    v_path: Any
    saved: Any


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Projector(Contract):
    """The device functions of a projection and of its gradient.

    `gaussian` is the result of ``load``, a bundle with at least ``mean``. `camera` is a :class:`Camera`, `screen` a
    :class:`Screen`, and CONSTANTS a :class:`Constants`.

    Attributes:
        SHAPE: Number of values per row of ``ProjectedGaussians.shapes``.
        GRADIENTS: Number of gradient values per Gaussian that are summed over cameras. The first three are v_mean.
        load: (gaussians, i, mask) -> `gaussian`: loads Gaussian i.
        project: (gaussian, camera, opacity or None, screen, CONSTANTS) -> :class:`Projection`.
        vjp: (gaussian, camera, opacity or None, screen, v, OF_LENS, OF_PATH, CONSTANTS) -> :class:`InputGradients`,
            with v a :class:`RowGradients`, and with v_lens if OF_LENS and v_path if OF_PATH.
        pose_gradient: (gaussian, ``saved`` of ``vjp``, ROW, COLUMN, CONSTANTS) -> gradient of an entry of the view
            matrix.
        finish: (gaussians, i, mask, gaussian, sums of GRADIENTS values) -> gradients of quaternion, scales and
            covariance; () for those that the Gaussian does not have.
    """

    SHAPE: int
    GRADIENTS: int
    load: Any
    project: Any
    vjp: Any
    pose_gradient: Any
    finish: Any
