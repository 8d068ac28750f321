"""COLMAP scenes: ``images/`` and a binary or text model in ``sparse/0/``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...arguments import check_size
from ...config import CameraModel
from ...errors import ArgumentError, FileError, UnsupportedError
from ...support.extras import require
from .lenses import Lens
from .photographs import OnProgress, Photograph, check_test_every, is_held_out, read_views
from .views import Capture, Color

PINHOLE_MODELS = {
    "SIMPLE_PINHOLE": (0, 0, 1, 2),
    "PINHOLE": (0, 1, 2, 3),
    "SIMPLE_RADIAL": (0, 0, 1, 2, 3),
    "RADIAL": (0, 0, 1, 2, 3, 4),
    "OPENCV": (0, 1, 2, 3, 4, 5, 6, 7),
}
"""COLMAP's camera model -> indices of fx, fy, cx, cy, k1, k2, p1, p2 in its parameters; missing ones are zero."""

FISHEYE_MODELS = {
    "SIMPLE_FISHEYE": (0, 0, 1, 2),
    "FISHEYE": (0, 1, 2, 3),
    "SIMPLE_RADIAL_FISHEYE": (0, 0, 1, 2, 3),
    "RADIAL_FISHEYE": (0, 0, 1, 2, 3, 4),
    "OPENCV_FISHEYE": (0, 1, 2, 3, 4, 5, 6, 7),
}
"""COLMAP's camera model -> indices of fx, fy, cx, cy, k1, k2, k3, k4 in its parameters; missing ones are zero."""

MODELS = PINHOLE_MODELS | FISHEYE_MODELS

DOWNSCALED_FOLDERS = (2, 4, 8)
"""Values of `downscale` for which ``images_<downscale>/`` is used if it exists."""

TEST_EVERY = 8
"""Every so many images, one is held out."""


def read_colmap(
    folder: str | os.PathLike[str],
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    *,
    background: Color | None = None,
    on_progress: OnProgress | None = None,
) -> Capture:
    """Reads the registered images of a COLMAP scene with their cameras and the sparse points, in COLMAP's world frame.

    Images of SIMPLE_RADIAL, RADIAL and OPENCV cameras are undistorted to pinhole images of the same size, those of
    fisheye cameras to equidistant fisheye images, up to 90 degrees from the optical axis. The mask of
    ``images/a.jpg`` is ``masks/a.png`` or ``masks/a.jpg.png``, white for valid pixels; it is optional. Each view has
    the sparse points that COLMAP observed in it.

    Args:
        folder: The scene, with ``images/`` and ``sparse/0/``.
        downscale: Factor to downscale images by, with area averaging. K is scaled per axis by the ratio of the sizes in
            pixels, which also applies to images that are smaller than their camera. For 2, 4 and 8, images of
            ``images_2/``, ``images_4/`` or ``images_8/`` are used as they are if that folder exists; they have the
            names of ``images/``, with any suffix.
        test_every: The first of every so many images, sorted by name, is held out; 0 for none.
        background: RGB in [0, 1] behind the scene and behind transparent images; None for black.
        on_progress: Called with the number of images read and their total.

    Raises:
        FileError: A file or folder is missing or cannot be read.
        UnsupportedError: An unsupported camera model.
        ArgumentError: An invalid argument, fewer than two images or points, or values that are not finite.
        MissingExtraError: pycolmap or Pillow is not installed.
    """
    check_size("downscale", downscale)
    check_test_every(test_every)
    folder = Path(folder)
    for path in (folder, folder / "images", folder / "sparse" / "0"):
        if not path.is_dir():
            raise FileError(f"{path}: no such folder; expected a COLMAP scene with images/ and sparse/0/")
    model = _read_model(folder / "sparse" / "0")
    images = sorted((i for i in model.images.values() if i.has_pose), key=lambda image: image.name)
    if len(images) < 2:
        raise ArgumentError(f"{folder}: expected at least two images with a pose, found {len(images)}")
    for image in images:
        _check_camera(folder, model.cameras[image.camera_id])
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    colors = np.array([point.color for point in model.points3D.values()], np.float32).reshape(-1, 3)
    if len(points) < 2:
        raise ArgumentError(f"{folder}: expected at least two sparse points, found {len(points)}")
    if not np.isfinite(points).all():
        raise ArgumentError(f"{folder}: sparse points: expected finite positions, found NaN or infinity")

    point_indices = {point_id: i for i, point_id in enumerate(model.points3D)}
    cameras = sorted({image.camera_id for image in images})
    downscaled = downscaled_folder(folder / "images", downscale)
    photographs = []
    for image in images:
        observed = [point_indices[point.point3D_id] for point in image.get_observation_points2D()]
        photographs.append(
            Photograph(
                name=image.name,
                path=find_by_stem(downscaled, image.name) if downscaled else folder / "images" / image.name,
                lens=_lens(model.cameras[image.camera_id]),
                viewmat=_viewmat(image),
                camera_id=cameras.index(image.camera_id),
                downscale=1 if downscaled else downscale,
                mask=_find_mask(folder / "masks", image.name),
                points=torch.from_numpy(points[observed]),
            )
        )
    background = background or (0.0, 0.0, 0.0)
    views = read_views(photographs, background, on_progress)
    return Capture(
        train=tuple(view for i, view in enumerate(views) if not is_held_out(i, test_every)),
        test=tuple(view for i, view in enumerate(views) if is_held_out(i, test_every)),
        points=torch.from_numpy(points).float(),
        colors=torch.from_numpy(colors) / 255,
        background=background,
    )


def downscaled_folder(folder: Path, downscale: int) -> Path | None:
    """Returns the folder of downscaled images next to `folder`, such as ``images_2/``, or None if there is none."""
    downscaled = folder.with_name(f"{folder.name}_{downscale}")
    return downscaled if downscale in DOWNSCALED_FOLDERS and downscaled.is_dir() else None


def find_by_stem(folder: Path, name: str) -> Path:
    """Returns the image of that name in a folder, or the one that differs only in its suffix."""
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
    # pycolmap passes on the C++ exceptions for missing, truncated and invalid files.
    except (ValueError, LookupError, RuntimeError, MemoryError, OSError) as error:
        raise FileError(f"{folder}: not a readable COLMAP model ({str(error)[:120]})") from error


def _check_camera(folder: Path, camera: Any) -> None:
    if camera.model.name not in MODELS:
        raise UnsupportedError(
            f"{folder}: camera {camera.camera_id}: expected {', '.join(MODELS)}, found {camera.model.name}; undistort "
            "the images first (colmap image_undistorter)"
        )


def _lens(camera: Any) -> Lens:
    name = camera.model.name
    values = [float(camera.params[i]) for i in MODELS[name]]
    fx, fy, cx, cy, k1, k2, k3, k4 = (values + [0.0] * 4)[:8]
    camera_model: CameraModel = "fisheye" if name in FISHEYE_MODELS else "pinhole"
    return Lens(camera.width, camera.height, fx, fy, cx, cy, (k1, k2, k3, k4), camera_model)


def _viewmat(image: Any) -> Tensor:
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3] = torch.from_numpy(image.cam_from_world().matrix())
    return viewmat


def _find_mask(folder: Path, name: str) -> Path | None:
    """Returns the mask of an image: its name with the suffix .png, replaced or appended."""
    path = folder / name
    return next(
        (mask for mask in (path.with_suffix(".png"), path.with_name(f"{path.name}.png")) if mask.is_file()), None
    )
