"""Photographs with cameras by COLMAP: ``images/`` beside ``sparse/0/``, binary or text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..checks import ArgumentError, UnsupportedError, check_size
from .captures import Capture, View
from .extras import require
from .files import FileError
from .images import read_image, shrink

CAMERA_MODELS = ("PINHOLE", "SIMPLE_PINHOLE")
TEST_EVERY = 8
STRETCH_MAX = 0.01
"""How much a picture's proportions may differ from its camera's, by rounding when it was made smaller."""


def read_colmap(folder: str | os.PathLike[str], downscale: int = 1, test_every: int = TEST_EVERY) -> Capture:
    """Reads registered images, their cameras and the sparse points; the frame stays COLMAP's.

    Args:
        folder: Holds ``images/`` and ``sparse/0/``.
        downscale: Pictures are made so many times smaller by area averaging, and K with them, by the ratio of the sizes
            in whole pixels, axis by axis. Pictures that already are smaller than their camera says are taken as such.
        test_every: Of the images sorted by name, the first and every so many after it are held out.

    Raises:
        FileError: A file or folder is missing or cannot be read.
        UnsupportedError: A camera with lens distortion.
        ArgumentError: Fewer than two images or points, values that are not finite, or an argument without meaning.
        MissingExtraError: pycolmap or Pillow is not installed.
    """
    check_size("downscale", downscale)
    check_size("test_every", test_every)
    folder = Path(folder)
    for path in (folder, folder / "images", folder / "sparse" / "0"):
        if not path.is_dir():
            raise FileError(f"{path}: no such folder; a COLMAP scene is a folder with images/ and sparse/0/")
    model = _read_model(folder / "sparse" / "0")
    images = sorted((i for i in model.images.values() if i.has_pose), key=lambda image: image.name)
    if len(images) < 2:
        raise ArgumentError(f"{folder}: expected at least two images with a pose, found {len(images)}")
    for image in images:
        _check_camera(folder, model.cameras[image.camera_id])
    points = np.array([point.xyz for point in model.points3D.values()], np.float32).reshape(-1, 3)
    colors = np.array([point.color for point in model.points3D.values()], np.float32).reshape(-1, 3)
    if len(points) < 2 or not np.isfinite(points).all():
        raise ArgumentError(f"{folder}: expected at least two sparse points, all finite, found {len(points)}")
    views = [_view(folder / "images", image, model.cameras[image.camera_id], downscale) for image in images]
    return Capture(
        train=tuple(view for i, view in enumerate(views) if i % test_every),
        test=tuple(views[::test_every]),
        points=torch.from_numpy(points),
        colors=torch.from_numpy(colors) / 255,
    )


def _read_model(folder: Path) -> Any:
    require("pycolmap")
    import pycolmap

    try:
        return pycolmap.Reconstruction(str(folder))
    # pycolmap hands on whatever C++ throws at a file that is missing, cut short or no model at all.
    except (ValueError, LookupError, RuntimeError, MemoryError, OSError) as error:
        raise FileError(f"{folder}: not a COLMAP model that can be read ({str(error)[:120]})") from error


def _check_camera(folder: Path, camera: Any) -> None:
    if camera.model.name not in CAMERA_MODELS:
        raise UnsupportedError(
            f"{folder}: camera {camera.camera_id} is {camera.model.name}, only {' and '.join(CAMERA_MODELS)} are "
            "implemented; undistort the images first (colmap image_undistorter)"
        )


def _view(folder: Path, image: Any, camera: Any, downscale: int) -> View:
    picture = read_image(folder / image.name)
    height, width, _ = picture.shape
    if abs(width * camera.height / (height * camera.width) - 1) > STRETCH_MAX:
        raise FileError(
            f"{folder / image.name}: is {width}x{height}, but its camera {camera.width}x{camera.height}; "
            "use the images that COLMAP was given"
        )
    if downscale > 1:
        picture = shrink(picture, max(1, round(width / downscale)), max(1, round(height / downscale)))
        height, width, _ = picture.shape
    K = torch.from_numpy(camera.calibration_matrix())
    K[0] *= width / camera.width
    K[1] *= height / camera.height
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3] = torch.from_numpy(image.cam_from_world().matrix())
    return View(image.name, picture, viewmat.float(), K.float())
