"""F-theta lenses: the distance from the principal point is a polynomial of the angle theta, or the inverse of one.

A linear map follows. The values of the lens are the coefficients c1 to c5 of the polynomial, whose constant term is 0;
the largest angle and its distance; c, d and e of the linear map (x, y) -> (c x + d y, e x + y); whether the polynomial
maps distances to angles; and whether points behind the camera are visible. Beyond the largest angle, where no point is
seen, distances are proportional to theta.
"""

import triton
import triton.language as tl

from ....config import BACK_SLOPE_SQUARED, FTHETA_STEPS
from .fisheye import RadialDistortion, fisheye_direction, radial_project_vjp
from .interface import Lens

INVERSION_STEPS = tl.constexpr(FTHETA_STEPS)
LEAST_SLOPE = tl.constexpr(BACK_SLOPE_SQUARED)


@triton.jit
def _gain(theta, k):
    """Returns gain = distance from the principal point / theta, and the derivative of the gain by theta^2.

    An inverse polynomial is evaluated by Newton's method with bisection as a fallback.
    """
    theta_max, distance_max, inverts = k[5], k[6], k[10] > 0.0
    inside = tl.minimum(theta, theta_max)
    t = inside * (distance_max / theta_max)
    low = t * 0.0
    high = low + distance_max
    for _ in range(INVERSION_STEPS):
        value, slope = _polynomial(t, k)
        residual = t * value - inside
        low = tl.where(residual <= 0.0, t, low)
        high = tl.where(residual >= 0.0, t, high)
        newton = t - residual / (value + t * slope)
        t = tl.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
    t = tl.where(inverts, t, inside)
    value, slope = _polynomial(t, k)
    gain = tl.where(inverts, 1.0 / value, value)
    slope = tl.where(inverts, -gain * gain * slope / (value + t * slope), slope)
    return gain, tl.where((theta > 0.0) & (theta <= theta_max), 0.5 * slope / theta, 0.0)


@triton.jit
def _polynomial(t, k):
    """Returns polynomial(t) / t, and its derivative."""
    c1, c2, c3, c4, c5 = k[:5]
    value = c1 + t * (c2 + t * (c3 + t * (c4 + t * c5)))
    return value, c2 + t * (2.0 * c3 + t * (3.0 * c4 + t * (4.0 * c5)))


@triton.jit
def _project(p, k):
    theta_max = k[5]
    c, d, e = k[7:10]
    direction = fisheye_direction(p)
    q0 = direction.k * direction.unit[0]
    q1 = direction.k * direction.unit[1]
    theta = tl.sqrt(q0 * q0 + q1 * q1)
    gain, slope = _gain(theta, k)
    x = gain * q0
    y = gain * q1
    distortion = RadialDistortion(x=q0, y=q1, gain=gain, slope=slope)
    return c * x + d * y, e * x + y, theta <= theta_max, (direction, distortion)


@triton.jit
def _project_vjp(p, k, saved, v_x, v_y):
    c, d, e = k[7:10]
    return radial_project_vjp(p, k, saved, c * v_x + e * v_y, d * v_x + v_y)


@triton.jit
def _shows_behind(p, k):
    return (k[11] > 0.0) & (p[0] * p[0] + p[1] * p[1] > LEAST_SLOPE * (p[2] * p[2]))


FTHETA = Lens(project=_project, project_vjp=_project_vjp, CULLS_BY_DISTANCE=True, shows_behind=_shows_behind)
