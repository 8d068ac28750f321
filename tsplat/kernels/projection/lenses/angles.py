"""The sine of an angle, and the angle of a vector, without library functions of a device."""

import math

import triton
import triton.language as tl

from ...device_math import constant
from .fisheye import PI, fisheye_direction

N_SINE = tl.constexpr(10)
SINE = tl.constexpr(tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(N_SINE.value, -1, -1)))
"""Taylor coefficients of the sine, highest term first. The error is below 1e-13 in [-SINE_MAX, SINE_MAX]."""
SINE_MAX = tl.constexpr(2.5)


@triton.jit
def sine(x):
    """Returns the sine of an angle that is first clamped to [-SINE_MAX, SINE_MAX]."""
    x = tl.minimum(tl.maximum(x, -SINE_MAX), SINE_MAX)
    square = x * x
    total = constant(SINE[0], x)
    for k in tl.static_range(N_SINE):
        total = total * square + SINE[k + 1]
    return total * x


@triton.jit
def atan2(y, x):
    """Returns the angle of the vector (x, y), of any length, in (-pi, pi]."""
    direction = fisheye_direction((y, y * 0.0, x))
    unit_y = direction.unit[0]
    # At an angle of pi, k is infinite.
    return tl.where((x < 0.0) & (tl.abs(unit_y) < 1e-15), PI, direction.k * unit_y)
