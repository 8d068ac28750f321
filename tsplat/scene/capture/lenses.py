"""Lenses with distortion, and the pinhole pictures made from what they saw.

The distortion is the one OpenCV and COLMAP call OPENCV; COLMAP's SIMPLE_RADIAL and RADIAL are special cases. How wide
the pinhole camera may be, and where its pixels come from, pycolmap says; sampling is bilinear.
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

BAND = 1 << 20
"""Pixels that are sampled at a time, so that large photographs need little memory."""


@dataclasses.dataclass(frozen=True)
class Lens:
    """A camera's intrinsics.

    Attributes:
        width, height: Size of the pictures that the other values are in pixels of.
        fx, fy, cx, cy: Focal lengths and principal point; pixel centers lie at +0.5.
        distortion: k1, k2, p1, p2 of OpenCV.

    Raises:
        ArgumentError: A distortion that is not finite.
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
            raise ArgumentError(f"distortion: found {self.distortion}; check the camera")

    @property
    def is_pinhole(self) -> bool:
        return not any(self.distortion)

    def intrinsics(self, width: int, height: int) -> Tensor:
        """K [3, 3] fp64 for pictures of another size, by the ratio of the sizes, axis by axis."""
        x, y = width / self.width, height / self.height
        return torch.tensor(
            [[self.fx * x, 0, self.cx * x], [0, self.fy * y, self.cy * y], [0, 0, 1]], dtype=torch.float64
        )


class Undistortion:
    """From the pictures of a lens to pictures of the same size by a pinhole camera.

    The pinhole camera sees as much as leaves no empty border. Where the lens bends so much that there is no such
    camera, pixels without a source are black.

    Attributes:
        K: [3, 3] fp64, in pixels of the pictures.
        sees: [H, W] bool, True where a pixel has a source.

    Args:
        lens: May be given in pixels of another size.
        width, height: Of the pictures.

    Raises:
        ArgumentError: Values that are not finite, or focal lengths that are not positive.
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
        # Where each pixel of the pinhole picture is in the lens's, in pixels. [H, W, 2]
        self._sources = torch.empty(height, width, 2)
        self.sees = torch.empty(height, width, dtype=torch.bool)
        scale = np.array([width / lens.width, height / lens.height])
        x = (np.arange(width) + 0.5 - float(self.K[0, 2])) / float(self.K[0, 0])
        for rows in _bands(width, height):
            y = (np.arange(rows.start, rows.stop) + 0.5 - float(self.K[1, 2])) / float(self.K[1, 1])
            directions = np.stack(np.broadcast_arrays(x[None], y[:, None], 1.0), -1).reshape(-1, 3)
            near = directions[:, 0] ** 2 + directions[:, 1] ** 2 < _reach(lens)
            sources = np.nan_to_num(camera.img_from_cam(directions) * scale, nan=-1.0)
            inside = ((sources >= 0) & (sources <= (width, height))).all(-1)
            self._sources[rows] = torch.from_numpy(sources).float().view(-1, width, 2)
            self.sees[rows] = torch.from_numpy(near & inside).view(-1, width)

    def __call__(self, image: Tensor) -> Tensor:
        """The pinhole picture of a picture [H, W, D] uint8; black where it has no source.

        Raises:
            ArgumentError: A picture of another size.
        """
        height, width = self.sees.shape
        if image.shape[:2] != self.sees.shape:
            raise ArgumentError(f"image: expected {width}x{height} pixels, found {image.shape[1]}x{image.shape[0]}")
        result = torch.empty_like(image)
        for rows in _bands(width, height):
            sources = self._sources[rows]
            wanted = sources[..., 1][self.sees[rows]]
            if not len(wanted):
                result[rows] = 0
                continue
            # The rows that this band takes something from, and one on each side for the interpolation.
            first = max(int(wanted.min()) - 1, 0)
            last = min(int(wanted.max()) + 2, height)
            grid = torch.stack(
                [sources[..., 0] * 2 / width - 1, (sources[..., 1] - first) * 2 / (last - first) - 1], -1
            )
            part = image[first:last].permute(2, 0, 1)[None].float()
            sampled = grid_sample(part, grid[None], "bilinear", "border", align_corners=False)[0].permute(1, 2, 0)
            result[rows] = (sampled * self.sees[rows, :, None]).round().to(torch.uint8)
        return result


def _reach(lens: Lens) -> float:
    """The square of the radius, at depth one, from where on the formula folds over and shows what it has shown."""
    k1, k2, _, _ = lens.distortion
    # Where r + k1 r^3 + k2 r^5 stops growing.
    roots = np.roots([5 * k2, 3 * k1, 1])
    return min((float(root.real) for root in roots if root.real > 0 and abs(root.imag) < 1e-12), default=math.inf)


def _bands(width: int, height: int) -> list[slice]:
    step = max(1, BAND // width)
    return [slice(start, min(start + step, height)) for start in range(0, height, step)]
