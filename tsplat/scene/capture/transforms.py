"""``transforms.json``, the format of nerfstudio, instant-ngp and the synthetic NeRF scenes.

Camera-to-world matrices in OpenGL axes: x right, y up, z backward (nerfstudio's data conventions; Mildenhall et al.,
"NeRF", 2020). Intrinsics follow OpenCV. They are given per frame or for the whole file; those of the frame take
precedence.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...arguments import check_size
from ...config import CameraModel
from ...errors import ArgumentError, FileError, UnsupportedError
from ..cameras import centers
from ..formats.point_clouds import read_point_cloud
from ..images import read_image_info
from .colmap import TEST_EVERY, downscaled_folder, find_by_stem
from .lenses import Lens
from .photographs import OnProgress, Photograph, check_test_every, is_held_out, read_views
from .views import Capture, Color

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".webp")
"""Suffixes tried, in this order, if ``file_path`` has none."""

CAMERA_MODELS = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE")

DISTORTION_KEYS = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")

BLENDER_HALF_SIZE = 1.3
"""The synthetic NeRF scenes lie in the box [-1.3, 1.3]^3."""

ROTATION_TOLERANCE = 1e-3
"""Maximum deviation of R^T R from the identity."""


def read_transforms(
    path: str | os.PathLike[str],
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    background: Color | None = None,
    *,
    n_random: int = 20_000,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Capture:
    """Reads images, cameras and points, in the world frame of the file.

    Training views come from ``transforms_train.json`` if it exists, and held-out views from ``transforms_test.json`` or
    else ``transforms_val.json``; otherwise ``transforms.json`` has both. Initial points come from ``ply_file_path``. If
    it is missing, they are drawn at random and gray: uniformly in [-1.3, 1.3]^3 for the synthetic NeRF scenes,
    otherwise in a box around the cameras and what they look at. Images with distortion (``k1``, ``k2``, ``p1``, ``p2``)
    are undistorted. Those with ``camera_model`` OPENCV_FISHEYE or ``is_fisheye`` (``k1`` to ``k4``) become equidistant
    fisheye images, up to 90 degrees from the optical axis. ``mask_path`` is white for valid pixels.

    Args:
        path: A folder or the JSON file. Paths of images are relative to it.
        downscale: See :func:`read_colmap`. Downscaled images are looked up in ``images_2/`` and so on, if the images
            are in ``images/``.
        test_every: If the files do not specify held-out views, the first of every so many images, sorted by name, is
            held out.
        background: RGB in [0, 1] behind the scene and behind transparent images; None for white if any image is
            transparent, else black.
        n_random: Number of points to draw if the file has none.
        seed: Random seed of these points.
        on_progress: Called with the number of images read and their total.

    Raises:
        FileError: A file is missing or cannot be read, or a value in it is missing or invalid.
        UnsupportedError: An unsupported camera model, or a rolling shutter.
        ArgumentError: An invalid argument, or fewer than two images.
        MissingExtraError: Pillow is not installed, or an image is distorted and pycolmap is not installed.
    """
    for name, value in (("downscale", downscale), ("n_random", n_random)):
        check_size(name, value)
    check_test_every(test_every)
    path = Path(path)
    files, has_test_file = _find_files(path)
    lenses: dict[Lens, int] = {}
    contents = [_read_json(file) for file in files]
    photographs = [_list_photographs(file, content, downscale, lenses) for file, content in zip(files, contents)]
    train, test = photographs if has_test_file else _split(photographs[0], contents[0], test_every)
    if len(train) + len(test) < 2 or not train:
        raise ArgumentError(
            f"{path}: expected at least two images, some of them for training, found {len(train)} training images and "
            f"{len(test)} held-out images"
        )
    if background is None:
        paths = (photograph.path for photograph in (*train, *test))
        transparent = any(read_image_info(image).transparent for image in paths if image.is_file())
        background = (1.0, 1.0, 1.0) if transparent else (0.0, 0.0, 0.0)
    views = read_views([*train, *test], background, on_progress)

    ply = contents[0].get("ply_file_path")
    if ply is not None:
        points, colors = read_point_cloud(_resolve(files[0], ply, "ply_file_path"))
    else:
        is_blender = has_test_file and "fl_x" not in contents[0]
        half = BLENDER_HALF_SIZE
        low, high = (-half, half) if is_blender else _bounds([photograph.viewmat for photograph in train])
        generator = torch.Generator().manual_seed(seed)
        points = torch.rand(n_random, 3, generator=generator) * (high - low) + low
        colors = torch.full_like(points, 0.5)
    return Capture(
        train=tuple(views[: len(train)]),
        test=tuple(views[len(train) :]),
        points=points,
        colors=colors,
        background=background,
    )


def has_transforms(folder: Path) -> bool:
    """Returns whether a folder has a file that :func:`read_transforms` can read."""
    return any((folder / name).is_file() for name in ("transforms_train.json", "transforms.json"))


def _find_files(path: Path) -> tuple[list[Path], bool]:
    """Returns the files to read, and whether the second one has the held-out views."""
    if not path.is_dir():
        return [path], False
    train = path / "transforms_train.json"
    if not train.is_file():
        if not (path / "transforms.json").is_file():
            raise FileError(f"{path}: expected transforms.json or transforms_train.json, found neither")
        return [path / "transforms.json"], False
    test_files = [path / f"transforms_{name}.json" for name in ("test", "val")]
    found = [file for file in test_files if file.is_file()][:1]
    return [train, *found], bool(found)


def _split(
    photographs: Sequence[Photograph], content: Mapping[str, Any], test_every: int
) -> tuple[list[Photograph], list[Photograph]]:
    """Splits photographs, sorted by name, into training and held-out ones."""
    photographs = sorted(photographs, key=lambda photograph: photograph.name)
    listed = content.get("test_filenames") or content.get("val_filenames")
    if isinstance(listed, list):
        names = {_normalize_name(name) for name in listed if isinstance(name, str)}
        held_out = [photograph.name in names for photograph in photographs]
    else:
        held_out = [is_held_out(i, test_every) for i in range(len(photographs))]
    train = [photograph for photograph, is_test in zip(photographs, held_out) if not is_test]
    return train, [photograph for photograph, is_test in zip(photographs, held_out) if is_test]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not readable as JSON ({error})") from error
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise FileError(f"{path}: not a transforms.json; expected an object with a nonempty list of frames")
    return dict(content)


def _list_photographs(
    path: Path, content: Mapping[str, Any], downscale: int, lenses: dict[Lens, int]
) -> list[Photograph]:
    """Returns the photographs of a file's frames. Adds new lenses to `lenses`, which maps them to camera ids."""
    photographs = []
    for i, frame in enumerate(content["frames"]):
        where = f"{path}: frame {i}"
        values = {**content, **frame}
        full = _find_image(path, frame.get("file_path"), where)
        downscaled = downscaled_folder(full.parent, downscale)
        lens = _lens(values, full, where)
        mask = frame.get("mask_path")
        photographs.append(
            Photograph(
                name=_normalize_name(os.path.relpath(full, path.parent)),
                path=find_by_stem(downscaled, full.name) if downscaled else full,
                lens=lens,
                viewmat=_viewmat(frame.get("transform_matrix"), where),
                camera_id=lenses.setdefault(lens, len(lenses)),
                downscale=1 if downscaled else downscale,
                mask=None if mask is None else _resolve(path, mask, f"frame {i}: mask_path"),
            )
        )
    return photographs


