"""Parameter classes of cameras that need the unscented transform."""

import dataclasses
from typing import ClassVar

from .... import config
from ....stages import lens_models

FThetaCameraDistortionParameters = config.FThetaCameraDistortionParameters
FThetaPolynomialType = config.FThetaPolynomialType
UnscentedTransformParameters = config.UnscentedTransformParameters


class ExternalDistortionModelParameters:
    """Base class of distortions outside of the camera."""


@dataclasses.dataclass
class BivariateWindshieldModelParameters(
    lens_models.BivariateWindshieldModelParameters, ExternalDistortionModelParameters
):
    """Parameters of a windshield, see :class:`tsplat.BivariateWindshieldModelParameters`."""

    MAX_ORDER: ClassVar[int] = 5
    MAX_COEFFS: ClassVar[int] = 21


ExternalDistortionReferencePolynomial = lens_models.ExternalDistortionReferencePolynomial
