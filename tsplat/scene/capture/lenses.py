"""Lens distortion: intrinsics with distortion, and undistortion to pinhole images.

The model is COLMAP's OPENCV (radial and tangential distortion), of which SIMPLE_RADIAL and RADIAL are special cases.
pycolmap computes the pinhole camera and the projections; images are sampled bilinearly.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ...errors import ArgumentError
from ...support.extras import require

CHUNK_PIXELS = 1 << 20
"""Pixels sampled at a time, which limits the memory that large images need."""


@dataclasses.dataclass(frozen=True)
class Lens:
    """Camera intrinsics with distortion.

    Attributes:
        width, height: Image size in pixels, to which the other values refer.
        fx, fy, cx, cy: Focal lengths and principal point in pixels; pixel centers lie at +0.5.
        distortion: OpenCV's k1, k2, p1, p2.

    Raises:
        ArgumentError: The distortion is not finite.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in self.distortion):
            raise ArgumentError(f"distortion: expected finite values, found {self.distortion}; check the camera")

    @property
    def is_pinhole(self) -> bool:
        return not any(self.distortion)

    def intrinsics(self, width: int, height: int) -> Tensor:
        """Returns K [3, 3] in fp64 for images of another size, scaled per axis."""
        x, y = width / self.width, height / self.height
        return torch.tensor(
            [[self.fx * x, 0, self.cx * x], [0, self.fy * y, self.cy * y], [0, 0, 1]], dtype=torch.float64
        )


class Undistortion:
    """Resamples distorted images to pinhole images of the same size.

    The field of view of the pinhole camera is the largest one without empty borders. If the distortion is so strong
    that there is none, pixels without a source are black.

    Args:
        lens: Intrinsics; they may refer to another image size.
        width, height: Image size in pixels.

    Attributes:
        K: [3, 3] fp64, intrinsics of the pinhole images in pixels.
        has_source: [H, W] bool, True for pixels that the distorted image covers.

    Raises:
        ArgumentError: A value is not finite, or a focal length is not positive.
        MissingExtraError: pycolmap is not installed.
    """

    def __init__(self, lens: Lens, width: int, height: int) -> None:
        require("pycolmap")
        import pycolmap

        values = [lens.fx, lens.fy, lens.cx, lens.cy, *lens.distortion]
        if not all(math.isfinite(value) for value in values) or min(lens.fx, lens.fy) <= 0:
            raise ArgumentError(f"K: expected positive focal lengths and finite values, found {lens}")
        camera = pycolmap.Camera(model="OPENCV", width=lens.width, height=lens.height, params=values)
        pinhole = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), camera)
        fx, fy, cx, cy = (float(value) for value in pinhole.params)
        self.K = Lens(pinhole.width, pinhole.height, fx, fy, cx, cy).intrinsics(width, height)
        # [H, W, 2] position of each pinhole pixel in the distorted image, in pixels.
        self._sources = torch.empty(height, width, 2)
        self.has_source = torch.empty(height, width, dtype=torch.bool)
        scale = np.array([width / lens.width, height / lens.height])
        x = (np.arange(width) + 0.5 - float(self.K[0, 2])) / float(self.K[0, 0])
        for rows in _row_chunks(width, height):
            y = (np.arange(rows.start, rows.stop) + 0.5 - float(self.K[1, 2])) / float(self.K[1, 1])
            directions = np.stack(np.broadcast_arrays(x[None], y[:, None], 1.0), -1).reshape(-1, 3)
            near = directions[:, 0] ** 2 + directions[:, 1] ** 2 < _max_squared_radius(lens)
            sources = np.nan_to_num(camera.img_from_cam(directions) * scale, nan=-1.0)
            inside = ((sources >= 0) & (sources <= (width, height))).all(-1)
            self._sources[rows] = torch.from_numpy(sources).float().view(-1, width, 2)
            self.has_source[rows] = torch.from_numpy(near & inside).view(-1, width)

    def __call__(self, image: Tensor) -> Tensor:
        """Undistorts an image [H, W, D] uint8; pixels without a source become black.

        Raises:
            ArgumentError: The image has another size.
        """
        height, width = self.has_source.shape
        if image.shape[:2] != self.has_source.shape:
            raise ArgumentError(f"image: expected {width}x{height} pixels, found {image.shape[1]}x{image.shape[0]}")
        result = torch.empty_like(image)
        for rows in _row_chunks(width, height):
            sources = self._sources[rows]
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


def _max_squared_radius(lens: Lens) -> float:
    """Squared radius at depth 1 up to which the distortion is monotonic; beyond it, the image would repeat itself."""
    k1, k2, _, _ = lens.distortion
    # Zeros of the derivative of r + k1 r^3 + k2 r^5, in r^2.
    roots = np.roots([5 * k2, 3 * k1, 1])
    return min((float(root.real) for root in roots if root.real > 0 and abs(root.imag) < 1e-12), default=math.inf)


def _row_chunks(width: int, height: int) -> list[slice]:
    """Splits image rows into chunks of about :data:`CHUNK_PIXELS` pixels."""
    step = max(1, CHUNK_PIXELS // width)
    return [slice(start, min(start + step, height)) for start in range(0, height, step)]