def _normalize_name(name: str) -> str:
    """Returns a relative path in its shortest form with forward slashes."""
    return Path(os.path.normpath(name.replace("\\", "/"))).as_posix()


def _resolve(path: Path, name: object, what: str) -> Path:
    """Returns a path that is given relative to the file `path`."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise FileError(f"{path}: {what}: expected a file name, found {name!r}")
    return path.parent / name.replace("\\", "/")


def _find_image(path: Path, name: object, where: str) -> Path:
    """Returns the path of a frame's image with its suffix; if it does not exist, the path in the file."""
    image = _resolve(path, name, f"{where.removeprefix(f'{path}: ')}: file_path")
    if image.is_file():
        return image
    return next((p for s in SUFFIXES if (p := image.with_name(image.name + s)).is_file()), image)


def _lens(values: Mapping[str, Any], image: Path, where: str) -> Lens:
    """Returns the intrinsics of a frame."""
    model = values.get("camera_model", "OPENCV")
    if model not in CAMERA_MODELS:
        raise UnsupportedError(f"{where}: camera_model: expected one of {', '.join(CAMERA_MODELS)}, found {model}")
    camera_model: CameraModel = "pinhole"
    if model == "OPENCV_FISHEYE" or values.get("is_fisheye"):
        camera_model = "fisheye"
    keys = ("k1", "k2", "p1", "p2") if camera_model == "pinhole" else ("k1", "k2", "k3", "k4")
    k1, k2, k3, k4 = (_number(values, key, where, 0.0) for key in keys)
    unknown = [key for key in DISTORTION_KEYS if key not in keys and _number(values, key, where, 0.0)]
    if unknown:
        raise UnsupportedError(
            f"{where}: {unknown[0]} is not implemented for {camera_model} cameras; only the distortion "
            f"{', '.join(keys)} is"
        )
    shutter = values.get("rolling_shutter")
    if isinstance(shutter, list) and any(shutter):
        raise UnsupportedError(f"{where}: rolling_shutter: not implemented; expected zeros, found {shutter}")
    if "w" in values and "h" in values:
        width, height = (round(_number(values, key, where)) for key in ("w", "h"))
    else:
        info = read_image_info(image)
        width, height = info.width, info.height
    if width < 1 or height < 1:
        raise FileError(f"{where}: w and h: expected a size in pixels, found {width}x{height}")
    if "fl_x" in values:
        fx = _number(values, "fl_x", where)
        fy = _number(values, "fl_y", where, fx)
    elif "camera_angle_x" in values and camera_model == "pinhole":
        fx = _focal(values, "camera_angle_x", width, where)
        fy = _focal(values, "camera_angle_y", height, where) if "camera_angle_y" in values else fx
    else:
        expected = "fl_x" if camera_model == "fisheye" else "fl_x or camera_angle_x"
        raise FileError(f"{where}: no focal length; expected {expected} in the frame or the file")
    if not (fx > 0 and fy > 0):
        raise FileError(f"{where}: fl_x and fl_y: expected positive focal lengths, found {fx} and {fy}")
    cx, cy = _number(values, "cx", where, width / 2), _number(values, "cy", where, height / 2)
    return Lens(width, height, fx, fy, cx, cy, (k1, k2, k3, k4), camera_model)


