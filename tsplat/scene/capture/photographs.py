"""Loading photographs: reads images and masks, undistorts and downscales them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ...arguments import check_size
from ...errors import ArgumentError, FileError
from ..images import downscale, read_image, read_image_info, read_mask
from .lenses import Lens, Undistortion
from .views import Color, View

ASPECT_TOLERANCE = 0.01
"""Relative difference of the aspect ratios of an image and its camera that is accepted, in addition to one pixel."""

WORKERS_MAX = 8

OnProgress = Callable[[int, int], None]
"""Called with the number of images read and their total."""

Undistortions = dict[tuple[Lens, int, int], Undistortion]
"""Undistortion of each combination of lens, width and height."""


@dataclasses.dataclass(frozen=True, eq=False)
class Photograph:
    """An image file and its camera.

    Attributes:
        name: Name of the view.
        path: The image, in any size with the aspect ratio of the lens.
        lens: Intrinsics and distortion.
        viewmat: [4, 4] fp64 world to camera.
        camera_id: Index of the physical camera.
        downscale: Factor to downscale the image by after reading.
        mask: An image of the same aspect ratio, white for valid pixels.
        points: [P, 3] sparse points observed in the image, world frame.
    """

    name: str
    path: Path
    lens: Lens
    viewmat: Tensor
    camera_id: int = 0
    downscale: int = 1
    mask: Path | None = None
    points: Tensor | None = None


def check_test_every(test_every: int) -> None:
    """Raises ArgumentError unless some views are left for training."""
    if test_every == 1:
        raise ArgumentError(
            "test_every: 1 holds out every view, so that none is left for training; expected 0 for no held-out views, "
            "or at least 2"
        )
    if test_every != 0:
        check_size("test_every", test_every)


def is_held_out(index: int, test_every: int) -> bool:
    """Whether the view with an index, in the order of names, is held out: the first of every so many; never for 0."""
    return test_every > 0 and index % test_every == 0


def read_views(
    photographs: Sequence[Photograph], background: Color, on_progress: OnProgress | None = None
) -> list[View]:
    """Reads photographs in several threads. Views are in the order of the photographs.

    Distorted images and their masks are undistorted to pinhole or equidistant fisheye images of the same size. Pixels
    without a source are masked out.

    Args:
        photographs: The files to read.
        background: RGB in [0, 1] that transparent images are composited over.
        on_progress: Called after each image.

    Raises:
        FileError: An image or mask is missing, cannot be read, or does not have the aspect ratio of its camera.
        ArgumentError: A camera is invalid.
        MissingExtraError: Pillow is not installed, or an image is distorted and pycolmap is not installed.
    """
    _check_files([photograph.path for photograph in photographs], "images")
    _check_files([photograph.mask for photograph in photographs if photograph.mask], "masks")
    undistortions: Undistortions = {}
    for photograph in photographs:
        lens, info = photograph.lens, read_image_info(photograph.path)
        if not _has_aspect_ratio(info.width, info.height, lens.width, lens.height):
            raise FileError(
                f"{photograph.path}: expected the aspect ratio of its camera, {lens.width}x{lens.height}, found "
                f"{info.width}x{info.height}; use the images that the cameras were computed from"
            )
        key = (lens, info.width, info.height)
        if not lens.is_pinhole and key not in undistortions:
            try:
                undistortions[key] = Undistortion(*key)
            except ArgumentError as error:
                raise ArgumentError(f"{error} in view {photograph.name!r}") from error

    def read(photograph: Photograph) -> View:
        return _read(photograph, background, undistortions)

    views: list[View] = []
    with ThreadPoolExecutor(min(WORKERS_MAX, os.cpu_count() or 1)) as pool:
        for view in pool.map(read, photographs):
            views.append(view)
            if on_progress is not None:
                on_progress(len(views), len(photographs))
    return views


def _read(photograph: Photograph, background: Color, undistortions: Undistortions) -> View:
    image = read_image(photograph.path, background)
    height, width, _ = image.shape
    undistortion = undistortions.get((photograph.lens, width, height))
    masked = photograph.mask is not None or (undistortion is not None and not undistortion.has_source.all())
    if masked:
        # The mask is undistorted and downscaled as a fourth channel.
        image = torch.cat([image, _read_mask(photograph.mask, width, height)[..., None]], -1)
    if undistortion is not None:
        image = undistortion(image)
    if photograph.downscale > 1:
        size = (max(1, round(width / photograph.downscale)), max(1, round(height / photograph.downscale)))
        image = downscale(image, *size)
    old, (height, width) = (width, height), image.shape[:2]
    K = photograph.lens.intrinsics(width, height)
    if undistortion is not None:
        K = torch.diag(K.new_tensor([width / old[0], height / old[1], 1])) @ undistortion.K
    points = photograph.points
    return View(
        name=photograph.name,
        image=image[..., :3].contiguous(),
        viewmat=photograph.viewmat.float(),
        K=K.float(),
        mask=image[..., 3] > 127 if masked else None,
        sparse=None if points is None else _project_visible(points, photograph, K, width, height),
        camera_id=photograph.camera_id,
        camera_model=photograph.lens.camera_model,
        files=(photograph.path, *([photograph.mask] if photograph.mask else [])),
    )


def _read_mask(path: Path | None, width: int, height: int) -> Tensor:
    """Reads a mask in the size of its image, [height, width] uint8; all 255 without a path."""
    if path is None:
        return torch.full((height, width), 255, dtype=torch.uint8)
    mask = read_mask(path)
    if not _has_aspect_ratio(mask.shape[1], mask.shape[0], width, height):
        raise FileError(
            f"{path}: expected the aspect ratio of its image, {width}x{height}, found {mask.shape[1]}x{mask.shape[0]}"
        )
    if mask.shape != (height, width):
        mask = downscale(mask[..., None], width, height)[..., 0]
    return mask


def _has_aspect_ratio(width: int, height: int, full_width: int, full_height: int) -> bool:
    """Returns whether an image could be a downscaled version of one of the full size."""
    return abs(width * full_height / full_width - height) <= max(1.0, ASPECT_TOLERANCE * height)


def _project_visible(points: Tensor, photograph: Photograph, K: Tensor, width: int, height: int) -> Tensor:
    """Projects points [P, 3] and returns pixel x, y and depth of those inside the image. [Q, 3] fp32"""
    viewmat = photograph.viewmat
    camera = points.double() @ viewmat[:3, :3].T + viewmat[:3, 3]
    camera = camera[camera[:, 2] > 0]
    directions = camera / camera[:, 2:]
    if photograph.lens.camera_model == "fisheye":
        radii = directions[:, :2].norm(dim=-1, keepdim=True).clamp_min(1e-12)
        directions = torch.cat([directions[:, :2] * radii.atan() / radii, directions[:, 2:]], -1)
    pixels = (directions @ K.T)[:, :2]
    inside = ((pixels >= 0) & (pixels < pixels.new_tensor([width, height]))).all(-1)
    return torch.cat([pixels, camera[:, 2:]], -1)[inside].float()


def _check_files(paths: Sequence[Path], what: str) -> None:
    """Raises for all missing files at once, before any of them is read."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        more = f", and {len(missing) - 1} more of {len(paths)} {what} are missing" if len(missing) > 1 else ""
        raise FileError(f"{missing[0]}: no such file{more}")
