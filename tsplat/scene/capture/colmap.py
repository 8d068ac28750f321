"""Reads COLMAP scenes: ``images/`` and a model, usually in ``sparse/0/`` or ``sparse/``."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ...config import CameraModel
from ...errors import ArgumentError, FileError
from ...scalars import describe
from ...support.reading import check_possible, is_possible
from ..formats.point_clouds import CLOUD_SUFFIXES
from ..option_types import CameraKind, Color
from ..rotation import rotation_matrix, similarity
from .colmap_model import ColmapImage, ColmapModel, count_images, has_cameras, has_model, read_model
from .initial_points import N_RANDOM, InitialPoints, bounds, random_points, read_points
from .lens_conversions import COLMAP_MODELS, colmap_lens
from .lenses import Lens, panorama
from .photographs import TEST_EVERY, OnProgress, Photograph, find_usable
from .placement import FrameChoice, ReadOptions, read_posed
from .views import Capture

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
"""Camera models with an equivalent in OpenCV; :data:`COLMAP_MODELS` are the others."""

PANORAMA: Final = "EQUIRECTANGULAR"
"""COLMAP's camera model of panorama images; its parameters are width and height."""

DOWNSCALED_FOLDERS = (2, 4, 8)
"""Values of `downscale` for which ``images_<downscale>/`` is used if it exists."""


def read_colmap(
    folder: str | os.PathLike[str],
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    *,
    background: Color | None = None,
    strict: bool = False,
    on_progress: OnProgress | None = None,
    cameras: CameraKind = "undistorted",
    max_size: int = 0,
    n_random: int = N_RANDOM,
    seed: int = 0,
    frame: FrameChoice = "model",
    keep_far: bool = False,
) -> Capture:
    """Reads the registered images of a COLMAP scene with their cameras and sparse points, in COLMAP's world frame.

    Distorted images are undistorted to pinhole images of the same size. Fisheye images become equidistant fisheye
    images, up to 90 degrees from the optical axis, and so do images of other COLMAP models if a pinhole image would
    show less than three quarters of them. Panoramas (EQUIRECTANGULAR) are not changed.

    If the model has fewer than two points, initial points are read from ``points3D.ply``, ``.las``, ``.laz`` or
    ``.e57`` beside the model or in the scene; otherwise they are drawn at random in a box around the cameras and their
    targets, with a note.

    The mask of ``images/a.jpg`` is ``masks/a.png`` or ``masks/a.jpg.png``, white for valid pixels; it is optional.
    Images without valid pixels are skipped with a note. Each view has the sparse points that COLMAP observed in it.
    Like COLMAP, this ignores the EXIF orientation of images, unless only the rotated image has the size of its camera;
    see :func:`read_views`.

    Args:
        folder: The scene, with ``images/`` and a binary or text model in ``sparse/0/`` or ``sparse/``. Other numbers,
            ``colmap/sparse/0/``, ``colmap/sparse/`` and the scene itself are tried next. A note names models that are
            not read. Images may also be in the scene itself, or beside the files of the model.
        downscale: Factor by which images are downscaled, with area averaging. K is scaled per axis by the ratio of the
            sizes in pixels, also for images that are smaller than their camera. For 2, 4 and 8, images in
            ``images_2/``, ``images_4/`` or ``images_8/`` are used without resampling if that folder exists; they have
            the names of ``images/``, with any suffix.
        test_every: Hold out every N-th image, sorted by name, starting with the first; 0 for none.
        background: RGB in [0, 1] behind the scene and behind transparent images. With None, the background is black,
            and pixels with an alpha below one half are masked out.
        strict: Whether to raise an error if any image is missing. Otherwise, missing images are skipped and counted in
            ``Capture.notes``.
        on_progress: Called with the number of images read and their total.
        cameras: ``"native"`` to keep the original images with distorted cameras instead of undistorting them, if the
            rasterizer supports their lens. A note says how images with lenses that are not OpenCV's are treated.
        max_size: If `downscale` is 1, images whose longer side exceeds this number of pixels are downscaled to it, with
            a note in ``Capture.notes``; 0 for no limit.
        n_random: Number of points to draw if the scene has none.
        seed: Random seed of these points.
        frame: ``"model"`` for COLMAP's world frame; if the scene is too far from its origin for single precision, it is
            moved in double precision, which ``Capture.world`` and a note describe. ``"local"`` for the frame in which a
            run trains; ``"normalized"`` for the frame of :func:`normalize_capture`; or the ``Capture.frame`` of an
            earlier call.
        keep_far: Whether to keep photographs whose cameras are far from the others and show no points or show them in a
            small spot only, which is typical of wrong poses. Otherwise, these photographs are left out before views are
            held out, and are listed in ``Capture.left_out`` and a note.

    Raises:
        FileError: A file or folder is missing, damaged or cannot be read, fewer than two images are left, or no
            training image has a valid pixel.
        ArgumentError: An invalid argument, or fewer than two images.
        MissingExtraError: Pillow is not installed, or an image is distorted and pycolmap is not installed.
    """
    options = ReadOptions(
        downscale, test_every, background, n_random, seed, strict, on_progress, cameras, max_size, frame, keep_far
    )
    return read_posed_colmap(Path(folder), options)


