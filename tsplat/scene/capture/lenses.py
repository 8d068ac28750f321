"""Lens distortion: intrinsics with distortion, and undistortion to pinhole or equidistant fisheye images.

Panoramas have no distortion, and are never resampled.

The supported models are COLMAP's OPENCV (radial and tangential distortion), of which SIMPLE_RADIAL and RADIAL are
special cases; OPENCV_FISHEYE (Kannala and Brandt, 2006); and the models of ``colmap_lenses``. pycolmap computes the
pinhole cameras of undistorted images. Images are sampled bilinearly.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ...config import LENS_GAIN_MIN, CameraModel
from ...errors import ArgumentError, FileError
from ...formulas.panorama_angles import full_panorama, longitude_and_latitude
from . import colmap_lenses

Array = npt.NDArray[Any]
Values = TypeVar("Values", float, Array, Tensor)

CHUNK_PIXELS = 1 << 20
"""Number of pixels that are sampled at a time, which limits the memory for large images."""

MAP_PIXELS_MAX = 1 << 25
"""For images with more pixels, the undistortion map is not stored but computed for each image."""

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

COLMAP_MODELS: dict[str, CameraModel] = {
    "FULL_OPENCV": "pinhole",
    "FOV": "pinhole",
    "SIMPLE_DIVISION": "pinhole",
    "DIVISION": "pinhole",
    "EUCM": "pinhole",
    "THIN_PRISM_FISHEYE": "fisheye",
    "RAD_TAN_THIN_PRISM_FISHEYE": "fisheye",
}
"""Model of ``colmap_lenses`` -> model of the undistorted images, unless the lens is wide."""

PINHOLE_SHARE_MIN, PINHOLE_SCALE_MIN = 0.75, 0.6
"""Minimum share of a photograph's pixels that the pinhole image shows, and its minimum scale in the center; otherwise
the photograph becomes an equidistant fisheye image."""

FISHEYE_SHARE = 0.9
"""Minimum share of the valid pixels that an equidistant fisheye image of a ``colmap_lenses`` model shows."""

ZOOMS = 16
"""Number of zoom factors between the one without empty borders and the one that shows the whole photograph. The largest
that reaches FISHEYE_SHARE is used."""

FIT_PIXELS = 0.05
"""Maximum error in pixels of a fisheye polynomial that replaces a lens."""

FIT_SAMPLES, RADII, CELLS = 512, 8192, 96
"""Number of angles at which a polynomial is fitted, number of candidate radii for the end of a lens, and number of
cells per image side for measuring areas."""

SHOWN_SIDE = 512
"""Image size at which the share of a photograph that a lens of the rasterizer shows is measured."""

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
        colmap: Name and parameters of a lens of :data:`COLMAP_MODELS`; `distortion` is then zero.
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
    def is_pinhole(self) -> bool:
        return self.model == "pinhole" and not any(self.distortion) and self.colmap is None and not self.skew

    @property
    def is_undistorted(self) -> bool:
        """Whether the lens has no distortion: a pinhole lens or a panorama."""
        return self.is_pinhole or self.model == "equirectangular"

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
            return points * _distorted_angle(theta, self.distortion) / radius
        _, _, p1, p2, *_ = self.distortion
        a, b = points.unbind(-1)
        product, squares = a * b, square[:, 0]
        shift_a = 2 * p1 * product + p2 * (squares + 2 * a * a)
        shift_b = 2 * p2 * product + p1 * (squares + 2 * b * b)
        return points * _radial_factor(square, self.distortion) + torch.stack([shift_a, shift_b], -1)

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
            reach = _distorted_angle(_largest_angle(self.distortion), self.distortion)
        elif len(self.distortion) == 8:
            reach = self._rational_reach()
        else:
            k1, k2, *_ = self.distortion
            squares = [*_roots([1, 3 * k1, 5 * k2]), *_roots([1 - LENS_GAIN_MIN, k1, k2])]
            square = min(squares, default=math.inf)
            reach = math.sqrt(square) * (1 + k1 * square + k2 * square**2) if squares else math.inf
        x, y = ((torch.arange(n, dtype=torch.float32, device="cpu") + 0.5) / n for n in (width, height))
        x, y = (x * self.width - self.cx) / self.fx, (y * self.height - self.cy) / self.fy
        return torch.hypot(x[None, :], y[:, None]) < reach

    def _rational_reach(self) -> float:
        """Returns the distorted radius at which the rational model stops increasing, or its factor becomes too
        small."""
        _, radii = _border(self)
        radius = np.linspace(0, 1.01 * radii.max() / LENS_GAIN_MIN, RADII + 1)[1:]
        with np.errstate(all="ignore"):
            gains = _radial_factor(radius * radius, self.distortion)
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


class Undistortion:
    """Resamples distorted images to pinhole or equidistant fisheye images of the same size.

    The field of view is the largest one without empty borders. If the distortion is too strong for that, pixels without
    a source are black. So are pixels of a fisheye image at 90 degrees or more from the optical axis.

    Attributes:
        K: [3, 3] fp64, intrinsics of the undistorted images in pixels.
        has_source: [H, W] bool, True for pixels that the distorted image covers.
    """

    def __init__(self, lens: Lens, width: int, height: int) -> None:
        distortion = _distortion_of(lens)
        self.K = distortion.undistorted.intrinsics(width, height)
        self._distortion, self._scale = distortion, np.array([width / lens.width, height / lens.height])
        is_stored = width * height <= MAP_PIXELS_MAX
        # [H, W, 2] positions of undistorted pixels in the distorted image, in pixels.
        self._sources = torch.empty(height, width, 2, dtype=torch.float32, device="cpu") if is_stored else None
        self.has_source = torch.empty(height, width, dtype=torch.bool, device="cpu")
        for rows in _row_chunks(width, height):
            sources, self.has_source[rows] = self._map(rows)
            if self._sources is not None:
                self._sources[rows] = sources

    def _map(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Returns the positions [rows, W, 2] in the distorted image of some rows of the undistorted image, and a mask
        of the positions inside it."""
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
            # Image rows that this chunk samples, plus one on each side for the interpolation.
            first = max(int(source_y.min()) - 1, 0)
            last = min(int(source_y.max()) + 2, height)
            grid = torch.stack(
                [sources[..., 0] * 2 / width - 1, (sources[..., 1] - first) * 2 / (last - first) - 1], -1
            )
            part = image[first:last].permute(2, 0, 1)[None].float()
            sampled = grid_sample(part, grid[None], "bilinear", "border", align_corners=False)[0].permute(1, 2, 0)
            result[rows] = (sampled * self.has_source[rows, :, None]).round().to(torch.uint8)
        return result


