"""Equirectangular projection, u = fx longitude + cx and v = fy latitude + cy, of all directions around a camera.

Longitudes grow from the z axis to the x axis, latitudes from the plane of both to the y axis, which points down. With
the distance r from the y axis, r^2 = x^2 + z^2:

    longitude = atan2(x, z),  latitude = atan2(y, r)
    d longitude = (z dx - x dz) / r^2,  d latitude = (r dy - y (x dx + z dz) / r) / |p|^2

On the y axis, longitude is 0, and the gradients of x and z are 0.
"""

import math

import triton
import triton.language as tl

from ....config import AXIS_MIN
from .fisheye import fisheye_direction
from .interface import Lens

SQUARE_MIN = tl.constexpr(AXIS_MIN)
PI = tl.constexpr(math.pi)


@triton.jit
def angle(sine, cosine):
    """The angle whose sine and cosine are in proportion to these, in (-pi, pi]."""
    d, _, k, _, _ = fisheye_direction((sine, sine * 0.0, cosine))
    # Behind, k is infinite at 0.
    return tl.where((cosine < 0.0) & (tl.abs(d[0]) < 1e-15), PI, k * d[0])


@triton.jit
def _bend(p, k):
    square = p[0] * p[0] + p[2] * p[2]
    has_longitude = square > SQUARE_MIN
    longitude = angle(tl.where(has_longitude, p[0], 0.0), tl.where(has_longitude, p[2], 1.0))
    across = tl.where(has_longitude, tl.sqrt(square), 0.0)
    return longitude, angle(p[1], across), square >= 0.0, (across,)


@triton.jit
def _bend_vjp(p, k, saved, v_x, v_y):
    across = saved[0]
    has_longitude = across > 0.0
    inverse = tl.where(has_longitude, 1.0 / tl.where(has_longitude, across, 1.0), 0.0)
    v_latitude = v_y / (across * across + p[1] * p[1])
    v_longitude = v_x * inverse * inverse
    v_across = v_latitude * p[1] * inverse
    return v_longitude * p[2] - v_across * p[0], v_latitude * across, -v_longitude * p[0] - v_across * p[2]


EQUIRECTANGULAR = Lens(None, None, None, None, _bend, _bend_vjp, CULLS_BY_DISTANCE=True, WRAPS=True)
