"""Lenses: camera intrinsics with distortion.

The supported models are COLMAP's OPENCV (radial and tangential distortion), of which SIMPLE_RADIAL and RADIAL are
special cases; OPENCV_FISHEYE (Kannala and Brandt, 2006); and the models of ``colmap_lenses``. Panoramas have no
distortion.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...config import LENS_GAIN_MIN, CameraModel
from ...errors import ArgumentError, FileError
from ...formulas.panorama_angles import full_panorama, longitude_and_latitude
from . import colmap_lenses

Array = npt.NDArray[Any]
Values = TypeVar("Values", float, Array, Tensor)

SIZE_MAX = 1_000_000
FOCAL_RATIOS = (1e-3, 1e5)
"""Range of focal lengths, in units of the longer side of the image."""

CENTER_RATIO_MAX = 2.0
"""Maximum distance of the principal point from the image, in units of the image's width and height."""

ASPECT_MAX = 2.0
"""Ratio of the focal lengths above which a lens is doubtful."""

ANGLE_TOLERANCE = 1e-3
"""Tolerance for the angles of a panorama relative to 360 and 180 degrees, for rounded numbers."""

COEFFICIENT_MIN = 1e-30
"""Distortion coefficients with a smaller magnitude count as zero."""

SKEW_MAX = 0.1
"""Maximum of the skew, relative to the focal length."""

DISTORTION_MAX = 100.0
"""Maximum of each distortion term at the image corner."""

RADII = 8192
"""Number of candidate radii for the end of a lens."""

PROBES = ((0.0, 0.0), (0.5, 0.0), (-0.5, 0.0), (0.0, 0.5), (0.0, -0.5))
"""Positions at which a lens must be invertible, relative to the principal point in units of the image size."""


