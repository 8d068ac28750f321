"""Settings of camera models that need the unscented transform."""

import dataclasses

from .... import config
from .._unsupported import unsupported_class

FThetaCameraDistortionParameters = config.FThetaCameraDistortionParameters
FThetaPolynomialType = config.FThetaPolynomialType


@dataclasses.dataclass
class UnscentedTransformParameters(config.UnscentedTransformParameters):
    """Parameters of the unscented transform, as in :class:`tsplat.UnscentedTransformParameters`."""

    require_all_sigma_points_valid: bool = True


_UNDISTORT = "undistort the images, and use a pinhole camera"
ExternalDistortionModelParameters = unsupported_class("ExternalDistortionModelParameters", "", instead=_UNDISTORT)
BivariateWindshieldModelParameters = unsupported_class(
    "BivariateWindshieldModelParameters", "", instead=_UNDISTORT, base=ExternalDistortionModelParameters
)