def read_posed_colmap(folder: Path, options: ReadOptions) -> Capture:
    """Implements :func:`read_colmap`."""
    check_possible(folder)
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; expected a COLMAP scene with images/ and sparse/0/ or sparse/")
    model_folder = find_model(folder) or folder / "sparse" / "0"
    model = read_model(model_folder)
    images = sorted(model.images, key=lambda image: image.name)
    if len(images) < 2:
        raise ArgumentError(f"{folder}: expected at least two images with a pose, found {len(images)}")
    lenses = {i: _lens(model, i) for i in sorted({image.camera_id for image in images})}
    image_folder = _find_images(folder, model_folder, [image.name for image in images])
    # If the images are in the scene folder itself, the folders beside it belong to other scenes.
    downscaled = downscaled_folder(image_folder, options.downscale) if image_folder.name == "images" else None
    paths = [find_by_stem(downscaled, image.name) if downscaled else image_folder / image.name for image in images]
    for image, path in zip(images, paths):
        if not is_possible(path):
            name = describe(image.name)
            raise FileError(f"{model.cameras_file.with_stem('images')}: expected names of files, found {name}")
    kept, notes = find_usable(paths, options.strict)
    observed, observation_notes = _observed_points(model, images)
    masks = [find_mask(folder / "masks", image.name) for image in images]
    camera_ids = {camera_id: i for i, camera_id in enumerate(lenses)}
    photographs = [
        Photograph(
            name=images[i].name,
            path=paths[i],
            lens=lenses[images[i].camera_id],
            viewmat=similarity(rotation_matrix(images[i].quat), images[i].translation),
            camera_id=camera_ids[images[i].camera_id],
            is_downscaled=downscaled is not None,
            mask=masks[i],
            points=observed[i][0],
            point_ids=observed[i][1],
        )
        for i in kept
    ]
    if (folder / "masks").is_dir() and None in masks:
        n_masks = len(masks) - masks.count(None)
        notes.append(
            f"{folder / 'masks'}: {n_masks} of {len(masks):,} images have a mask; that of a.jpg is a.png or a.jpg.png"
        )
    initial = InitialPoints(torch.from_numpy(model.points), torch.from_numpy(model.colors).float() / 255, [])
    if len(model.points) < 2:
        names = [f"points3D{suffix}" for suffix in CLOUD_SUFFIXES]
        file = next((f / name for f in (model_folder, folder) for name in names if (f / name).is_file()), None)
        reason = f"{model_folder}: its model has {len(model.points):,} points"
        if file:
            initial = read_points(file)
            initial.notes.append(f"{reason}; training starts from the {file.name} of {file.parent}")
        else:
            initial = random_points(bounds, options.n_random, options.seed, reason)
    notes = [*_note_others(model_folder, model), *model.notes, *notes, *observation_notes]
    return read_posed(photographs, initial, model.cameras_file, options, notes)


def find_model(folder: Path) -> Path | None:
    """Returns the folder of a scene's COLMAP model, or None if it has none.

    It is ``sparse/0/`` or ``sparse/``; if neither contains a model, the first of ``sparse/1/`` and so on,
    ``colmap/sparse/0/``, ``colmap/sparse/``, or the scene itself, if it has ``images/`` or cameras and images.
    """
    sparse, nested = folder / "sparse", folder / "colmap" / "sparse"
    candidates = [sparse / "0", sparse, *_numbered(sparse), nested / "0", nested]
    if (folder / "images").is_dir() or has_cameras(folder):
        candidates.append(folder)
    return next((candidate for candidate in candidates if has_model(candidate)), None)


