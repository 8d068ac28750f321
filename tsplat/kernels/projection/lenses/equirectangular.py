"""Equirectangular projection of all directions: u = fx longitude + cx, v = fy latitude + cy.

Longitudes grow from the z axis to the x axis. Latitudes grow from the xz plane to the y axis, which points down. With
the distance r from the y axis, r^2 = x^2 + z^2:

    longitude = atan2(x, z),  latitude = atan2(y, r)
    d longitude = (z dx - x dz) / r^2,  d latitude = (r dy - y (x dx + z dz) / r) / |p|^2

On the y axis, the longitude is 0, and the gradients of x and z are 0.

The difference of the longitudes of p + d and p is the longitude of p + d in a frame rotated by the longitude of p, in
which p is (0, y, r). The difference of the latitudes b' and b is computed in a frame that is also rotated by b:

    sin(b' - b) = (d_y r - y (r' - r)) / (|p| |p + d|),  r' - r = (d_x^2 + d_z (2 r + d_z)) / (r' + r)
"""

import triton
import triton.language as tl

from ....config import AXIS_MIN
from ...device_math import add, dot
from .angles import atan2
from .interface import Lens

SQUARE_MIN = tl.constexpr(AXIS_MIN)


@triton.jit
def _project(p, k):
    square = p[0] * p[0] + p[2] * p[2]
    has_longitude = square > SQUARE_MIN
    longitude = atan2(tl.where(has_longitude, p[0], 0.0), tl.where(has_longitude, p[2], 1.0))
    r = tl.where(has_longitude, tl.sqrt(square), 0.0)
    return longitude, atan2(p[1], r), square >= 0.0, (r,)


@triton.jit
def _project_vjp(p, k, saved, v_x, v_y):
    r = saved[0]
    has_longitude = r > 0.0
    inverse = tl.where(has_longitude, 1.0 / tl.where(has_longitude, r, 1.0), 0.0)
    v_latitude = v_y / (r * r + p[1] * p[1])
    v_longitude = v_x * inverse * inverse
    v_r = v_latitude * p[1] * inverse
    return v_longitude * p[2] - v_r * p[0], v_latitude * r, -v_longitude * p[0] - v_r * p[2]


@triton.jit
def _project_difference(p, d):
    # q = p + d in the frame rotated by the longitude of p
    square = p[0] * p[0] + p[2] * p[2]
    has_longitude = square > SQUARE_MIN
    inverse = tl.where(has_longitude, 1.0 / tl.sqrt(tl.where(has_longitude, square, 1.0)), 0.0)
    sine, cosine = p[0] * inverse, tl.where(has_longitude, p[2] * inverse, 1.0)
    r = square * inverse
    dx, dz = cosine * d[0] - sine * d[2], sine * d[0] + cosine * d[2]
    q = add((0.0, p[1], r), (dx, d[1], dz))
    exists = dot(q, q) > SQUARE_MIN
    longitude, _, _, saved = _project((q[0], q[1], tl.where(exists, q[2], 1.0)), ())
    r_of_q = saved[0]
    total = r + r_of_q
    r_difference = (dx * dx + dz * (2.0 * r + dz)) / tl.where(total > 0.0, total, 1.0)
    square = p[1] * p[1] + r * r
    inverse = tl.where(square > SQUARE_MIN, 1.0 / tl.sqrt(tl.where(square > SQUARE_MIN, square, 1.0)), 0.0)
    sine, cosine = p[1] * inverse, tl.where(square > SQUARE_MIN, r * inverse, 1.0)
    latitude = atan2(d[1] * cosine - r_difference * sine, q[1] * sine + r_of_q * cosine)
    return tl.where(exists, longitude, 0.0), tl.where(exists, latitude, 0.0)


EQUIRECTANGULAR = Lens(
    project=_project,
    project_vjp=_project_vjp,
    CULLS_BY_DISTANCE=True,
    WRAPS=True,
    project_difference=_project_difference,
)