@functools.lru_cache(maxsize=32)
def undistorted_intrinsics(lens: Lens, width: int, height: int) -> Tensor:
    """Returns the intrinsics `K` of an :class:`Undistortion` without computing its map, which takes 9 bytes per
    pixel."""
    return _distortion_of(lens).undistorted.intrinsics(width, height)


def _distortion_of(lens: Lens) -> "_ColmapDistortion | _FisheyeDistortion | _RadialDistortion | _SkewedDistortion":
    values = [lens.fx, lens.fy, lens.cx, lens.cy, *lens.distortion]
    if not all(math.isfinite(value) for value in values) or min(lens.fx, lens.fy) <= 0:
        raise ArgumentError(f"K: expected positive focal lengths and finite values, found {lens}")
    if lens.skew:
        return _SkewedDistortion(lens)
    if len(lens.distortion) == 8:
        lens = dataclasses.replace(lens.undistorted, colmap=("FULL_OPENCV", tuple(values)))
    if lens.colmap is not None:
        return _colmap_distortion(lens)
    return _FisheyeDistortion(lens) if lens.model == "fisheye" else _RadialDistortion(lens)


class _RadialDistortion:
    """OpenCV's radial and tangential distortion of a pinhole camera."""

    def __init__(self, lens: Lens) -> None:
        self._camera = _pycolmap_camera(lens)
        self.undistorted = _pinhole(self._camera)
        self._max_squared_radius = min(_roots([1, 3 * lens.distortion[0], 5 * lens.distortion[1]]), default=math.inf)

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Projects undistorted points [P, 2] at depth 1 to pixels [P, 2]; also returns where the distortion is
        monotonic."""
        near = (points**2).sum(-1) < self._max_squared_radius
        return self._camera.img_from_cam(np.concatenate([points, np.ones((len(points), 1))], -1)), near


class _SkewedDistortion:
    """A distortion followed by a shear of the pixels along x."""

    def __init__(self, lens: Lens) -> None:
        self._lens, self._distortion = lens, _distortion_of(dataclasses.replace(lens, skew=0.0))
        self.undistorted: Lens = self._distortion.undistorted

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Returns pixels [P, 2] of undistorted points [P, 2], and whether they are where distortion is monotonic."""
        pixels, near = self._distortion.sources(points)
        shift = self._lens.skew / self._lens.fy * (pixels[:, 1] - self._lens.cy)
        return np.stack([pixels[:, 0] + shift, pixels[:, 1]], -1), near


