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
from .colmap_model import COORDINATE_MAX
from .lenses import Lens
from .photographs import OnProgress, Photograph, check_test_every, find_usable, is_held_out, read_views
from .views import Capture, Color

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".webp")
"""Suffixes tried, in this order, if ``file_path`` has none."""

CAMERA_MODELS = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE")

DISTORTION_KEYS = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")

BLENDER_HALF_SIZE = 1.3
"""The synthetic NeRF scenes lie in the box [-1.3, 1.3]^3."""

ROTATION_TOLERANCE = 1e-3
"""Maximum deviation of R^T R from the identity."""

FILE_BYTES_MAX = 64 << 20
VALUES_MAX = 3_000_000
"""Maximum number of values in a file, which limits the memory that reading it takes."""


def read_transforms(
    path: str | os.PathLike[str],
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    background: Color | None = None,
    *,
    n_random: int = 20_000,
    seed: int = 0,
    strict: bool = False,
    on_progress: OnProgress | None = None,
) -> Capture:
    """Reads images, cameras and points, in the world frame of the file.

    Training views come from ``transforms_train.json`` if it exists, and held-out views from ``transforms_test.json`` or
    else ``transforms_val.json``; otherwise ``transforms.json`` has both. Initial points come from ``ply_file_path``. If
    it is missing, they are drawn at random and gray: uniformly in [-1.3, 1.3]^3 for the synthetic NeRF scenes,
    otherwise in a box around the cameras and what they look at. Images with distortion (``k1``, ``k2``, ``p1``, ``p2``)
    are undistorted. Those with ``camera_model`` OPENCV_FISHEYE or ``is_fisheye`` (``k1`` to ``k4``) become equidistant
    fisheye images, up to 90 degrees from the optical axis. ``mask_path`` is white for valid pixels. The EXIF
    orientation of images is ignored, unless only the rotated image has the size of its camera; see :func:`read_views`.

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
        strict: Whether to raise if any image is missing. Otherwise missing ones are skipped, as by instant-ngp and
            nerfstudio, and counted in ``Capture.notes``.
        on_progress: Called with the number of images read and their total.

    Raises:
        FileError: A file is missing or cannot be read, a value in it is missing or invalid, or fewer than two images
            are left.
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
    notes = _skip_missing(files, contents, downscale, strict)
    photographs = [_list_photographs(file, content, downscale, lenses) for file, content in zip(files, contents)]
    train, test = photographs if has_test_file else _split(photographs[0], contents[0], test_every)
    if len(train) + len(test) < 2 or not train:
        raise ArgumentError(
            f"{path}: expected at least two images, some of them for training, found {len(train)} training images and "
            f"{len(test)} held-out images" + "".join(f"; {note}" for note in notes)
        )
    if background is None:
        paths = (photograph.path for photograph in (*train, *test))
        transparent = any(read_image_info(image).transparent for image in paths)
        background = (1.0, 1.0, 1.0) if transparent else (0.0, 0.0, 0.0)
    views = read_views([*train, *test], background, on_progress)

    ply = contents[0].get("ply_file_path")
    if ply is not None:
        points, colors = _read_points(_resolve(files[0], ply, "ply_file_path"))
    else:
        is_blender = has_test_file and "fl_x" not in contents[0]
        half = BLENDER_HALF_SIZE
        low, high = (-half, half) if is_blender else _bounds([photograph.viewmat for photograph in train])
        generator = torch.Generator().manual_seed(seed)
        points = torch.rand(n_random, 3, generator=generator) * (high - low) + low
        colors = torch.full_like(points, 0.5)
        notes.append(f"{files[0]}: no ply_file_path; training starts from {n_random} random points")
    return Capture(
        train=tuple(views[: len(train)]),
        test=tuple(views[len(train) :]),
        points=points,
        colors=colors,
        background=background,
        notes=tuple(notes),
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
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        n_values = sum(text.count(symbol) for symbol in (b",", b"[", b"{"))
        if len(text) > FILE_BYTES_MAX or n_values > VALUES_MAX:
            raise FileError(
                f"{path}: expected at most {FILE_BYTES_MAX >> 20} MiB and {VALUES_MAX} values, found more than "
                f"{min(len(text), FILE_BYTES_MAX) >> 20} MiB with {n_values} values"
            )
        # A byte order mark is ignored.
        content = json.loads(text.decode("utf-8-sig"))
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not readable as JSON ({error})") from error
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise FileError(f"{path}: not a transforms.json; expected an object with a nonempty list of frames")
    return dict(content)


def _skip_missing(files: Sequence[Path], contents: list[dict[str, Any]], downscale: int, strict: bool) -> list[str]:
    """Removes the frames of missing images from `contents`, and returns notes on them; see :func:`find_usable`."""
    frames = [(i, frame) for i, content in enumerate(contents) for frame in content["frames"]]
    counts = [len(content["frames"]) for content in contents]
    numbers = [number for count in counts for number in range(count)]
    paths = [
        _downscaled(_find_image(files[i], frame.get("file_path"), f"{files[i]}: frame {number}"), downscale)[0]
        for (i, frame), number in zip(frames, numbers)
    ]
    kept, notes = find_usable(paths, strict or len(paths) < 2)
    for i, content in enumerate(contents):
        # Frames keep their numbers, which messages mention.
        content["frames"] = [(numbers[k], frames[k][1]) for k in kept if frames[k][0] == i]
    return notes


def _downscaled(full: Path, downscale: int) -> tuple[Path, bool]:
    """Returns the image to read instead of a full one, and whether it is in a folder of downscaled images."""
    folder = downscaled_folder(full.parent, downscale)
    return (full, False) if folder is None else (find_by_stem(folder, full.name), True)


def _read_points(path: Path) -> tuple[Tensor, Tensor]:
    """Reads the points of a PLY; colors that are not finite become gray."""
    points, colors = read_point_cloud(path)
    far = (points.abs() > COORDINATE_MAX).any(-1)
    if far.any():
        raise FileError(
            f"{path}: expected positions of magnitude at most {COORDINATE_MAX:.0e}; {int(far.sum())} of {len(points)} "
            f"points are not (first: point {int(far.long().argmax())})"
        )
    return points, colors.nan_to_num(0.5)


def _list_photographs(
    path: Path, content: Mapping[str, Any], downscale: int, lenses: dict[Lens, int]
) -> list[Photograph]:
    """Returns the photographs of a file's numbered frames. Adds new lenses to `lenses`, which maps them to ids."""
    photographs = []
    for i, frame in content["frames"]:
        where = f"{path}: frame {i}"
        values = {**content, **frame}
        full = _find_image(path, frame.get("file_path"), where)
        image, is_downscaled = _downscaled(full, downscale)
        lens = _lens(values, full if os.path.isfile(full) else image, where)
        mask = frame.get("mask_path")
        photographs.append(
            Photograph(
                name=_normalize_name(os.path.relpath(full, path.parent)),
                path=image,
                lens=lens,
                viewmat=_viewmat(frame.get("transform_matrix"), where),
                camera_id=lenses.setdefault(lens, len(lenses)),
                downscale=1 if is_downscaled else downscale,
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
        raise FileError(f"{path}: {what}: expected a file name, found {_shortened(name)}")
    return path.parent / name.replace("\\", "/")


def _find_image(path: Path, name: object, where: str) -> Path:
    """Returns the path of a frame's image with its suffix; if it does not exist, the path in the file."""
    image = _resolve(path, name, f"{where.removeprefix(f'{path}: ')}: file_path")
    if os.path.isfile(image) or not image.name:
        return image
    return next((p for s in SUFFIXES if os.path.isfile(p := image.with_name(image.name + s))), image)


def _lens(values: Mapping[str, Any], image: Path, where: str) -> Lens:
    """Returns the intrinsics of a frame."""
    model = values.get("camera_model", "OPENCV")
    if model not in CAMERA_MODELS:
        raise UnsupportedError(
            f"{where}: camera_model: expected one of {', '.join(CAMERA_MODELS)}, found {model!s:.80}"
        )
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
        raise UnsupportedError(f"{where}: rolling_shutter: not implemented; expected zeros, found {shutter!s:.80}")
    if "w" in values and "h" in values:
        width, height = (round(min(_number(values, key, where), 1e9)) for key in ("w", "h"))
    else:
        info = read_image_info(image)
        width, height = info.width, info.height
    if width < 1 or height < 1:
        raise FileError(f"{where}: w and h: expected a size in pixels, found {width:g}x{height:g}")
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
    lens = Lens(width, height, fx, fy, cx, cy, (k1, k2, k3, k4), camera_model)
    if lens.problem is not None:
        raise FileError(f"{where}: {lens.problem}")
    return lens


def _focal(values: Mapping[str, Any], key: str, size: int, where: str) -> float:
    """Returns the focal length in pixels, given the key of the field of view."""
    angle = _number(values, key, where)
    if not 0 < angle < math.pi:
        raise FileError(f"{where}: {key}: expected radians between 0 and pi, found {angle}")
    return 0.5 * size / math.tan(0.5 * angle)


def _number(values: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = values.get(key, default)
    if not _is_number(value):
        raise FileError(f"{where}: {key}: expected a finite number, found {_shortened(value)}")
    assert value is not None
    return float(value)


def _is_number(value: object) -> bool:
    """Returns whether a JSON value is a number that fits a float."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _shortened(value: object) -> str:
    """Returns a JSON value as it is shown in messages."""
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        text = "an integer of thousands of digits"
    return text if len(text) <= 80 else f"{text[:80]}.."


def _viewmat(matrix: object, where: str) -> Tensor:
    """Converts a camera-to-world matrix in OpenGL axes to world-to-camera in OpenCV axes. [4, 4] fp64"""
    rows = matrix if isinstance(matrix, list) and len(matrix) in (3, 4) else []
    are_fours = all(isinstance(row, list) and len(row) == 4 and all(_is_number(value) for value in row) for row in rows)
    if not rows or not are_fours:
        raise FileError(f"{where}: transform_matrix: expected 4x4 finite numbers, found {_shortened(matrix)}")
    pose = torch.tensor(rows, dtype=torch.float64)
    rotation = pose[:3, :3]
    skew = (rotation.T @ rotation - torch.eye(3, dtype=torch.float64)).abs().max()
    if not skew <= ROTATION_TOLERANCE or torch.linalg.det(rotation) < 0:
        raise FileError(f"{where}: transform_matrix: expected a rotation as its 3x3 part; remove scale and reflection")
    if pose[:3, 3].abs().max() > COORDINATE_MAX:
        raise FileError(f"{where}: transform_matrix: expected a translation of at most {COORDINATE_MAX:.0e}")
    if len(rows) == 4 and rows[3] != [0, 0, 0, 1]:
        raise FileError(f"{where}: transform_matrix: expected the last row 0 0 0 1, found {_shortened(rows[3])}")
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
