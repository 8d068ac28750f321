"""From photographs, masks and lenses on disk to views: read, undistorted, made smaller."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ...errors import ArgumentError, FileError
from ..images import picture_info, read_image, read_mask, shrink
from .captures import Color, View
from .lenses import Lens, Undistortion

STRETCH_MAX = 0.01
"""How much a picture's proportions may differ from its camera's, if by more than a pixel of rounding."""

WORKERS_MAX = 8

OnProgress = Callable[[int, int], None]
"""Told how many of how many pictures have been read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shot:
    """What is known of a picture before it is read.

    Attributes:
        name: For people.
        path: The picture, in any size with the lens's proportions.
        lens: Its intrinsics.
        viewmat: [4, 4] fp64 world to camera.
        camera_id: Index of the physical camera.
        downscale: How many times smaller to make the picture once it is read.
        mask: A picture of the same proportions, white where it counts.
        points: [P, 3] sparse points seen in it, world frame.
    """

    name: str
    path: Path
    lens: Lens
    viewmat: Tensor
    camera_id: int = 0
    downscale: int = 1
    mask: Path | None = None
    points: Tensor | None = None


def read_views(shots: Sequence[Shot], background: Color, on_progress: OnProgress | None = None) -> list[View]:
    """Reads pictures in several threads; the views are in the order of the shots, their pictures uint8 in memory.

    Pictures by lenses with distortion are undistorted to pinhole pictures of the same size, masks with them. Pixels
    that then have no source are masked out.

    Args:
        background: RGB in [0, 1] behind pictures that are transparent.

    Raises:
        FileError: Pictures or masks are missing, cannot be read, or have other proportions than their camera.
        ArgumentError: A camera without meaning.
        MissingExtraError: Pillow is not installed, or pycolmap, which distortion needs.
    """
    _check_files([shot.path for shot in shots], "pictures")
    _check_files([shot.mask for shot in shots if shot.mask], "masks")
    undistortions: dict[tuple[Lens, int, int], Undistortion] = {}
    for shot in shots:
        info = picture_info(shot.path)
        if _is_stretched(info.width, info.height, shot.lens.width, shot.lens.height):
            raise FileError(
                f"{shot.path}: is {info.width}x{info.height}, but its camera {shot.lens.width}x{shot.lens.height}; "
                "use the images that the cameras were computed with"
            )
        key = (shot.lens, info.width, info.height)
        if not shot.lens.is_pinhole and key not in undistortions:
            try:
                undistortions[key] = Undistortion(*key)
            except ArgumentError as error:
                raise ArgumentError(f"{error} in view {shot.name!r}") from error

    def read(shot: Shot) -> View:
        return _read(shot, background, undistortions)

    views: list[View] = []
    with ThreadPoolExecutor(min(WORKERS_MAX, os.cpu_count() or 1)) as pool:
        for view in pool.map(read, shots):
            views.append(view)
            if on_progress is not None:
                on_progress(len(views), len(shots))
    return views


def _read(shot: Shot, background: Color, undistortions: dict[tuple[Lens, int, int], Undistortion]) -> View:
    image = read_image(shot.path, background)
    height, width, _ = image.shape
    undistortion = undistortions.get((shot.lens, width, height))
    masked = shot.mask is not None or (undistortion is not None and not undistortion.sees.all())
    if masked:
        # The mask travels as a fourth channel.
        image = torch.cat([image, _mask(shot.mask, width, height)[..., None]], -1)
    if undistortion is not None:
        image = undistortion(image)
    if shot.downscale > 1:
        image = shrink(image, max(1, round(width / shot.downscale)), max(1, round(height / shot.downscale)))
    old, (height, width) = (width, height), image.shape[:2]
    K = shot.lens.intrinsics(width, height)
    if undistortion is not None:
        K = torch.diag(K.new_tensor([width / old[0], height / old[1], 1])) @ undistortion.K
    return View(
        name=shot.name,
        image=image[..., :3].contiguous(),
        viewmat=shot.viewmat.float(),
        K=K.float(),
        mask=image[..., 3] > 127 if masked else None,
        sparse=None if shot.points is None else _seen(shot.points, shot.viewmat, K, width, height),
        camera_id=shot.camera_id,
    )


def _mask(path: Path | None, width: int, height: int) -> Tensor:
    """[height, width] uint8, 255 where the picture counts."""
    if path is None:
        return torch.full((height, width), 255, dtype=torch.uint8)
    mask = read_mask(path)
    if _is_stretched(mask.shape[1], mask.shape[0], width, height):
        raise FileError(f"{path}: is {mask.shape[1]}x{mask.shape[0]}, but its picture {width}x{height}")
    if mask.shape != (height, width):
        mask = shrink(mask[..., None], width, height)[..., 0]
    return mask


def _is_stretched(width: int, height: int, full_width: int, full_height: int) -> bool:
    """Whether a picture has other proportions than it would have by making the full one smaller."""
    return abs(width * full_height / full_width - height) > max(1.0, STRETCH_MAX * height)


def _seen(points: Tensor, viewmat: Tensor, K: Tensor, width: int, height: int) -> Tensor:
    """Pixel x, y and depth of the points [P, 3] that lie before the camera and in its frame. [Q, 3] fp32"""
    camera = points.double() @ viewmat[:3, :3].T + viewmat[:3, 3]
    camera = camera[camera[:, 2] > 0]
    pixels = (camera @ K.T)[:, :2] / camera[:, 2:]
    inside = ((pixels >= 0) & (pixels < pixels.new_tensor([width, height]))).all(-1)
    return torch.cat([pixels, camera[:, 2:]], -1)[inside].float()


def _check_files(paths: Sequence[Path], what: str) -> None:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more {what} of {len(paths)}" if len(missing) > 1 else ""
        raise FileError(f"{missing[0]}: no such file{more}")