class _FisheyeDistortion:
    """Distortion theta_d = theta + k1 theta^3 + k2 theta^5 + k3 theta^7 + k4 theta^9 of an equidistant fisheye."""

    def __init__(self, lens: Lens) -> None:
        self._lens = lens
        self._max_theta = _largest_angle(lens.distortion)
        zoom = self._zoom()
        self.undistorted = _zoomed(lens, zoom)

    def _zoom(self) -> float:
        """Returns the smallest factor of the focal lengths for which the undistorted image has no empty borders."""
        lens = self._lens
        _, radii = _border(lens)
        thetas = np.linspace(0, self._max_theta, 10_001)
        distorted = _distorted_angle(thetas, lens.distortion)
        # If the lens does not reach the border, the image contains its whole field of view.
        reached = radii[(radii > 0) & (radii <= distorted[-1])]
        ratios = reached / np.interp(reached, distorted, thetas)
        return float(ratios.max(initial=0.0) or distorted[-1] / self._max_theta)

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Projects undistorted points [P, 2], theta x/r and theta y/r, to pixels [P, 2]. Also returns a mask of the
        points in the field of view of the lens."""
        lens = self._lens
        theta = np.hypot(points[:, 0], points[:, 1])
        ratio = _distorted_angle(theta, lens.distortion) / np.maximum(theta, 1e-12)
        sources = points * ratio[:, None] * (lens.fx, lens.fy) + (lens.cx, lens.cy)
        return sources, theta < self._max_theta


class _ColmapDistortion:
    """A lens of :data:`COLMAP_MODELS`, whose images become pinhole images or equidistant fisheye images."""

    def __init__(self, lens: Lens) -> None:
        assert lens.colmap is not None
        self._lens, self._is_fisheye = lens.colmap, lens.model == "fisheye"
        if self._is_fisheye:
            self._reach, edge = colmap_lenses.reach(self._lens, math.pi / 2)
            zooms = self._zooms(lens) or (edge / self._reach, edge / self._reach)
            shares = [(_coverage(self.sources, _zoomed(lens, z), lens).share, z) for z in np.linspace(*zooms, ZOOMS)]
            largest, _ = max(shares)
            zoom = next(float(z) for share, z in shares if share >= FISHEYE_SHARE * largest)
            self.undistorted = _zoomed(lens, zoom)
        else:
            self.undistorted = pinhole = _pinhole(_pycolmap_camera(lens))
            # Up to the corners of the undistorted image.
            x, y = max(pinhole.cx, pinhole.width - pinhole.cx), max(pinhole.cy, pinhole.height - pinhole.cy)
            corner = 1.01 * math.hypot(x / pinhole.fx, y / pinhole.fy)
            self._reach = math.tan(colmap_lenses.reach(self._lens, math.atan(corner))[0])

    def _zooms(self, lens: Lens) -> tuple[float, float] | None:
        """Returns the focal factors without empty borders (see :meth:`_FisheyeDistortion._zoom`) and for all border
        pixels; None if the lens does not reach the border."""
        border, _ = _border(lens)
        angles, is_inverse = colmap_lenses.invert(self._lens, border)
        angles, border = angles[is_inverse], border[is_inverse] - (lens.cx, lens.cy)
        thetas = np.hypot(angles[:, 0], angles[:, 1])
        if not (thetas > 0).any():
            return None
        radii = np.hypot(border[:, 0] / lens.fx, border[:, 1] / lens.fy)
        ratios = (radii / np.maximum(thetas, 1e-12))[thetas > 0]
        return float(ratios.max()), float(ratios.min())

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Projects undistorted points [P, 2] to pixels [P, 2]; also returns where the distortion is monotonic."""
        ones = np.ones((len(points), 1))
        directions = colmap_lenses.directions_of(points) if self._is_fisheye else np.concatenate([points, ones], -1)
        return colmap_lenses.project(self._lens, directions), np.hypot(points[:, 0], points[:, 1]) < self._reach


_colmap_distortion = functools.lru_cache(maxsize=32)(_ColmapDistortion)


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How much of the photographs their undistorted images show.

    Attributes:
        share: Share of the photograph's pixels that the undistorted image shows.
        scale: Pixels of the undistorted image per pixel of the photograph, along a line through the principal point.
    """

    share: float
    scale: float


@functools.lru_cache(maxsize=32)
def coverage(lens: Lens) -> Coverage:
    """Returns the coverage of a lens's undistorted images."""
    distortion = _distortion_of(lens)
    return _coverage(distortion.sources, distortion.undistorted, lens)


