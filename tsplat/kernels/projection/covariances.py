"""Device functions that compute conic, radii, compensation and opacity from a screen covariance, with gradients.

Tuples are laid out as in ``device_math.py``.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..device_math import (
    add,
    bounds,
    compensation,
    compensation_vjp,
    conic,
    conic_vjp,
    constant,
    det2,
    finite,
)


class Ellipse(NamedTuple):
    """The visible ellipse of a screen covariance.

    Attributes:
        seen: Whether the covariance is positive definite, and the opacity, if given, large enough.
        radii: Radii along x and y, pixels.
        conic: The inverse of the covariance.
        compensation: The antialiasing factor of the opacity; 1 without antialiasing.
        opacity: opacity * compensation; () without opacity.
    """

    seen: Any
    radii: Any
    conic: Any
    compensation: Any
    opacity: Any


@triton.jit
def blur(sharp, eps2d):
    """Adds eps2d to the diagonal of a screen covariance."""
    added = constant(eps2d, sharp[0])
    return sharp[0] + added, sharp[1], sharp[2] + added


@triton.jit
def visible_ellipse(sharp, blurred, opacity, CONSTANTS: tl.constexpr):
    """Returns the :class:`Ellipse` of a screen covariance, given without and with eps2d.

    All comparisons are false for NaN.
    """
    det = det2(blurred)
    inverse = conic(blurred, det)
    seen = (det > 0.0) & finite(det)
    rho = constant(1.0, det)
    if CONSTANTS.COMPENSATE:
        rho = compensation(det2(sharp), det, CONSTANTS.FLOOR)
    culling_opacity = None
    if opacity is not None:
        culling_opacity = rho * opacity
        compensated_opacity = culling_opacity
        # As in gsplat, the unscented transform culls by the compensated opacity. Not for lenses that wrap, which gsplat
        # does not have.
        if not CONSTANTS.COMPENSATE and CONSTANTS.UNSCENTED is not None and not CONSTANTS.LENS.WRAPS:
            culling_opacity = opacity * compensation(det2(sharp), det, CONSTANTS.FLOOR)
        if CONSTANTS.OPACITY_AWARE:
            seen = seen & (culling_opacity >= constant(CONSTANTS.ALPHA_MIN, culling_opacity))
        radii = bounds(blurred, det, culling_opacity, CONSTANTS.ALPHA_MIN, CONSTANTS.EXTEND, CONSTANTS.OPACITY_AWARE)
        return Ellipse(seen=seen, radii=radii, conic=inverse, compensation=rho, opacity=compensated_opacity)
    else:
        radii = bounds(blurred, det, None, CONSTANTS.ALPHA_MIN, CONSTANTS.EXTEND, CONSTANTS.OPACITY_AWARE)
        return Ellipse(seen=seen, radii=radii, conic=inverse, compensation=rho, opacity=())


@triton.jit
def visible_ellipse_vjp(sharp, blurred, opacity, v_conic, v_opacity, v_compensation, CONSTANTS: tl.constexpr):
    """Returns the gradients of the screen covariance and of the opacity, from those of an :class:`Ellipse` or None."""
    det = det2(blurred)
    zero = tl.zeros_like(det)
    v_cov = (zero,) * 3
    if v_conic is not None:
        v_cov = conic_vjp(blurred, det, v_conic)
    v_own_opacity = zero
    if v_opacity is not None:
        v_own_opacity = v_opacity
    if CONSTANTS.COMPENSATE:
        rho = compensation(det2(sharp), det, CONSTANTS.FLOOR)
        v_rho = zero
        if v_compensation is not None:
            v_rho = v_compensation
        if v_opacity is not None:
            v_rho += v_opacity * opacity
            v_own_opacity = v_opacity * rho
        v_cov = add(v_cov, compensation_vjp(sharp, blurred, det2(sharp), det, rho, CONSTANTS.FLOOR, v_rho))
    return v_cov, v_own_opacity