@dataclasses.dataclass(frozen=True)
class Lens:
    """Camera intrinsics with distortion; all values are finite.

    Attributes:
        width, height: Image size in pixels, to which the other values refer.
        fx, fy, cx, cy: Focal lengths and principal point in pixels; pixel centers lie at +0.5. For panoramas, `fx` and
            `fy` are pixels per radian of longitude and latitude.
        distortion: OpenCV's k1, k2, p1, p2, optionally with k3 to k6 of its rational model; k1 to k4 for fisheye
            cameras.
        model: Model without distortion: ``"pinhole"``, ``"fisheye"`` or ``"equirectangular"``.
        colmap: Name and parameters of a lens of :data:`.lens_conversions.COLMAP_MODELS`; `distortion` is then zero.
        skew: Shift along x in pixels per focal length that a distorted point lies below the principal point.
            Photographs of such lenses are always resampled.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    model: CameraModel = "pinhole"
    colmap: colmap_lenses.ColmapLens | None = None
    skew: float = 0.0

    def __post_init__(self) -> None:
        if len(self.distortion) != 4 and not (len(self.distortion) == 8 and self.model == "pinhole"):
            raise ArgumentError(
                f"distortion: expected 4 coefficients, or 8 of a pinhole lens, found {len(self.distortion)}"
            )
        if not all(math.isfinite(value) for value in (*self.distortion, self.skew)):
            found = f"{self.distortion}{f' and a skew of {self.skew}' if self.skew else ''}"
            raise ArgumentError(f"distortion: expected finite values, found {found}; check the camera")

    @property
    def problem(self) -> str | None:
        """Describes an implausible value, as "expected .., found .."; None for a plausible camera."""
        size = max(self.width, self.height)
        if min(self.width, self.height) < 1 or size > SIZE_MAX:
            return f"width and height: expected 1 to {SIZE_MAX} pixels, found {self.width}×{self.height}"
        low, high = (ratio * size for ratio in FOCAL_RATIOS)
        if not (low <= self.fx <= high and low <= self.fy <= high):
            return (
                f"focal lengths: expected {low:g} to {high:g} pixels for an image of {self.width}×{self.height}, found "
                f"{self.fx:g} and {self.fy:g}"
            )
        for name, center, side in (("cx", self.cx, self.width), ("cy", self.cy, self.height)):
            if not -CENTER_RATIO_MAX * side <= center <= (1 + CENTER_RATIO_MAX) * side:
                return f"principal point: expected {name} in or near the image, 0 to {side}, found {center:g}"
        if self.model == "equirectangular":
            return self._problem_of_panorama()
        if not abs(self.skew) <= SKEW_MAX * self.fx:
            return f"skew: expected at most {SKEW_MAX:g} of the focal length, {self.fx:g}, found {self.skew:g}"
        radius = math.hypot(self.width / self.fx, self.height / self.fy) / 2
        if self.model == "fisheye":
            radius = min(radius, math.pi / 2)
        powers = (2, 4, 1, 1, 6, 2, 4, 6) if self.model == "pinhole" else (2, 4, 6, 8)
        if not all(abs(k) * radius**power <= DISTORTION_MAX for k, power in zip(self.distortion, powers)):
            return f"distortion: expected coefficients of a lens, found {self.distortion}"
        if self.colmap is not None and not _is_invertible(self, self.colmap):
            return f"distortion: expected parameters of a lens, found {self.colmap[0]} {self.colmap[1]}"
        return None

    def checked(self, where: str, advice: str = "") -> "Lens":
        """Returns the lens; raises a FileError that begins with `where` if it has a :attr:`problem`."""
        if self.problem is not None:
            raise FileError(f"{where}: {self.problem}{f'; {advice}' if advice else ''}")
        return self

    def _problem_of_panorama(self) -> str | None:
        """Describes a panorama with more than 360 by 180 degrees, as "expected .., found .."; None for others."""
        turn, top, bottom = (math.degrees(angle) for angle in (
            self.width / self.fx, -self.cy / self.fy, (self.height - self.cy) / self.fy
        ))  # fmt: skip
        if turn > 360 * (1 + ANGLE_TOLERANCE):
            return f"panorama: expected at most 360 degrees of longitude, found {turn:.5g}"
        if max(-top, bottom) > 90 * (1 + ANGLE_TOLERANCE):
            return f"panorama: expected latitudes from -90 to 90 degrees, found {top:.5g} to {bottom:.5g}"
        if any(self.distortion):
            return f"distortion: expected none of a panorama, found {self.distortion}"
        return None

    @property
    def doubt(self) -> str | None:
        """Describes an unusual value that is probably wrong; None for a usual camera."""
        if not (0 < self.cx < self.width and 0 < self.cy < self.height):
            found = f"({self.cx:g}, {self.cy:g}) of {self.width}×{self.height} pixels"
            return f"the principal point is not inside of the image, {found}"
        if max(self.fx, self.fy) > ASPECT_MAX * min(self.fx, self.fy):
            return f"pixels are not nearly square, with focal lengths of {self.fx:g} and {self.fy:g} pixels"
        return None

    @property
    def is_undistorted(self) -> bool:
        """Whether the lens has no distortion: a pinhole lens or a panorama."""
        if self.model != "pinhole":
            return self.model == "equirectangular"
        return not any(self.distortion) and self.colmap is None and not self.skew

    @property
    def undistorted(self) -> "Lens":
        """Returns the lens without distortion."""
        return dataclasses.replace(self, distortion=(0.0, 0.0, 0.0, 0.0), colmap=None, skew=0.0)

    def distorted(self, points: Tensor) -> Tensor:
        """Projects points [P, 2] at depth 1 through the lens with a focal length of 1. [P, 2]"""
        square = points.square().sum(-1, keepdim=True)
        if self.model == "fisheye":
            radius = square.sqrt().clamp_min(1e-12)
            theta = radius.atan()
            return points * distorted_angle(theta, self.distortion) / radius
        _, _, p1, p2, *_ = self.distortion
        a, b = points.unbind(-1)
        product, squares = a * b, square[:, 0]
        shift_a = 2 * p1 * product + p2 * (squares + 2 * a * a)
        shift_b = 2 * p2 * product + p1 * (squares + 2 * b * b)
        return points * radial_factor(square, self.distortion) + torch.stack([shift_a, shift_b], -1)

    def project(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects points [P, 3] of the camera frame through the lens with a focal length of 1.

        Returns the positions [Q, 2], depths [Q] and row indices [Q] of the visible points. Depth is z, or the distance
        for panoramas.
        """
        if self.model != "equirectangular":
            rows = (points[:, 2] > 0).nonzero()[:, 0]
            ahead = points[rows]
            return self.distorted(ahead[:, :2] / ahead[:, 2:]), ahead[:, 2], rows
        rows = (points.norm(dim=-1) > 0).nonzero()[:, 0]
        x, y, z = points[rows].unbind(-1)
        first = -self.cx / self.fx  # longitude of the left border
        longitudes, latitudes = longitude_and_latitude(x, y, z)
        longitudes = (longitudes - first).remainder(2 * math.pi) + first
        return torch.stack([longitudes, latitudes], -1), points[rows].norm(dim=-1), rows

    def shown(self, width: int, height: int) -> Tensor:
        """Returns a mask [H, W] of the pixels to which the rasterizer's lens model can project, for an image of another
        size."""
        if self.model == "fisheye":
            reach = distorted_angle(largest_angle(self.distortion), self.distortion)
        elif len(self.distortion) == 8:
            reach = self._rational_reach()
        else:
            k1, k2, *_ = self.distortion
            squares = [*positive_roots([1, 3 * k1, 5 * k2]), *positive_roots([1 - LENS_GAIN_MIN, k1, k2])]
            square = min(squares, default=math.inf)
            reach = math.sqrt(square) * (1 + k1 * square + k2 * square**2) if squares else math.inf
        x, y = ((torch.arange(n, dtype=torch.float32, device="cpu") + 0.5) / n for n in (width, height))
        x, y = (x * self.width - self.cx) / self.fx, (y * self.height - self.cy) / self.fy
        return torch.hypot(x[None, :], y[:, None]) < reach

    def _rational_reach(self) -> float:
        """Returns the distorted radius at which the rational model stops increasing, or its factor becomes too
        small."""
        _, radii = border_points(self)
        radius = np.linspace(0, 1.01 * radii.max() / LENS_GAIN_MIN, RADII + 1)[1:]
        with np.errstate(all="ignore"):
            gains = radial_factor(radius * radius, self.distortion)
            stops = ~((gains > LENS_GAIN_MIN) & (np.diff(radius * gains, prepend=0.0) > 0))
        return float((radius * gains)[max(int(stops.argmax()) - 1, 0)]) if stops.any() else math.inf

    def intrinsics(self, width: int, height: int) -> Tensor:
        """Returns K [3, 3] in fp64 for images of another size, scaled per axis."""
        x, y = width / self.width, height / self.height
        return torch.tensor(
            [[self.fx * x, 0, self.cx * x], [0, self.fy * y, self.cy * y], [0, 0, 1]],
            dtype=torch.float64,
            device="cpu",
        )