def _coverage(sources_of: Callable[[Array], tuple[Array, Array]], undistorted: Lens, lens: Lens) -> Coverage:
    """Returns the coverage of an undistorted lens, given the function that maps its points to pixels of the
    photograph."""
    size = np.array([lens.width, lens.height])
    scale = size / (undistorted.width, undistorted.height)
    focal, center = scale * (undistorted.fx, undistorted.fy), scale * (undistorted.cx, undistorted.cy)
    # Each cell of the undistorted image shows a quadrilateral of the photograph.
    corners = np.stack(np.meshgrid(*(np.linspace(0, side, CELLS + 1) for side in size)), -1)
    sources, near = sources_of(((corners - center) / focal).reshape(-1, 2))
    sources, near = sources.reshape(corners.shape), near.reshape(corners.shape[:2])
    a, b = sources[1:, 1:] - sources[:-1, :-1], sources[1:, :-1] - sources[:-1, 1:]  # diagonals
    areas = np.abs(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]) / 2  # NaN where a corner has no pixel
    middles = (sources[1:, 1:] + sources[:-1, :-1]) / 2
    inside = near[1:, 1:] & near[:-1, :-1] & ((middles >= 0) & (middles <= size)).all(-1)
    middle, beside = sources_of(np.array([[0.0, 0.0], [1e-3, 0.0]]))[0]
    along = float(np.hypot(*(beside - middle)))
    return Coverage(float(np.nansum(areas[inside]) / size.prod()), 1e-3 * float(focal[0]) / along)


def _pycolmap_camera(lens: Lens) -> Any:
    model = lens.colmap or ("OPENCV", (lens.fx, lens.fy, lens.cx, lens.cy, *lens.distortion))
    return colmap_lenses.camera_of(model, lens.width, lens.height)


def _pinhole(camera: Any) -> Lens:
    """Returns the pinhole camera that COLMAP computes for the undistorted images of a camera."""
    import pycolmap

    pinhole = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)
    fx, fy, cx, cy = (float(value) for value in pinhole.params)
    return Lens(pinhole.width, pinhole.height, fx, fy, cx, cy)


def _zoomed(lens: Lens, zoom: float) -> Lens:
    return dataclasses.replace(lens.undistorted, fx=zoom * lens.fx, fy=zoom * lens.fy)


def _border(lens: Lens) -> tuple[Array, Array]:
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


def panorama(width: float, height: float) -> Lens:
    """Returns the lens of a full panorama, 360 degrees wide and 180 degrees high."""
    return Lens(round(width), round(height), *full_panorama(width, height), model="equirectangular")


def colmap_lens(model: str, width: int, height: int, params: Sequence[float]) -> Lens:
    """Returns the lens of a camera of :data:`COLMAP_MODELS`, given its parameters in COLMAP's order.

    If the additional coefficients are zero, the lens is one of OpenCV's: a pinhole camera, OPENCV or OPENCV_FISHEYE.
    Images become equidistant fisheye images if a pinhole image would show less than :data:`PINHOLE_SHARE_MIN` of their
    pixels, or their center at less than :data:`PINHOLE_SCALE_MIN` of the original scale.
    """
    if model == "SIMPLE_DIVISION":
        params = (params[0], *params)
    fx, fy, cx, cy, *rest = params
    projection, distortion = COLMAP_MODELS[model], (0.0, 0.0, 0.0, 0.0)
    if model == "FULL_OPENCV":
        distortion, others = (rest[0], rest[1], rest[2], rest[3]), rest[4:]
    elif model == "THIN_PRISM_FISHEYE":
        distortion, others = (rest[0], rest[1], rest[4], rest[5]), [*rest[2:4], *rest[6:]]
    elif model == "RAD_TAN_THIN_PRISM_FISHEYE":
        distortion, others = (rest[0], rest[1], rest[2], rest[3]), rest[4:]
    else:
        others = rest[:1]  # With a first coefficient of zero, FOV, DIVISION and EUCM are pinhole cameras.
    if not any(others):
        return Lens(width, height, fx, fy, cx, cy, distortion, projection)
    name = "DIVISION" if model == "SIMPLE_DIVISION" else model
    lens = Lens(width, height, fx, fy, cx, cy, model=projection, colmap=(name, tuple(params)))
    if projection == "pinhole" and lens.problem is None:
        as_pinhole = coverage(lens)
        if as_pinhole.share < PINHOLE_SHARE_MIN or as_pinhole.scale < PINHOLE_SCALE_MIN:
            return dataclasses.replace(lens, model="fisheye")
    return lens


