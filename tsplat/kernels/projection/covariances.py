"""Device functions of Gaussians that are projected as a covariance: conic, radii and compensation, and their gradients.

Tuples are laid out as in ``device_math.py``.
"""

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


@triton.jit
def blur(sharp, eps2d):
    """A screen covariance with eps2d on its diagonal."""
    added = constant(eps2d, sharp[0])
    return sharp[0] + added, sharp[1], sharp[2] + added


@triton.jit
def shape_of(sharp, blurred, opacity, CONSTANTS: tl.constexpr):
    """Culls, bounds and inverts a screen covariance, given without and with eps2d. Comparisons fail for NaN.

    Returns:
        Whether it is seen; radii along x and y; conic; compensation (or 1); opacity times it, () without opacity.
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
        # The unscented transform culls by the compensated opacity, as gsplat does, which has no lenses that wrap.
        if not CONSTANTS.COMPENSATE and CONSTANTS.UNSCENTED is not None and not CONSTANTS.LENS.WRAPS:
            culling_opacity = opacity * compensation(det2(sharp), det, CONSTANTS.FLOOR)
        if CONSTANTS.OPACITY_AWARE:
            seen = seen & (culling_opacity >= constant(CONSTANTS.ALPHA_MIN, culling_opacity))
        radii = bounds(blurred, det, culling_opacity, CONSTANTS.ALPHA_MIN, CONSTANTS.EXTEND, CONSTANTS.OPACITY_AWARE)
        return seen, radii, inverse, rho, compensated_opacity
    else:
        return (
            seen,
            bounds(blurred, det, None, CONSTANTS.ALPHA_MIN, CONSTANTS.EXTEND, CONSTANTS.OPACITY_AWARE),
            inverse,
            rho,
            (),
        )


@triton.jit
def shape_vjp(sharp, blurred, opacity, v_conic, v_opacity, v_compensation, CONSTANTS: tl.constexpr):
    """Gradients of the screen covariance and of the opacity from those of what ``shape_of`` returns; None for zero."""
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
