"""The 3D smoothing filter of Mip-Splatting (Yu et al., Mip-Splatting: Alias-free 3D Gaussian Splatting, 2024, eq. 9).

Mip-Splatting, and methods based on it such as Gaussian Opacity Fields, store unfiltered parameters and the standard
deviation of each Gaussian's filter. The filter widens a Gaussian and lowers its opacity, so that its integral along a
ray through the center stays about the same.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantization import Floats

NAMES = ("filter_3D", "filter_3d")
"""Names of the PLY property."""


def apply_filter(log_scales: Floats, opacity_logits: Floats, sigmas: NDArray[Any]) -> tuple[Floats, Floats]:
    """Applies the filter to scales s and opacities o, in fp64: s' = sqrt(s^2 + sigma^2), o' = o prod(s) / prod(s').

    Args:
        log_scales, opacity_logits: [N, 3] logarithms of s, and [N] logits of o.
        sigmas: [N] standard deviations of the filter, world units. A sigma of 0 changes nothing. A negative or infinite
            sigma, or NaN, makes the Gaussian invalid: its log scales become NaN.
    """
    logs, logits, sigma = (values.astype(np.float64) for values in (log_scales, opacity_logits, sigmas))
    with np.errstate(all="ignore"):
        sigma = np.where(np.isfinite(sigma) & (sigma >= 0), sigma, np.nan)
        log_sigma = np.log(sigma)[:, None]
        filtered = np.logaddexp(2 * logs, 2 * log_sigma) / 2
        # log(s / s') without cancellation. A scale of 0 has a ratio of 0, and 1 without a filter.
        log_ratios = -np.logaddexp(0, 2 * (log_sigma - logs)) / 2
        factors = np.where(sigma == 0, 0, log_ratios.sum(1))
        log_opacities = factors - np.logaddexp(0, -logits)
        # logit(o') = log(o') - log(1 - o')
        compensated = log_opacities - np.log(-np.expm1(log_opacities))
        compensated = np.where(factors == 0, logits, compensated)
    return filtered.astype(np.float32), compensated.astype(np.float32)
