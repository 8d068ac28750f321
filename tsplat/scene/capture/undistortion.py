"""Undistortion of photographs to pinhole or equidistant fisheye images.

pycolmap computes the pinhole cameras of undistorted images. Images are sampled bilinearly; panoramas are not resampled.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ...errors import ArgumentError
from . import colmap_lenses
from .lenses import Array, Lens, border_points, distorted_angle, largest_angle, positive_roots

CHUNK_PIXELS = 1 << 20
"""Number of pixels that are sampled at a time, which limits the memory for large images."""

MAP_PIXELS_MAX = 1 << 25
"""For images with more pixels, the undistortion map is not stored but computed for each image."""

FISHEYE_SHARE = 0.9
"""Minimum share of the valid pixels that an equidistant fisheye image of a ``colmap_lenses`` model shows."""

ZOOMS = 16
"""Number of zoom factors between the one without empty borders and the one that shows the whole photograph. The largest
that reaches FISHEYE_SHARE is used."""

CELLS = 96
"""Number of cells per image side for measuring areas."""


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
        self._max_squared_radius = min(
            positive_roots([1, 3 * lens.distortion[0], 5 * lens.distortion[1]]), default=math.inf
        )

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
        self._max_theta = largest_angle(lens.distortion)
        zoom = self._zoom()
        self.undistorted = _zoomed(lens, zoom)

    def _zoom(self) -> float:
        """Returns the smallest factor of the focal lengths for which the undistorted image has no empty borders."""
        lens = self._lens
        _, radii = border_points(lens)
        thetas = np.linspace(0, self._max_theta, 10_001)
        distorted = distorted_angle(thetas, lens.distortion)
        # If the lens does not reach the border, the image contains its whole field of view.
        reached = radii[(radii > 0) & (radii <= distorted[-1])]
        ratios = reached / np.interp(reached, distorted, thetas)
        return float(ratios.max(initial=0.0) or distorted[-1] / self._max_theta)

    def sources(self, points: Array) -> tuple[Array, Array]:
        """Projects undistorted points [P, 2], theta x/r and theta y/r, to pixels [P, 2]. Also returns a mask of the
        points in the field of view of the lens."""
        lens = self._lens
        theta = np.hypot(points[:, 0], points[:, 1])
        ratio = distorted_angle(theta, lens.distortion) / np.maximum(theta, 1e-12)
        sources = points * ratio[:, None] * (lens.fx, lens.fy) + (lens.cx, lens.cy)
        return sources, theta < self._max_theta


class _ColmapDistortion:
    """The distortion of a lens of :data:`.lens_conversions.COLMAP_MODELS`."""

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
        border, _ = border_points(lens)
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
    """The share and the scale at which undistorted images show photographs.

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


def _row_chunks(width: int, height: int) -> list[slice]:
    """Splits image rows into chunks of about :data:`CHUNK_PIXELS` pixels."""
    step = max(1, CHUNK_PIXELS // width)
    return [slice(start, min(start + step, height)) for start in range(0, height, step)]
