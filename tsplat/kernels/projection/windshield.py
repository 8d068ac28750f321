"""A windshield in front of a lens maps the angles phi = asin(x / |p|) and psi = asin(y / |p|) of a point p to others.

The new angles h and v are polynomials of phi and psi: sums of c_jk phi^j psi^k with j + k <= 5.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..device_math import constant
from .lenses.angles import sine
from .lenses.fisheye import fisheye_direction

RIGHT_ANGLE = tl.constexpr(math.pi / 2)

N_POLYNOMIAL = tl.constexpr(21)


class Refraction(NamedTuple):
    """The direction in which a point is seen through a windshield.

    Attributes:
        direction: Unit direction behind the windshield; the optical axis if the point is not visible.
        exists: Whether the point is visible.
        h_phi, h_psi, v_phi, v_psi: Derivatives of the angles h and v by phi and psi.
    """

    direction: Any
    exists: Any
    h_phi: Any
    h_psi: Any
    v_phi: Any
    v_psi: Any


@triton.jit
def refract(p, polynomials):
    """Returns the :class:`Refraction` of a point in front of the camera. ``polynomials`` points to 2 × 21 coefficients.

    The point is not visible if an angle exceeds 90 degrees, or where the map of directions folds back: where its
    Jacobian determinant is not positive.
    """
    phi = _angle(p[0], p[1], p[2])
    psi = _angle(p[1], p[0], p[2])
    h, h_phi, h_psi = _polynomial(polynomials, phi, psi)
    v, v_phi, v_psi = _polynomial(polynomials + N_POLYNOMIAL, phi, psi)
    x = sine(h)
    y = sine(v)
    square = 1.0 - x * x - y * y
    limit = constant(RIGHT_ANGLE, h)
    exists = (tl.abs(h) < limit) & (tl.abs(v) < limit) & (square > 0.0) & (h_phi * v_psi > h_psi * v_phi)
    direction = tl.where(exists, x, 0.0), tl.where(exists, y, 0.0), tl.sqrt(tl.where(exists, square, 1.0))
    return Refraction(direction=direction, exists=exists, h_phi=h_phi, h_psi=h_psi, v_phi=v_phi, v_psi=v_psi)


@triton.jit
def _angle(along, aside, z):
    """Returns asin(along / |p|), the angle between a point and the plane perpendicular to an axis."""
    direction = fisheye_direction((along, along * 0.0, tl.sqrt(aside * aside + z * z)))
    return direction.k * direction.unit[0]


@triton.jit
def _polynomial(coefficients, x, y):
    """Returns the sum over k of y^k (c_0k + c_1k x + ...), and its derivatives by x and y, by Horner's method."""
    value = x * 0.0
    of_x = value
    of_y = value
    for i in tl.static_range(6):
        inner = x * 0.0
        slope = inner
        for j in tl.static_range(i + 1):
            # k = 5 - i; powers of x from i down to 0
            slope = slope * x + inner
            inner = inner * x + tl.load(coefficients + (5 - i) * (8 + i) // 2 + i - j)
        of_y = of_y * y + value
        of_x = of_x * y + slope
        value = value * y + inner
    return value, of_x, of_y


@triton.jit
def refract_vjp(p, refraction, v):
    """Returns the gradient of a point from the gradient v of its direction behind the windshield."""
    q, exists = refraction.direction, refraction.exists
    v_h = tl.sqrt(1.0 - q[0] * q[0]) * (v[0] - v[2] * q[0] / q[2])
    v_v = tl.sqrt(1.0 - q[1] * q[1]) * (v[1] - v[2] * q[1] / q[2])
    aside_x = tl.sqrt(p[1] * p[1] + p[2] * p[2])
    aside_y = tl.sqrt(p[0] * p[0] + p[2] * p[2])
    inverse = 1.0 / (p[0] * p[0] + aside_x * aside_x)
    of_phi = inverse * (v_h * refraction.h_phi + v_v * refraction.v_phi)
    of_psi = inverse * (v_h * refraction.h_psi + v_v * refraction.v_psi)
    along_x = of_phi * p[0] / aside_x
    along_y = of_psi * p[1] / aside_y
    return (
        tl.where(exists, of_phi * aside_x - along_y * p[0], 0.0),
        tl.where(exists, of_psi * aside_y - along_x * p[1], 0.0),
        tl.where(exists, -(along_x + along_y) * p[2], 0.0),
    )
