"""Projects points to pixels, and pixels to directions, by any lens, with or without a windshield.

``lens`` is ``Cameras.lens`` or None. The coefficients of a windshield follow the coefficients of the lens.
"""

import math
from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

from ..config import AXIS_MIN, LENS_COEFFICIENTS, CameraSettings
from ..formulas.rotations import Triple
from .lenses import LENSES, Lens

N_POLYNOMIAL = 21


Windshield = namedtuple("Windshield", "horizontal vertical horizontal_inverse vertical_inverse")
"""Coefficients of two polynomials, which project points, and of their inverses, which unproject pixels."""


def _coefficients(values: tuple[Tensor, ...], lens: Lens) -> tuple[Any, Windshield | None]:
    """Returns the coefficients of a lens, and of its windshield or None."""
    starts = range(LENS_COEFFICIENTS, len(values), N_POLYNOMIAL)
    return lens.read(values), Windshield(*[values[i : i + N_POLYNOMIAL] for i in starts]) if starts else None


def lens_pixel(
    p: Triple, lens: Tensor | None, intrinsics: tuple[Tensor, ...], camera: CameraSettings, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Projects points of the camera frame. Returns u, v, and whether points are seen inside the image plus a margin.

    Points behind the camera get pixel (0, 0) and are not seen, unless the lens shows them.
    """
    model = LENSES[camera.model]
    k, windshield = _coefficients(() if lens is None else lens.unbind(1), model)
    front = p[0] * p[0] + p[1] * p[1] + p[2] * p[2] > AXIS_MIN if model.wraps else p[2] > 0
    behind = model.shows_behind(p, k)
    if behind is not None:
        front = front | behind
    # Replaced by a point on the optical axis, so that unused gradients are not NaN.
    p = (torch.where(front, p[0], 0.0), torch.where(front, p[1], 0.0), torch.where(front, p[2], 1.0))
    seen = front
    if windshield is not None:
        p, clear = _refract(p, windshield.horizontal, windshield.vertical)
        seen = seen & clear
    x, y, shown = model.project(p, k)
    fx, fy, cx, cy = intrinsics
    u, v = torch.where(front, fx * x + cx, 0.0), torch.where(front, fy * y + cy, 0.0)
    if model.wraps:
        u = torch.where(front, u - whole_periods(u - 0.5 * camera.width, u_period(fx)), 0.0)
    return u, v, seen & shown & _inside(u, v, camera, margin)


def pixel_difference(
    p: Triple, d: Triple, pixel: tuple[Tensor, Tensor], intrinsics: tuple[Tensor, ...], camera: CameraSettings,
    margin: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns pixel(p + d) - pixel(p), without the rounding errors of the pixels, and whether p + d is seen."""
    x, y, exists = LENSES[camera.model].project_difference(p, d)
    dx, dy = intrinsics[0] * x, intrinsics[1] * y
    u = pixel[0] + dx
    u = u - whole_periods(u - 0.5 * camera.width, u_period(intrinsics[0]))
    return dx, dy, exists & _inside(u, pixel[1] + dy, camera, margin)


def _inside(u: Tensor, v: Tensor, camera: CameraSettings, margin: float) -> Tensor:
    """Returns whether a pixel is inside the image plus a margin, a fraction of the image size."""
    side, top = margin * camera.width, margin * camera.height
    return (u >= -side) & (u < camera.width + side) & (v >= -top) & (v < camera.height + top)


def u_period(fx: Tensor) -> Tensor:
    """Returns the period of u of a lens that wraps: the pixels of 360 degrees."""
    return 2 * math.pi * fx.abs()


def whole_periods(difference: Tensor, period: Tensor) -> Tensor:
    """Returns the multiple of the period that is closest to a difference of two u. Subtracting it gives the shorter way
    around."""
    return period * (difference.detach() / period + 0.5).floor()


def unproject(x: Tensor, y: Tensor, lens: Tensor | None, camera: CameraSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the unit directions at image positions x, y [I, H, W] of cameras with focal length 1; zero if none."""
    model = LENSES[camera.model]
    k, windshield = _coefficients(() if lens is None else lens[:, :, None, None].unbind(1), model)
    dx, dy, dz = model.unproject(x, y, k)
    if windshield is not None:
        exists = torch.stack([dx, dy, dz]).any(0)
        inner = (dx, dy, torch.where(exists, dz, 1.0))
        outer, clear = _refract(inner, windshield.horizontal_inverse, windshield.vertical_inverse)
        dx, dy, dz = (torch.where(exists & clear, value, 0.0) for value in outer)
    return dx, dy, dz


def _refract(p: Triple, horizontal: tuple[Tensor, ...], vertical: tuple[Tensor, ...]) -> tuple[Triple, Tensor]:
    """Refracts points at a windshield; see ``kernels/projection/windshield.py``. Returns the unit directions in which
    it shows the points, and whether it shows them."""
    x, y, z = p
    phi, psi = torch.atan2(x, torch.hypot(y, z)), torch.atan2(y, torch.hypot(x, z))
    h, h_phi, h_psi = _polynomial(horizontal, phi, psi)
    v, v_phi, v_psi = _polynomial(vertical, phi, psi)
    square = 1 - h.sin().square() - v.sin().square()
    within = torch.maximum(h.abs(), v.abs()) < torch.pi / 2
    clear = within & (square > 0) & (h_phi * v_psi > h_psi * v_phi)
    length = torch.where(clear, square, 1.0).sqrt()
    return (
        torch.where(clear, h.sin(), 0.0),
        torch.where(clear, v.sin(), 0.0),
        torch.where(z < 0, -length, length),
    ), clear


def _polynomial(c: tuple[Tensor, ...], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the polynomial sum_jk c_jk x^j y^k with j + k <= 5, and its derivatives by x and y.

    Coefficients are ordered by k, then by j.
    """
    value = of_x = of_y = torch.zeros_like(x)
    end = N_POLYNOMIAL
    for n in range(1, 7):
        inner = slope = torch.zeros_like(x)
        for coefficient in c[end - n : end][::-1]:
            slope = slope * x + inner
            inner = inner * x + coefficient
        of_y = of_y * y + value
        of_x = of_x * y + slope
        value = value * y + inner
        end -= n
    return value, of_x, of_y
