"""Settings of camera models that need the unscented transform."""

from __future__ import annotations

import dataclasses
import enum

from .... import config
from .._unsupported import unsupported_class

Polynomial = tuple[float, float, float, float, float, float]


@dataclasses.dataclass
class UnscentedTransformParameters(config.UnscentedTransformParameters):
    """Parameters of the unscented transform, as in :class:`tsplat.UnscentedTransformParameters`."""

    require_all_sigma_points_valid: bool = True


class FThetaPolynomialType(enum.Enum):
    """Which of the two polynomials of an f-theta camera is the exact one."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


@dataclasses.dataclass
class FThetaCameraDistortionParameters:
    """An f-theta camera, which is not implemented: ``ftheta_coeffs`` of :func:`tsplat.rasterization` raises.

    Attributes:
        reference_poly: The exact polynomial; the other one approximates its inverse.
        pixeldist_to_angle_poly, angle_to_pixeldist_poly: Coefficients from degree 0 to 5, pixels and radians.
        max_angle: Largest angle to the optical axis, radians.
        linear_cde: The affine map from the distorted to the image plane, [[c, d], [e, 1]].
    """

    reference_poly: FThetaPolynomialType
    pixeldist_to_angle_poly: Polynomial
    angle_to_pixeldist_poly: Polynomial
    max_angle: float
    linear_cde: tuple[float, float, float]


_UNDISTORT = "undistort the images, and use a pinhole camera"
ExternalDistortionModelParameters = unsupported_class("ExternalDistortionModelParameters", "", instead=_UNDISTORT)
BivariateWindshieldModelParameters = unsupported_class(
    "BivariateWindshieldModelParameters", "", instead=_UNDISTORT, base=ExternalDistortionModelParameters
)
