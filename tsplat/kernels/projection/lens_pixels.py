"""Device functions that project points to pixels by any lens, with or without a windshield.

A point behind the camera gets pixel (0, 0) and is not seen, unless the lens shows it. For lenses that wrap, no point is
behind the camera, and u is in the period around the middle of the image. Tuples are laid out as in ``device_math.py``;
a ``camera`` is a :class:`Camera`.
"""

import math

import triton
import triton.language as tl

from ...config import AXIS_MIN
from ..device_math import add, constant, dot
from .loaded_cameras import N_COEFFICIENTS
from .windshield import refract, refract_vjp

SQUARE_MIN = tl.constexpr(AXIS_MIN)
TWO_PI = tl.constexpr(2 * math.pi)


@triton.jit
def _project(p, k, LENS: tl.constexpr):
    """Projects a point through the windshield, if there is one, and the lens.

    Returns the results of ``Lens.project``, and the :class:`Refraction`, or () without a windshield.
    """
    if len(k) > N_COEFFICIENTS:
        refraction = refract(p, k[N_COEFFICIENTS])
        x, y, seen, saved = LENS.project(refraction.direction, k)
        return x, y, seen & refraction.exists, saved, refraction
    else:
        x, y, seen, saved = LENS.project(p, k)
        return x, y, seen, saved, ()


@triton.jit
def u_period(intrinsics):
    """Returns the period of u of a lens that wraps: the pixels of 360 degrees."""
    return TWO_PI * tl.abs(intrinsics.fx)


@triton.jit
def whole_periods(difference, period):
    """Returns the multiple of the period that is closest to a difference of two u. Subtracting it gives the shorter way
    around."""
    return period * tl.floor(difference / period + 0.5)


@triton.jit
def _in_front(p, k, LENS: tl.constexpr):
    """Returns whether the lens may show a point, and the point, or one on the optical axis if the lens does not."""
    if LENS.WRAPS:
        front = dot(p, p) > SQUARE_MIN
    else:
        front = p[2] > 0.0
    if LENS.shows_behind is not None:
        front = front | LENS.shows_behind(p, k)
    return front, (tl.where(front, p[0], 0.0), tl.where(front, p[1], 0.0), tl.where(front, p[2], 1.0))


@triton.jit
def _inside(u, v, screen, MARGIN: tl.constexpr):
    """Returns whether a pixel is inside the image plus a margin, a fraction of the image size."""
    side = constant(MARGIN, u) * screen.width
    top = constant(MARGIN, u) * screen.height
    return (u >= -side) & (u < screen.width + side) & (v >= -top) & (v < screen.height + top)


@triton.jit
def lens_pixel(p, camera, screen, LENS: tl.constexpr, MARGIN: tl.constexpr):
    """Projects a point of the camera frame. Returns u, v, and whether it is seen inside the image plus a margin."""
    intrinsics = camera.intrinsics
    front, q = _in_front(p, camera.lens, LENS)
    x, y, seen, _, _ = _project(q, camera.lens, LENS)
    u = tl.where(front, intrinsics.fx * x + intrinsics.cx, 0.0)
    v = tl.where(front, intrinsics.fy * y + intrinsics.cy, 0.0)
    if LENS.WRAPS:
        u = tl.where(front, u - whole_periods(u - 0.5 * screen.width, u_period(intrinsics)), 0.0)
    return u, v, front & seen & _inside(u, v, screen, MARGIN)


@triton.jit
def pixel_difference(p, d, pixel, camera, screen, LENS: tl.constexpr, MARGIN: tl.constexpr):
    """Returns pixel(p + d) - pixel(p), without the rounding errors of the pixels, and whether p + d is seen."""
    intrinsics = camera.intrinsics
    x, y = LENS.project_difference(p, d)
    dx, dy = intrinsics.fx * x, intrinsics.fy * y
    front, _ = _in_front(add(p, d), (), LENS)
    u = pixel[0] + dx
    u -= whole_periods(u - 0.5 * screen.width, u_period(intrinsics))
    return dx, dy, front & _inside(u, pixel[1] + dy, screen, MARGIN)


@triton.jit
def lens_pixel_vjp(p, camera, v_u, v_v, LENS: tl.constexpr):
    """Returns the gradient of a point from the gradient of its pixel."""
    k = camera.lens
    front, q = _in_front(p, k, LENS)
    _, _, _, saved, refraction = _project(q, k, LENS)
    v_x = camera.intrinsics.fx * v_u
    v_y = camera.intrinsics.fy * v_v
    if len(refraction) > 0:
        v = refract_vjp(q, refraction, LENS.project_vjp(refraction.direction, k, saved, v_x, v_y))
    else:
        v = LENS.project_vjp(q, k, saved, v_x, v_y)
    return tl.where(front, v[0], 0.0), tl.where(front, v[1], 0.0), tl.where(front, v[2], 0.0)


@triton.jit
def coefficients_vjp(p, camera, v_u, v_v, LENS: tl.constexpr):
    """Returns the gradient of the lens coefficients from the gradient of a pixel; 0 for unused values."""
    front, q = _in_front(p, camera.lens, LENS)
    _, _, _, saved, _ = _project(q, camera.lens, LENS)
    v_x = tl.where(front, camera.intrinsics.fx * v_u, 0.0)
    v_y = tl.where(front, camera.intrinsics.fy * v_v, 0.0)
    return LENS.coefficients_vjp(camera.lens, saved, v_x, v_y)
