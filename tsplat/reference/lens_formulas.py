"""Lenses of the dense reference: projection of points to image positions, and the inverse.

A lens has a focal length of 1 and its principal point at 0. Its coefficients k, the first values of ``Cameras.lens``,
are None without distortion.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..config import AXIS_MIN, BACK_SLOPE_SQUARED, FOV_MARGIN, LENS_GAIN_MIN, CameraSettings

Triple = tuple[Tensor, Tensor, Tensor]


class Lens:
    """A camera model.

    Attributes:
        coefficients: Class that names the coefficients.
        culls_by_distance: Whether near and far planes cull by the distance from the camera, if depth is this distance.
        is_parallel: Whether rays start at (x, y), and not at the camera center.
        wraps: Whether x is a longitude over the full circle. The camera then sees all directions, and u has a period.
    """

    coefficients: Any = namedtuple("coefficients", ())
    culls_by_distance = False
    is_parallel = False
    wraps = False

    def project_with_jacobian(
        self, p: Triple, intrinsics: Tensor, settings: CameraSettings
    ) -> tuple[Triple, tuple[Triple, Triple]]:
        """Returns the pixels of points, without distortion; whether they are defined; and the rows of the Jacobian."""
        raise NotImplementedError

    def shows_behind(self, p: Triple, k: Any) -> Tensor:
        """Returns which points the lens shows even if they are behind the camera."""
        return torch.zeros_like(p[2], dtype=torch.bool)

    def project(self, p: Triple, k: Any) -> Triple:
        """Returns x and y of points that are in front of the camera or shown behind it, and whether they are seen."""
        raise NotImplementedError

    def unproject(self, x: Tensor, y: Tensor, k: Any) -> tuple[Triple, Tensor]:
        """Returns the directions at image positions (x, y), and whether there is one."""
        raise NotImplementedError


class Pinhole(Lens):
    """u = fx x / z + cx, with OpenCV's distortion."""

    coefficients = namedtuple("coefficients", "k1 k2 k3 k4 k5 k6 p1 p2 s1 s2 s3 s4")

    def project_with_jacobian(
        self, p: Triple, intrinsics: Tensor, settings: CameraSettings
    ) -> tuple[Triple, tuple[Triple, Triple]]:
        (x, y, z), (fx, fy, cx, cy), zero = p, intrinsics.unbind(-1), torch.zeros_like(p[2])
        safe_z = torch.where(z.abs() > 0, z, 1.0)
        slopes = []
        for q, f, c, size in ((x, fx, cx, settings.width), (y, fy, cy, settings.height)):
            margin = FOV_MARGIN * 0.5 * size / f
            slopes.append(torch.clamp(q / safe_z, min=-(c / f + margin), max=(size - c) / f + margin))
        shown = fx * x / safe_z + cx, fy * y / safe_z + cy, torch.ones_like(z, dtype=torch.bool)
        return shown, ((fx / safe_z, zero, -fx * slopes[0] / safe_z), (zero, fy / safe_z, -fy * slopes[1] / safe_z))

    def project(self, p: Triple, k: Any) -> Triple:
        a, b, gain = _distort(p[0] / p[2], p[1] / p[2], k)
        return a, b, gain > LENS_GAIN_MIN

    def unproject(self, x: Tensor, y: Tensor, k: Any) -> tuple[Triple, Tensor]:
        a, b, one = x, y, torch.ones_like(x)
        if k is None:
            return (a, b, one), torch.ones_like(x, dtype=torch.bool)
        for _ in range(200):
            distorted_a, distorted_b, gain = _distort(a, b, k)
            a, b = a + x - distorted_a, b + y - distorted_b
        exists = (gain > LENS_GAIN_MIN) & ((distorted_a - x).abs() + (distorted_b - y).abs() < 1e-6)
        return (torch.where(exists, a, 0.0), torch.where(exists, b, 0.0), one), exists


def _distort(a: Tensor, b: Tensor, k: Any) -> Triple:
    """Distorts a = x / z and b = y / z. Returns the results, and the radial factor."""
    if k is None:
        return a, b, torch.ones_like(a)
    r2 = a * a + b * b
    gain = (1 + r2 * (k.k1 + r2 * (k.k2 + r2 * k.k3))) / (1 + r2 * (k.k4 + r2 * (k.k5 + r2 * k.k6)))
    mixed = 2 * a * b
    distorted_a = a * gain + k.p1 * mixed + k.p2 * (r2 + 2 * a * a) + r2 * (k.s1 + r2 * k.s2)
    distorted_b = b * gain + k.p1 * (r2 + 2 * b * b) + k.p2 * mixed + r2 * (k.s3 + r2 * k.s4)
    return distorted_a, distorted_b, gain


