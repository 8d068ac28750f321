"""Lens distortion: intrinsics with distortion, and undistortion to pinhole images or equidistant fisheye images.

The models are COLMAP's OPENCV (radial and tangential distortion), of which SIMPLE_RADIAL and RADIAL are special cases,
and OPENCV_FISHEYE (Kannala and Brandt, 2006). pycolmap computes the pinhole camera and its projections; images are
sampled bilinearly.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ...config import LENS_GAIN_MIN, CameraModel
from ...errors import ArgumentError
from ...support.extras import require

Array = npt.NDArray[Any]
Angle = TypeVar("Angle", float, Array, Tensor)

CHUNK_PIXELS = 1 << 20
"""Pixels sampled at a time, which limits the memory that large images need."""

MAP_PIXELS_MAX = 1 << 25
"""Images with more pixels have no stored map of sources; it is computed again for each image."""

SIZE_MAX = 1_000_000
FOCAL_RATIOS = (1e-3, 1e5)
"""Range of focal lengths, in units of the longer side of the image."""

CENTER_RATIO_MAX = 2.0
"""Maximum distance of the principal point from the image, in units of the image's width and height."""

COEFFICIENT_MIN = 1e-30
"""Coefficients of the distortion with a smaller magnitude are zero."""

DISTORTION_MAX = 100.0
"""Maximum of a term of the distortion at the image's corner, relative to 1."""