@functools.lru_cache(maxsize=32)
def native_lens(lens: Lens) -> tuple[Lens, float] | None:
    """Returns the rasterizer's equivalent of a lens of :data:`COLMAP_MODELS`, and its largest error in pixels.

    FULL_OPENCV is exact. A rotationally symmetric lens may have a fisheye polynomial within :data:`FIT_PIXELS`. Returns
    None if there is no equivalent, if the lens has skew, or if FULL_OPENCV would show less than
    :data:`PINHOLE_SHARE_MIN`.
    """
    if lens.skew:
        return None
    if lens.colmap is None:
        return lens, 0.0
    name, (fx, fy, cx, cy, *k) = lens.colmap
    if name == "FULL_OPENCV":
        exact = Lens(lens.width, lens.height, fx, fy, cx, cy, tuple(k))
        if float(exact.shown(SHOWN_SIDE, SHOWN_SIDE).float().mean()) >= PINHOLE_SHARE_MIN:
            return exact, 0.0
    # Up to the corners, or to the end of the lens's field of view.
    angles, is_inverse = colmap_lenses.invert(lens.colmap, _border(lens)[0])
    largest = float(np.hypot(angles[:, 0], angles[:, 1])[is_inverse].max(initial=0.0))
    if not is_inverse.all():
        largest = colmap_lenses.reach(lens.colmap, math.pi / 2)[0]
    # Samples are denser at both ends, which reduces the largest error.
    thetas = largest * (1 - np.cos(np.linspace(0, np.pi, FIT_SAMPLES))) / 2
    profile = colmap_lenses.radial_profile(lens.colmap, thetas)
    if profile is None:
        return None
    powers = np.arange(1, 10, 2)
    scaled = np.linalg.lstsq((thetas / largest)[:, None] ** powers, profile, rcond=None)[0] / largest**powers
    zoom, *coefficients = (float(value) for value in scaled)
    if not zoom > 0:
        return None
    distortion = tuple(value / zoom for value in coefficients)
    error = float(np.abs(zoom * _distorted_angle(thetas, distortion) - profile).max()) * max(fx, fy)
    if not (error <= FIT_PIXELS and _largest_angle(distortion) >= largest):
        return None
    return Lens(lens.width, lens.height, zoom * fx, zoom * fy, cx, cy, distortion, "fisheye"), error


def _radial_factor(square: Values, distortion: Sequence[float]) -> Values:
    """Returns OpenCV's radial factor at squared radii; `distortion` is k1, k2, p1, p2, optionally followed by k3 to
    k6."""
    k1, k2, _, _, *more = distortion
    if not more:
        return 1 + k1 * square + k2 * (square * square)
    k3, k4, k5, k6 = more
    return (1 + square * (k1 + square * (k2 + square * k3))) / (1 + square * (k4 + square * (k5 + square * k6)))


def _distorted_angle(theta: Values, distortion: Sequence[float]) -> Values:
    """Returns the distorted angles theta_d of angles theta."""
    k1, k2, k3, k4 = distortion
    square = theta * theta
    return theta * (1 + square * (k1 + square * (k2 + square * (k3 + square * k4))))


def _largest_angle(distortion: Sequence[float]) -> float:
    """Returns the largest angle from the optical axis in a fisheye image, at most 90 degrees."""
    derivative = [1.0, *((2 * i + 3) * k for i, k in enumerate(distortion))]
    # Beyond the first extremum of theta_d, the image would repeat itself.
    return min([math.pi / 2, *(math.sqrt(square) for square in _roots(derivative))])


def _roots(coefficients: Sequence[float]) -> list[float]:
    """Returns the positive real roots of a polynomial, given its coefficients with the constant term first."""
    # Dividing by a subnormal leading coefficient would overflow.
    roots = np.roots([value if abs(value) > COEFFICIENT_MIN else 0.0 for value in coefficients[::-1]])
    return [float(root.real) for root in roots if root.real > 0 and abs(root.imag) < 1e-12]


def _row_chunks(width: int, height: int) -> list[slice]:
    """Splits image rows into chunks of about :data:`CHUNK_PIXELS` pixels."""
    step = max(1, CHUNK_PIXELS // width)
    return [slice(start, min(start + step, height)) for start in range(0, height, step)]
