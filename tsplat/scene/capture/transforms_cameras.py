"""Reads and checks the intrinsics and poses of frames in ``transforms.json``."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config import CameraModel
from ...errors import FileError, UnsupportedError
from ...precision import fp64
from ...scalars import describe, to_float
from ..cameras import viewmat_from_pose
from ..formats.json_objects import finite_number
from ..images import read_image_info
from ..rotation import is_rotation
from .colmap_model import COORDINATE_MAX
from .lens_conversions import colmap_lens
from .lenses import ANGLE_TOLERANCE, Lens, panorama

NERFSTUDIO_MODELS = (
    *("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV", "OPENCV_FISHEYE"),
    "EQUIRECTANGULAR",
)

DISTORTION_KEYS = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")


def read_lens(values: Mapping[str, Any], image: Path, where: str) -> Lens:
    """Returns the intrinsics of a frame. Its `values` must include the values that the file defines for all frames.

    If the values have no size, the size of the image is used. `where` is the file and the frame, for messages. Raises
    FileError for missing or invalid values, and UnsupportedError for unsupported models and rolling shutters.
    """
    name = values.get("camera_model", "OPENCV")
    if name not in NERFSTUDIO_MODELS:
        raise UnsupportedError(
            f"{where}: camera_model: expected one of {', '.join(NERFSTUDIO_MODELS)}, found {name!s:.80}"
        )
    _check_shutter(values, where)
    width, height = _size(values, image, where)
    if name == "EQUIRECTANGULAR":
        return _panorama(values, width, height, where)
    is_fisheye = name == "OPENCV_FISHEYE" or values.get("is_fisheye")
    model: CameraModel = "fisheye" if is_fisheye else "pinhole"
    keys = ("k1", "k2", "p1", "p2") if model == "pinhole" else ("k1", "k2", "k3", "k4")
    k1, k2, k3, k4 = distortion = tuple(finite_number(values, key, where, 0.0) for key in keys)
    # Coefficients that pycolmap undistorts; k4 has another meaning for cameras other than FULL_OPENCV.
    more = () if model == "fisheye" else ("k3", "k4", "k5", "k6") if name == "FULL_OPENCV" else ("k3",)
    radial = [finite_number(values, key, where, 0.0) for key in more]
    unknown = [key for key in DISTORTION_KEYS if key not in (*keys, *more) and finite_number(values, key, where, 0.0)]
    if unknown:
        raise UnsupportedError(
            f"{where}: {unknown[0]} is not implemented for {model} cameras; only the distortion "
            f"{', '.join((*keys, *more))} is"
        )
    fx = _focal(values, "x", width, model, where)
    if fx is None:
        expected = "fl_x" if model == "fisheye" else "fl_x, camera_angle_x or x_fov"
        raise FileError(f"{where}: no focal length; expected {expected} in the frame or the file")
    fy = _focal(values, "y", height, model, where)
    fy = fx if fy is None else fy
    if not (fx > 0 and fy > 0):
        raise FileError(f"{where}: fl_x and fl_y: expected positive focal lengths, found {fx} and {fy}")
    cx, cy = finite_number(values, "cx", where, width / 2), finite_number(values, "cy", where, height / 2)
    if any(radial):
        params = (fx, fy, cx, cy, *distortion, *radial, 0.0, 0.0, 0.0)
        lens = colmap_lens("FULL_OPENCV", width, height, params[:12])
    else:
        lens = Lens(width, height, fx, fy, cx, cy, (k1, k2, k3, k4), model)
    return lens.checked(where)


def _check_shutter(values: Mapping[str, Any], where: str) -> None:
    shutter = values.get("rolling_shutter")
    if isinstance(shutter, list) and any(shutter):
        raise UnsupportedError(f"{where}: rolling_shutter: not implemented; expected zeros, found {shutter!s:.80}")


def _size(values: Mapping[str, Any], image: Path, where: str) -> tuple[int, int]:
    """Returns the size of a camera in pixels; the size of its image if the values have none."""
    if "w" in values and "h" in values:
        width, height = (round(min(finite_number(values, key, where), 1e9)) for key in ("w", "h"))
    else:
        info = read_image_info(image)
        width, height = info.width, info.height
    if width < 1 or height < 1:
        raise FileError(f"{where}: w and h: expected a size in pixels, found {width:g}×{height:g}")
    return width, height


def _panorama(values: Mapping[str, Any], width: int, height: int, where: str) -> Lens:
    """Returns the lens of a panorama: full, unless its focal lengths indicate a partial panorama.

    Nerfstudio's focal lengths are pixels per 180 degrees, width / 2 for a full panorama. Other programs write pixels
    per radian, width / 2π for a full panorama; in nerfstudio's unit, this would be more than 360 degrees.
    """
    distorted = [key for key in DISTORTION_KEYS if finite_number(values, key, where, 0.0)]
    if distorted:
        raise UnsupportedError(f"{where}: {distorted[0]}: expected 0, as an EQUIRECTANGULAR camera has no lens")
    lens = panorama(width, height)
    if "fl_x" in values or "fl_y" in values:
        focal_lengths = [finite_number(values, key, where) for key in ("fl_x", "fl_y") if key in values]
        fx, fy = focal_lengths[0], focal_lengths[-1]
        if not all(math.isclose(f, full, rel_tol=ANGLE_TOLERANCE) for f, full in ((fx, lens.fx), (fy, lens.fy))):
            lens = dataclasses.replace(lens, fx=fx / math.pi, fy=fy / math.pi)
    cx, cy = finite_number(values, "cx", where, width / 2), finite_number(values, "cy", where, height / 2)
    return dataclasses.replace(lens, cx=cx, cy=cy).checked(
        where,
        f"fl_x and fl_y are pixels per 180 degrees; a full panorama has {width / 2:g} and {height}, and may omit them",
    )


def _focal(values: Mapping[str, Any], axis: str, size: int, model: CameraModel, where: str) -> float | None:
    """Returns the focal length in pixels along an axis; for pinhole cameras, it may be given by a field of view."""
    if f"fl_{axis}" in values:
        return finite_number(values, f"fl_{axis}", where)
    if model != "pinhole":
        return None
    for key, unit, half_turn in ((f"camera_angle_{axis}", "radians", math.pi), (f"{axis}_fov", "degrees", 180.0)):
        if key in values:
            angle = finite_number(values, key, where)
            if not 0 < angle < half_turn:
                maximum = "pi" if unit == "radians" else "180"
                raise FileError(f"{where}: {key}: expected {unit} between 0 and {maximum}, found {angle}")
            return 0.5 * size / math.tan(0.5 * angle * (math.pi / half_turn))
    return None


def read_viewmat(matrix: object, where: str) -> tuple[Tensor, Tensor]:
    """Converts a camera-to-world matrix in OpenGL axes to world-to-camera in OpenCV axes, [4, 4] fp64.

    Also returns its position, [3] fp64.
    """
    rows = matrix if isinstance(matrix, list) and len(matrix) in (3, 4) else []
    are_fours = all(isinstance(row, list) and len(row) == 4 and None not in map(to_float, row) for row in rows)
    if not rows or not are_fours:
        raise FileError(f"{where}: transform_matrix: expected 4×4 finite numbers, found {describe(matrix)}")
    pose = fp64(rows)
    rotation = pose[:3, :3]
    if not is_rotation(rotation):
        raise FileError(f"{where}: transform_matrix: expected a rotation as its 3×3 part; remove scale and reflection")
    if pose[:3, 3].abs().max() > COORDINATE_MAX:
        raise FileError(f"{where}: transform_matrix: expected a translation of at most {COORDINATE_MAX:.0e}")
    if len(rows) == 4 and rows[3] != [0, 0, 0, 1]:
        raise FileError(f"{where}: transform_matrix: expected the last row 0 0 0 1, found {describe(rows[3])}")
    position = pose[:3, 3]
    return viewmat_from_pose((torch.diag(pose.new_tensor([1.0, -1.0, -1.0])) @ rotation.T).T, position), position