def panorama(width: float, height: float) -> Lens:
    """Returns the lens of a full panorama, 360 degrees wide and 180 degrees high."""
    return Lens(round(width), round(height), *full_panorama(width, height), model="equirectangular")


def border_points(lens: Lens) -> tuple[Array, Array]:
    """Returns pixels [P, 2] on the border of an image, and their distances from the center in focal lengths."""
    x, y = (np.linspace(0, size, 201) for size in (lens.width, lens.height))
    edges = [(x, 0 * x), (x, 0 * x + lens.height), (0 * y, y), (0 * y + lens.width, y)]
    border = np.concatenate([np.stack(edge, -1) for edge in edges])
    return border, np.hypot((border[:, 0] - lens.cx) / lens.fx, (border[:, 1] - lens.cy) / lens.fy)


def _is_invertible(lens: Lens, colmap: colmap_lenses.ColmapLens) -> bool:
    """Returns whether pixels halfway to the image borders have rays, as for any real lens."""
    if not all(math.isfinite(value) for value in colmap[1]):
        return False
    pixels = [
        [
            lens.cx + x * (lens.width - lens.cx if x > 0 else lens.cx),
            lens.cy + y * (lens.height - lens.cy if y > 0 else lens.cy),
        ]
        for x, y in PROBES
    ]
    _, is_inverse = colmap_lenses.invert(colmap, np.array(pixels))
    return bool(is_inverse.all())


def radial_factor(square: Values, distortion: Sequence[float]) -> Values:
    """Returns OpenCV's radial factor at squared radii; `distortion` is k1, k2, p1, p2, optionally followed by k3 to
    k6."""
    k1, k2, _, _, *more = distortion
    if not more:
        return 1 + k1 * square + k2 * (square * square)
    k3, k4, k5, k6 = more
    return (1 + square * (k1 + square * (k2 + square * k3))) / (1 + square * (k4 + square * (k5 + square * k6)))


def distorted_angle(theta: Values, distortion: Sequence[float]) -> Values:
    """Returns the distorted angles theta_d of angles theta."""
    k1, k2, k3, k4 = distortion
    square = theta * theta
    return theta * (1 + square * (k1 + square * (k2 + square * (k3 + square * k4))))


def largest_angle(distortion: Sequence[float]) -> float:
    """Returns the largest angle from the optical axis in a fisheye image, at most 90 degrees."""
    derivative = [1.0, *((2 * i + 3) * k for i, k in enumerate(distortion))]
    # Beyond the first extremum of theta_d, the image would repeat itself.
    return min([math.pi / 2, *(math.sqrt(square) for square in positive_roots(derivative))])


def positive_roots(coefficients: Sequence[float]) -> list[float]:
    """Returns the positive real roots of a polynomial, given its coefficients with the constant term first."""
    # Dividing by a subnormal leading coefficient would overflow.
    roots = np.roots([value if abs(value) > COEFFICIENT_MIN else 0.0 for value in coefficients[::-1]])
    return [float(root.real) for root in roots if root.real > 0 and abs(root.imag) < 1e-12]