@dataclasses.dataclass(frozen=True)
class Lens:
    """Camera intrinsics with distortion, which have to be finite.

    Attributes:
        width, height: Image size in pixels, to which the other values refer.
        fx, fy, cx, cy: Focal lengths and principal point in pixels; pixel centers lie at +0.5.
        distortion: OpenCV's k1, k2, p1, p2; of fisheye cameras k1, k2, k3, k4.
        model: ``"pinhole"`` or ``"fisheye"``, the model without distortion.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    model: CameraModel = "pinhole"

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in self.distortion):
            raise ArgumentError(f"distortion: expected finite values, found {self.distortion}; check the camera")

    @property
    def problem(self) -> str | None:
        """What no real camera has, as "expected .., found .."; None for a plausible one."""
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
        radius = math.hypot(self.width / self.fx, self.height / self.fy) / 2
        if self.model == "fisheye":
            radius = min(radius, math.pi / 2)
        powers = (2, 4, 1, 1) if self.model == "pinhole" else (2, 4, 6, 8)
        if not all(abs(k) * radius**power <= DISTORTION_MAX for k, power in zip(self.distortion, powers)):
            return f"distortion: expected coefficients of a lens, found {self.distortion}"
        return None

    @property
    def is_pinhole(self) -> bool:
        return self.model == "pinhole" and not any(self.distortion)

    def distorted(self, points: Tensor) -> Tensor:
        """Where a lens with a focal length of 1 shows points [P, 2] at depth 1. [P, 2]"""
        k1, k2, k3, k4 = self.distortion
        square = points.square().sum(-1, keepdim=True)
        if self.model == "fisheye":
            radius = square.sqrt().clamp_min(1e-12)
            theta = radius.atan()
            return points * _distorted_angle(theta, self.distortion) / radius
        tangential = torch.tensor([[k4, k3]], dtype=points.dtype)  # p2, p1
        product = points.prod(-1, keepdim=True)
        shift = 2 * tangential.flip(-1) * product + tangential * (square + 2 * points.square())
        return points * (1 + k1 * square + k2 * square.square()) + shift

    def shown(self, width: int, height: int) -> Tensor:
        """Which pixels of an image of another size the unscented transform can reach. [H, W] bool"""
        if self.model == "fisheye":
            reach = _distorted_angle(_largest_angle(self.distortion), self.distortion)
        else:
            k1, k2, *_ = self.distortion
            squares = [*_roots([1, 3 * k1, 5 * k2]), *_roots([1 - LENS_GAIN_MIN, k1, k2])]
            square = min(squares, default=math.inf)
            reach = math.sqrt(square) * (1 + k1 * square + k2 * square**2) if squares else math.inf
        x, y = ((torch.arange(n) + 0.5) / n for n in (width, height))
        x, y = (x * self.width - self.cx) / self.fx, (y * self.height - self.cy) / self.fy
        return torch.hypot(x[None, :], y[:, None]) < reach

    def intrinsics(self, width: int, height: int) -> Tensor:
        """Returns K [3, 3] in fp64 for images of another size, scaled per axis."""
        x, y = width / self.width, height / self.height
        return torch.tensor(
            [[self.fx * x, 0, self.cx * x], [0, self.fy * y, self.cy * y], [0, 0, 1]], dtype=torch.float64
        )


class Undistortion:
    """Resamples distorted images to pinhole images, or to equidistant fisheye images, of the same size.

    The field of view is the largest one without empty borders. If the distortion is so strong that there is none,
    pixels without a source are black, as are those of a fisheye image at 90 degrees from the optical axis and more.

    Attributes:
        K: [3, 3] fp64, intrinsics of the undistorted images in pixels.
        has_source: [H, W] bool, True for pixels that the distorted image covers.
    """

    def __init__(self, lens: Lens, width: int, height: int) -> None:
        values = [lens.fx, lens.fy, lens.cx, lens.cy, *lens.distortion]
        if not all(math.isfinite(value) for value in values) or min(lens.fx, lens.fy) <= 0:
            raise ArgumentError(f"K: expected positive focal lengths and finite values, found {lens}")
        distortion = _Fisheye(lens) if lens.model == "fisheye" else _Radial(lens)
        self.K = distortion.undistorted.intrinsics(width, height)
        self._distortion, self._scale = distortion, np.array([width / lens.width, height / lens.height])
        is_stored = width * height <= MAP_PIXELS_MAX
        # [H, W, 2] position of each undistorted pixel in the distorted image, in pixels.
        self._sources = torch.empty(height, width, 2) if is_stored else None
        self.has_source = torch.empty(height, width, dtype=torch.bool)
        for rows in _row_chunks(width, height):
            sources, self.has_source[rows] = self._map(rows)
            if self._sources is not None:
                self._sources[rows] = sources

    def _map(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Sources of some rows of the undistorted image [rows, W, 2], and which of them are in the distorted one."""
        height, width = self.has_source.shape
        x = (np.arange(width) + 0.5 - float(self.K[0, 2])) / float(self.K[0, 0])
        y = (np.arange(rows.start, rows.stop) + 0.5 - float(self.K[1, 2])) / float(self.K[1, 1])
        points = np.stack(np.broadcast_arrays(x[None], y[:, None]), -1).reshape(-1, 2)
        sources, near = self._distortion.sources(points)
        sources = np.nan_to_num(sources * self._scale, nan=-1.0)
        inside = ((sources >= 0) & (sources <= (width, height))).all(-1)
        return torch.from_numpy(sources).float().view(-1, width, 2), torch.from_numpy(near & inside).view(-1, width)

    def __call__(self, image: Tensor) -> Tensor:
        """Undistorts an image [H, W, D] uint8; pixels without a source become black."""
        height, width = self.has_source.shape
        if image.shape[:2] != self.has_source.shape:
            raise ArgumentError(f"image: expected {width}×{height} pixels, found {image.shape[1]}×{image.shape[0]}")
        result = torch.empty_like(image)
        for rows in _row_chunks(width, height):
            sources = self._map(rows)[0] if self._sources is None else self._sources[rows]
            source_y = sources[..., 1][self.has_source[rows]]
            if not len(source_y):
                result[rows] = 0
                continue
            # Image rows that this chunk samples, and one more on each side for the interpolation.
            first = max(int(source_y.min()) - 1, 0)
            last = min(int(source_y.max()) + 2, height)
            grid = torch.stack(
                [sources[..., 0] * 2 / width - 1, (sources[..., 1] - first) * 2 / (last - first) - 1], -1
            )
            part = image[first:last].permute(2, 0, 1)[None].float()
            sampled = grid_sample(part, grid[None], "bilinear", "border", align_corners=False)[0].permute(1, 2, 0)
            result[rows] = (sampled * self.has_source[rows, :, None]).round().to(torch.uint8)
        return result