class Ortho(Lens):
    """u = fx x + cx."""

    is_parallel = True

    def project_with_jacobian(
        self, p: Triple, intrinsics: Tensor, settings: CameraSettings
    ) -> tuple[Triple, tuple[Triple, Triple]]:
        (x, y, _), (fx, fy, cx, cy), zero = p, intrinsics.unbind(-1), torch.zeros_like(p[2])
        shown = fx * x + cx, fy * y + cy, torch.ones_like(zero, dtype=torch.bool)
        return shown, ((fx + zero, zero, zero), (zero, fy + zero, zero))

    def project(self, p: Triple, k: Any) -> Triple:
        return p[0], p[1], torch.ones_like(p[2], dtype=torch.bool)

    def unproject(self, x: Tensor, y: Tensor, k: Any) -> tuple[Triple, Tensor]:
        return (torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x)), torch.ones_like(x, dtype=torch.bool)


class Fisheye(Lens):
    """u = fx k x + cx with k = theta / r. With m = (dk / dr) / r, J = f [k I + m p p^T | -p / |(x, y, z)|^2]."""

    coefficients = namedtuple("coefficients", "k1 k2 k3 k4 theta_max")

    def project_with_jacobian(
        self, p: Triple, intrinsics: Tensor, settings: CameraSettings
    ) -> tuple[Triple, tuple[Triple, Triple]]:
        (x, y, z), (fx, fy, cx, cy) = p, intrinsics.unbind(-1)
        square = x * x + y * y
        defined = (square > 0) | (z > 0)
        k, m = _equidistant(torch.where(defined, square, 1.0), z)
        shown = fx * k * x + cx, fy * k * y + cy, defined
        full = torch.where(defined, square + z * z, 1.0)
        x_row = (fx * (k + m * x * x), fx * m * x * y, -fx * x / full)
        return shown, (x_row, (fy * m * x * y, fy * (k + m * y * y), -fy * y / full))

    def project(self, p: Triple, k: Any) -> Triple:
        on_axis, r, theta = _angle(p)
        distorted, seen = theta, torch.ones_like(on_axis)
        if k is not None:
            distorted, _ = _distorted_angle(theta, k)
            seen = theta <= k.theta_max
        a, b = (torch.where(on_axis, q / p[2], distorted * q / r) for q in p[:2])
        return a, b, seen

    def unproject(self, x: Tensor, y: Tensor, k: Any) -> tuple[Triple, Tensor]:
        radius = (x * x + y * y).sqrt()
        theta, exists = radius, torch.ones_like(x, dtype=torch.bool)
        if k is not None:
            theta = _bisect(lambda t: _distorted_angle(t, k)[0], radius, k.theta_max)
            value, slope = _distorted_angle(theta, k)
            theta = theta - (value - radius) / torch.where(slope > 0, slope, torch.inf)  # implicit function theorem
            exists = theta < k.theta_max * (1 - 1e-9)
        return _direction_at_angle(theta, x, y, radius), exists & (theta < torch.pi)