def _focal(values: Mapping[str, Any], key: str, size: int, where: str) -> float:
    """Returns the focal length in pixels, given the key of the field of view."""
    angle = _number(values, key, where)
    if not 0 < angle < math.pi:
        raise FileError(f"{where}: {key}: expected radians between 0 and pi, found {angle}")
    return 0.5 * size / math.tan(0.5 * angle)


def _number(values: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise FileError(f"{where}: {key}: expected a finite number, found {value!r}")
    return float(value)


def _viewmat(matrix: object, where: str) -> Tensor:
    """Converts a camera-to-world matrix in OpenGL axes to world-to-camera in OpenCV axes. [4, 4] fp64"""
    try:
        pose = torch.tensor(matrix, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pose = torch.empty(0)
    if pose.shape not in ((4, 4), (3, 4)) or not pose.isfinite().all():
        raise FileError(f"{where}: transform_matrix: expected 4x4 finite numbers, found {str(matrix)[:80]}")
    rotation = pose[:3, :3]
    skew = (rotation.T @ rotation - torch.eye(3, dtype=torch.float64)).abs().max()
    if skew > ROTATION_TOLERANCE or torch.linalg.det(rotation) < 0:
        raise FileError(f"{where}: transform_matrix: expected a rotation as its 3x3 part; remove scale and reflection")
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3, :3] = torch.diag(pose.new_tensor([1.0, -1.0, -1.0])) @ rotation.T
    viewmat[:3, 3] = -viewmat[:3, :3] @ pose[:3, 3]
    return viewmat


def _bounds(viewmats: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the bounding box of the camera centers and of the points ahead of them at the diameter of the cameras.

    Returns:
        The lowest and highest corner, [3] each.
    """
    poses = torch.stack(list(viewmats))
    positions = centers(poses)
    diameter = (positions - positions.mean(0)).norm(dim=-1).max().clamp_min(1e-3) * 2
    corners = torch.cat([positions, positions + diameter * poses[:, 2, :3]]).float()
    return corners.amin(0), corners.amax(0)
