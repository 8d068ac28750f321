"""Photographs with cameras by COLMAP: ``images/`` beside ``sparse/0/``, binary or text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...arguments import check_size
from ...errors import ArgumentError, FileError, UnsupportedError
from ...support.extras import require
from .captures import Capture, Color
from .lenses import Lens
from .shots import OnProgress, Shot, read_views

CAMERA_MODELS = {
    "SIMPLE_PINHOLE": (0, 0, 1, 2),
    "PINHOLE": (0, 1, 2, 3),
    "SIMPLE_RADIAL": (0, 0, 1, 2, 3),
    "RADIAL": (0, 0, 1, 2, 3, 4),
    "OPENCV": (0, 1, 2, 3, 4, 5, 6, 7),
}
"""Where in a model's parameters fx, fy, cx, cy, k1, k2, p1, p2 are; those left out are zero."""

SHRUNK_FOLDERS = (2, 4, 8)
TEST_EVERY = 8


def read_colmap(
    folder: str | os.PathLike[str],
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    *,
    background: Color | None = None,
    on_progress: OnProgress | None = None,
) -> Capture:
    """Reads registered images, their cameras and the sparse points; the frame stays COLMAP's.

    Pictures by SIMPLE_RADIAL, RADIAL and OPENCV cameras are undistorted to pinhole pictures of the same size. Masks,
    white where a picture counts, are ``masks/a.png`` or ``masks/a.jpg.png`` for ``images/a.jpg``; pictures without one
    count everywhere. Each view knows the sparse points that COLMAP found in it.

    Args:
        folder: Holds ``images/`` and ``sparse/0/``.
        downscale: Pictures are made so many times smaller by area averaging, and K with them, by the ratio of the sizes
            in whole pixels, axis by axis. Pictures that already are smaller than their camera says are taken as such.
            For 2, 4 and 8 the pictures of ``images_2/``, ``images_4/`` or ``images_8/`` are taken as they are where
            there is such a folder; they are named as in ``images/`` but for the suffix.
        test_every: Of the images sorted by name, the first and every so many after it are held out.
        background: RGB in [0, 1] behind pictures that are transparent, and behind the scene; black where None.
        on_progress: Told how many of how many pictures have been read.

    Raises:
        FileError: A file or folder is missing or cannot be read.
        UnsupportedError: A fisheye camera, or another model that is not among the above.
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
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    colors = np.array([point.color for point in model.points3D.values()], np.float32).reshape(-1, 3)
    if len(points) < 2 or not np.isfinite(points).all():
        raise ArgumentError(f"{folder}: expected at least two sparse points, all finite, found {len(points)}")

    rows = {identity: i for i, identity in enumerate(model.points3D)}
    cameras = sorted({image.camera_id for image in images})
    shrunk = shrunk_folder(folder / "images", downscale)
    shots = []
    for image in images:
        seen = [rows[point.point3D_id] for point in image.get_observation_points2D()]
        shots.append(
            Shot(
                name=image.name,
                path=same_name(shrunk, image.name) if shrunk else folder / "images" / image.name,
                lens=_lens(model.cameras[image.camera_id]),
                viewmat=_viewmat(image),
                camera_id=cameras.index(image.camera_id),
                downscale=1 if shrunk else downscale,
                mask=_mask_of(folder / "masks", image.name),
                points=torch.from_numpy(points[seen]),
            )
        )
    background = background or (0.0, 0.0, 0.0)
    views = read_views(shots, background, on_progress)
    return Capture(
        train=tuple(view for i, view in enumerate(views) if i % test_every),
        test=tuple(views[::test_every]),
        points=torch.from_numpy(points).float(),
        colors=torch.from_numpy(colors) / 255,
        background=background,
    )


def shrunk_folder(folder: Path, downscale: int) -> Path | None:
    """``images_2/`` beside ``images/``, for 2, 4 and 8 and where it is there."""
    shrunk = folder.with_name(f"{folder.name}_{downscale}")
    return shrunk if downscale in SHRUNK_FOLDERS and shrunk.is_dir() else None


def same_name(folder: Path, name: str) -> Path:
    """A picture in a folder by its name, or with another suffix where that is not there."""
    path = folder / name
    if path.is_file():
        return path
    others = [other for other in sorted(path.parent.glob("*")) if other.stem == path.stem]
    return others[0] if others else path


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
            f"{folder}: camera {camera.camera_id} is {camera.model.name}, only {', '.join(CAMERA_MODELS)} are "
            "implemented; undistort the images first (colmap image_undistorter)"
        )


def _lens(camera: Any) -> Lens:
    values = [float(camera.params[i]) for i in CAMERA_MODELS[camera.model.name]]
    fx, fy, cx, cy, k1, k2, p1, p2 = (values + [0.0] * 4)[:8]
    return Lens(camera.width, camera.height, fx, fy, cx, cy, (k1, k2, p1, p2))


def _viewmat(image: Any) -> Tensor:
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3] = torch.from_numpy(image.cam_from_world().matrix())
    return viewmat


def _mask_of(folder: Path, name: str) -> Path | None:
    """The mask of a picture, by its name with .png in place of its suffix or after it."""
    path = folder / name
    return next(
        (mask for mask in (path.with_suffix(".png"), path.with_name(f"{path.name}.png")) if mask.is_file()), None
    )