def _equidistant(square: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Returns k = theta / r and (dk / dr) / r, for r^2 = square. Both are smooth at r = 0."""
    near_axis = (z > 0) & (square < 0.1 * z * z)
    # Each formula is evaluated at a harmless point where the other one is used.
    safe_z, far = torch.where(near_axis, z, 1.0), torch.where(near_axis, 1.0, square)
    t = torch.where(near_axis, square, 0.0) / (safe_z * safe_z)
    # The series of atan(sqrt(t)) / sqrt(t), and twice its derivative.
    value = sum((-t) ** n / (2 * n + 1) for n in range(18))
    slope = sum(-2 * n * (-t) ** (n - 1) / (2 * n + 1) for n in range(1, 19))
    k = torch.atan2(far.sqrt(), z) / far.sqrt()
    m = (z / (far + z * z) - k) / far
    return torch.where(near_axis, value / safe_z, k), torch.where(near_axis, slope / safe_z**3, m)


def _angle(p: Triple) -> Triple:
    """Returns whether points are on the optical axis, their distance from it (1 on the axis), and their angle."""
    x, y, z = p
    on_axis = x * x + y * y < 1e-24
    r = torch.where(on_axis, 1.0, x * x + y * y).sqrt()
    return on_axis, r, torch.where(on_axis, 0.0, torch.atan2(r, z))


def _direction_at_angle(theta: Tensor, x: Tensor, y: Tensor, radius: Tensor) -> Triple:
    """Returns the direction at an angle theta from the optical axis, towards (x, y)."""
    sine = theta.sin() / torch.where(radius > 0, radius, 1.0)
    return sine * x, sine * y, theta.cos()


def _distorted_angle(theta: Tensor, k: Any) -> tuple[Tensor, Tensor]:
    """Returns the distorted angle of a fisheye lens, and its derivative with respect to theta."""
    distorted = theta + k.k1 * theta**3 + k.k2 * theta**5 + k.k3 * theta**7 + k.k4 * theta**9
    return distorted, 1 + 3 * k.k1 * theta**2 + 5 * k.k2 * theta**4 + 7 * k.k3 * theta**6 + 9 * k.k4 * theta**8


class FTheta(Lens):
    """The distance from the principal point is a polynomial of theta, or the inverse of one. Then
    (x, y) -> (c x + d y, e x + y)."""

    coefficients = namedtuple("coefficients", "c1 c2 c3 c4 c5 theta_max distance_max c d e inverts around")
    culls_by_distance = True

    def shows_behind(self, p: Triple, k: Any) -> Tensor:
        has_azimuth = p[0] ** 2 + p[1] ** 2 > BACK_SLOPE_SQUARED * p[2] ** 2
        shown: Tensor = has_azimuth & (k.around == 1)
        return shown

    def project(self, p: Triple, k: Any) -> Triple:
        on_axis, r, theta = _angle(p)
        seen = theta <= k.theta_max
        # Both are 0 for invalid cameras.
        largest, first = (torch.where(value > 0, value, 1.0) for value in (k.theta_max, k.c1))
        distance = _distance(theta.minimum(largest), k) * torch.where(seen, 1.0, theta / largest)
        at_axis = torch.where(k.inverts > 0, 1 / first, first) / torch.where(on_axis, p[2], 1.0)  # z may be 0
        a, b = (torch.where(on_axis, q * at_axis, distance * q / r) for q in p[:2])
        return k.c * a + k.d * b, k.e * a + b, seen

    def unproject(self, x: Tensor, y: Tensor, k: Any) -> tuple[Triple, Tensor]:
        x, y = (x - k.d * y) / (k.c - k.d * k.e), (k.c * y - k.e * x) / (k.c - k.d * k.e)
        radius = (x * x + y * y).sqrt()
        inverse = _bisect(lambda t: _polynomial(t, k)[0], radius, k.theta_max)
        theta = torch.where(k.inverts > 0, _polynomial(radius, k)[0], inverse)
        return _direction_at_angle(theta, x, y, radius), radius < k.distance_max


def _distance(theta: Tensor, k: Any) -> Tensor:
    """Returns the distances from the principal point, in pixels, at which an f-theta lens shows the angles theta."""
    root = _bisect(lambda t: _polynomial(t, k)[0], theta, k.distance_max)
    value, slope = _polynomial(root, k)
    inverse = root - (value - theta) / torch.where(slope > 0, slope, 1.0)  # implicit function theorem
    return torch.where(k.inverts > 0, inverse, _polynomial(theta, k)[0])


def _polynomial(t: Tensor, k: Any) -> tuple[Tensor, Tensor]:
    """Returns the polynomial that defines an f-theta lens, and its derivative."""
    value = t * (k.c1 + t * (k.c2 + t * (k.c3 + t * (k.c4 + t * k.c5))))
    return value, k.c1 + t * (2 * k.c2 + t * (3 * k.c3 + t * (4 * k.c4 + t * 5 * k.c5)))


@torch.no_grad()
def _bisect(function: Callable[[Tensor], Tensor], target: Tensor, high: Tensor) -> Tensor:
    """Solves function(t) = target in [0, high] by bisection, for an increasing function that is 0 at 0."""
    low, high = torch.zeros_like(target), high.expand_as(target)
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = function(middle) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


class Equirectangular(Lens):
    """u = fx longitude + cx and v = fy latitude + cy. Longitudes increase to the right, latitudes downwards."""

    culls_by_distance = True
    wraps = True

    def project(self, p: Triple, k: Any) -> Triple:
        x, y, z = p
        square = x * x + z * z
        is_pole = square <= AXIS_MIN
        r = torch.where(is_pole, 1.0, square).sqrt()
        longitude = torch.where(is_pole, 0.0, torch.atan2(x, torch.where(is_pole, 1.0, z)))
        latitude = torch.where(is_pole, 0.5 * torch.pi * y.sign(), (y / r).atan())
        return longitude, latitude, torch.ones_like(is_pole)

    def unproject(self, x: Tensor, y: Tensor, k: Any) -> tuple[Triple, Tensor]:
        return (y.cos() * x.sin(), y.sin(), y.cos() * x.cos()), y.abs() <= 0.5 * torch.pi


LENSES: dict[str, Lens] = {
    "pinhole": Pinhole(),
    "ortho": Ortho(),
    "fisheye": Fisheye(),
    "ftheta": FTheta(),
    "equirectangular": Equirectangular(),
}
"""By ``CameraSettings.model``."""