class _Radial:
    """OpenCV's radial and tangential distortion of a pinhole camera."""

    def __init__(self, lens: Lens) -> None:
        require("pycolmap")
        import pycolmap

        params = [lens.fx, lens.fy, lens.cx, lens.cy, *lens.distortion]
        self._camera = pycolmap.Camera(model="OPENCV", width=lens.width, height=lens.height, params=params)
        pinhole = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), self._camera)
        fx, fy, cx, cy = (float(value) for value in pinhole.params)
        self.undistorted = Lens(pinhole.width, pinhole.height, fx, fy, cx, cy)
        self._max_squared_radius = min(_roots([1, 3 * lens.distortion[0], 5 * lens.distortion[1]]), default=math.inf)

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Pixels [P, 2] of undistorted points [P, 2] at depth 1, and whether they are where distortion is monotonic."""
        near = (points**2).sum(-1) < self._max_squared_radius
        return self._camera.img_from_cam(np.concatenate([points, np.ones((len(points), 1))], -1)), near


class _Fisheye:
    """Distortion theta_d = theta + k1 theta^3 + k2 theta^5 + k3 theta^7 + k4 theta^9 of an equidistant fisheye."""

    def __init__(self, lens: Lens) -> None:
        self._lens = lens
        self._max_theta = _largest_angle(lens.distortion)
        zoom = self._zoom()
        self.undistorted = dataclasses.replace(
            lens, fx=zoom * lens.fx, fy=zoom * lens.fy, distortion=(0.0, 0.0, 0.0, 0.0)
        )

    def _zoom(self) -> float:
        """The smallest factor of the focal lengths for which no pixel on the border of the image lies outside of it."""
        lens = self._lens
        x, y = (np.linspace(0, size, 201) for size in (lens.width, lens.height))
        edges = [(x, 0 * x), (x, 0 * x + lens.height), (0 * y, y), (0 * y + lens.width, y)]
        border = np.concatenate([np.stack(edge, -1) for edge in edges])
        radii = np.hypot((border[:, 0] - lens.cx) / lens.fx, (border[:, 1] - lens.cy) / lens.fy)
        thetas = np.linspace(0, self._max_theta, 10_001)
        distorted = _distorted_angle(thetas, lens.distortion)
        # Where the lens does not reach the border, its whole field of view is inside.
        reached = radii[(radii > 0) & (radii <= distorted[-1])]
        ratios = reached / np.interp(reached, distorted, thetas)
        return float(ratios.max(initial=0.0) or distorted[-1] / self._max_theta)

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Pixels [P, 2] of undistorted points [P, 2], theta x/r and theta y/r, and whether the lens reaches them."""
        lens = self._lens
        theta = np.hypot(points[:, 0], points[:, 1])
        ratio = _distorted_angle(theta, lens.distortion) / np.maximum(theta, 1e-12)
        sources = points * ratio[:, None] * (lens.fx, lens.fy) + (lens.cx, lens.cy)
        return sources, theta < self._max_theta


def _distorted_angle(theta: Angle, distortion: Sequence[float]) -> Angle:
    """theta_d of angles theta."""
    k1, k2, k3, k4 = distortion
    square = theta * theta
    return theta * (1 + square * (k1 + square * (k2 + square * (k3 + square * k4))))


def _largest_angle(distortion: Sequence[float]) -> float:
    """The angle from the optical axis at which a fisheye image ends, at most 90 degrees."""
    derivative = [1.0, *((2 * i + 3) * k for i, k in enumerate(distortion))]
    # Beyond the first extremum of theta_d, the image would repeat itself.
    return min([math.pi / 2, *(math.sqrt(square) for square in _roots(derivative))])


def _roots(coefficients: Sequence[float]) -> list[float]:
    """Positive real roots of a polynomial, given its coefficients with the constant term first."""
    # Dividing by a subnormal leading coefficient would overflow.
    roots = np.roots([value if abs(value) > COEFFICIENT_MIN else 0.0 for value in coefficients[::-1]])
    return [float(root.real) for root in roots if root.real > 0 and abs(root.imag) < 1e-12]


def _row_chunks(width: int, height: int) -> list[slice]:
    """Splits image rows into chunks of about :data:`CHUNK_PIXELS` pixels."""
    step = max(1, CHUNK_PIXELS // width)
    return [slice(start, min(start + step, height)) for start in range(0, height, step)]