def _find_images(folder: Path, model_folder: Path, names: Sequence[str]) -> Path:
    """Returns the folder that image names are relative to: ``images/``, the scene, or the folder of the model."""
    candidates = [path for path in (folder / "images", folder, model_folder) if path.is_dir()]
    for path in candidates:
        if any(os.path.isfile(path / name) for name in names):
            return path
    if folder / "images" in candidates:
        return folder / "images"
    raise FileError(
        f"{folder / 'images'}: no such folder, and none of the {len(names):,} images of {model_folder} is in {folder}; "
        "expected a COLMAP scene with images/ and sparse/0/ or sparse/"
    )


def _numbered(folder: Path) -> list[Path]:
    """Returns the models ``0/``, ``1/`` and so on in a folder, into which COLMAP writes disconnected models."""
    numbered = [path for path in folder.glob("*") if path.name.isdecimal() and has_model(path)]
    return sorted(numbered, key=lambda path: int(path.name))


def _note_others(path: Path, model: ColmapModel) -> list[str]:
    """Returns a note about other models beside the one in `path`."""
    others = [other for other in _numbered(path.parent if path.name.isdecimal() else path) if other != path]
    if not others:
        return []
    counts = [count_images(other) for other in others]
    largest = others[counts.index(max(counts))]
    return [
        f"read {path}, a model of {len(model.images):,} images; of {len(others)} other models beside it, the largest "
        f"is {largest.name}, of {max(counts):,} images"
    ]


def downscaled_folder(folder: Path, downscale: int) -> Path | None:
    """Returns the folder of downscaled images next to `folder`, such as ``images_2/``, or None if there is none."""
    if downscale not in DOWNSCALED_FOLDERS or not folder.name:
        return None
    downscaled = folder.with_name(f"{folder.name}_{downscale}")
    return downscaled if os.path.isdir(downscaled) else None


def find_by_stem(folder: Path, name: str) -> Path:
    """Returns the image with the given name in a folder, or an image whose name differs only in its suffix."""
    path = folder / name
    if os.path.isfile(path):
        return path
    others = [other for other in sorted(path.parent.glob("*")) if other.stem == path.stem]
    return others[0] if others else path


def _lens(model: ColmapModel, camera_id: int) -> Lens:
    """Returns the intrinsics of a camera after checking that they are plausible."""
    camera, where = model.cameras[camera_id], f"{model.cameras_file}: camera {camera_id}"
    name = camera.model
    if not all(math.isfinite(value) for value in camera.params):
        raise FileError(f"{where}: expected finite parameters, found {camera.params}")
    if name == PANORAMA:
        # The parameters are the size of a full panorama.
        lens = dataclasses.replace(panorama(*camera.params), width=camera.width, height=camera.height)
    elif name in COLMAP_MODELS:
        lens = colmap_lens(name, camera.width, camera.height, camera.params)
    else:
        values = [camera.params[i] for i in MODELS[name]]
        fx, fy, cx, cy, k1, k2, k3, k4 = (values + [0.0] * 4)[:8]
        projection: CameraModel = "fisheye" if name in FISHEYE_MODELS else "pinhole"
        lens = Lens(camera.width, camera.height, fx, fy, cx, cy, (k1, k2, k3, k4), projection)
    return lens.checked(where, "the file may be damaged")


def _observed_points(
    model: ColmapModel, images: Sequence[ColmapImage]
) -> tuple[list[tuple[Tensor, Tensor]], list[str]]:
    """Returns the points [O, 3] that each image observes and their ids [O], and a note if points are missing."""
    if not len(model.points):
        none = torch.empty(0, 3, dtype=torch.float64, device="cpu"), torch.empty(0, dtype=torch.int64, device="cpu")
        return [none for _ in images], []
    order = np.argsort(model.point_ids)
    ids, points = model.point_ids[order], model.points[order]
    observed, n_missing = [], 0
    for image in images:
        rows = np.searchsorted(ids, image.point_ids).clip(max=len(ids) - 1)
        is_known = ids[rows] == image.point_ids
        n_missing += int((~is_known).sum())
        observed.append((torch.from_numpy(points[rows[is_known]]), torch.from_numpy(ids[rows[is_known]])))
    total = sum(len(image.point_ids) for image in images)
    note = f"{model.cameras_file.parent}: {n_missing} of {total} observations are of points that it lacks"
    return observed, [note] if n_missing else []


def find_mask(folder: Path, name: str) -> Path | None:
    """Returns the mask of an image. Its name is the image's name with .png as a replaced or appended suffix."""
    path = folder / name
    return next(filter(os.path.isfile, (path.with_suffix(".png"), path.with_name(f"{path.name}.png"))), None)
