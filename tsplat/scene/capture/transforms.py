"""Photographs with cameras in ``transforms.json``, as nerfstudio, instant-ngp and the synthetic NeRF scenes have it.

Camera-to-world matrices in OpenGL's axes: x right, y up, z backwards (nerfstudio's data conventions; Mildenhall et al.,
"NeRF", 2020). Intrinsics are OpenCV's, of the whole file or of a frame; the frame's come first.
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
from ...errors import ArgumentError, FileError, UnsupportedError
from ..cameras import centers
from ..formats.point_clouds import read_points
from ..images import picture_info
from .captures import Capture, Color
from .colmap import TEST_EVERY, same_name, shrunk_folder
from .lenses import Lens
from .shots import OnProgress, Shot, read_views

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".webp")
"""Tried in this order where a file path has none."""

LENSES = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
BLENDER_REACH = 1.3
"""The synthetic NeRF scenes lie in a box from minus to plus this."""

ROTATION_TOLERANCE = 1e-3


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
    """Reads pictures, cameras and points; the world's frame stays the file's.

    Where there is ``transforms_train.json``, it has the views to fit, and ``transforms_test.json``, or
    ``transforms_val.json`` where that is not there, those held out. Points are those of ``ply_file_path``. Where there
    are none, they are drawn at random, in gray: for the synthetic NeRF scenes uniformly in [-1.3, 1.3]^3, otherwise in
    the box of the cameras and of what they look at. Pictures with distortion (``k1``, ``k2``, ``p1``, ``p2``) are
    undistorted; those with a ``mask_path`` count where it is white.

    Args:
        path: A folder, or the file itself; pictures are named relative to where it is.
        downscale: As for :func:`tsplat.scene.read_colmap`, with ``images_2/`` and so on where pictures are in
            ``images/``.
        test_every: Where the files do not say what is held out: of the pictures sorted by name, the first and every so
            many after it.
        background: RGB in [0, 1] behind transparent pictures and behind the scene. Where None it is white if any
            picture is transparent, otherwise black.
        n_random: Points to draw where the file has none.
        seed: Of those points.
        on_progress: Told how many of how many pictures have been read.

    Raises:
        FileError: A file is missing or cannot be read, or a value in it is missing or has no meaning.
        UnsupportedError: A fisheye camera, another lens than OpenCV's, or a rolling shutter.
        ArgumentError: Fewer than two pictures, or an argument without meaning.
        MissingExtraError: Pillow is not installed, or pycolmap, which distortion needs.
    """
    for name, value in (("downscale", downscale), ("test_every", test_every), ("n_random", n_random)):
        check_size(name, value)
    path = Path(path)
    files, held_out = _files(path)
    lenses: dict[Lens, int] = {}
    contents = [_read_json(file) for file in files]
    shots = [_shots(file, content, downscale, lenses) for file, content in zip(files, contents)]
    train, test = _split(shots, held_out, contents[0], test_every)
    if len(train) + len(test) < 2 or not train:
        raise ArgumentError(f"{path}: expected at least two pictures, found {len(train)} to fit, {len(test)} held out")
    if background is None:
        transparent = any(picture_info(shot.path).transparent for shot in (*train, *test) if shot.path.is_file())
        background = (1.0, 1.0, 1.0) if transparent else (0.0, 0.0, 0.0)
    views = read_views([*train, *test], background, on_progress)

    ply = contents[0].get("ply_file_path")
    if ply is not None:
        points, colors = read_points(_beside(files[0], ply, "ply_file_path"))
    else:
        is_blender = held_out and "fl_x" not in contents[0]
        low, high = (-BLENDER_REACH, BLENDER_REACH) if is_blender else _box([shot.viewmat for shot in train])
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
    """Whether a folder has a file that :func:`read_transforms` looks for."""
    return any((folder / name).is_file() for name in ("transforms_train.json", "transforms.json"))


def _files(path: Path) -> tuple[list[Path], bool]:
    """The files to read, and whether the second of them holds what is held out."""
    if not path.is_dir():
        return [path], False
    train = path / "transforms_train.json"
    if not train.is_file():
        if not (path / "transforms.json").is_file():
            raise FileError(f"{path}: has neither transforms.json nor transforms_train.json")
        return [path / "transforms.json"], False
    others = [path / f"transforms_{name}.json" for name in ("test", "val")]
    return [train, *[other for other in others if other.is_file()][:1]], any(other.is_file() for other in others)


def _split(
    shots: Sequence[list[Shot]], held_out: bool, content: Mapping[str, Any], test_every: int
) -> tuple[list[Shot], list[Shot]]:
    """Views to fit and views held out."""
    if held_out:
        return shots[0], shots[1]
    everything = sorted(shots[0], key=lambda shot: shot.name)
    named = content.get("test_filenames") or content.get("val_filenames")
    if isinstance(named, list):
        names = {_plain(name) for name in named if isinstance(name, str)}
        chosen = [shot.name in names for shot in everything]
    else:
        chosen = [i % test_every == 0 for i in range(len(everything))]
    train = [shot for shot, is_test in zip(everything, chosen) if not is_test]
    return train, [shot for shot, is_test in zip(everything, chosen) if is_test]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not JSON that can be read ({error})") from error
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise FileError(f"{path}: expected an object with a list of frames; it is no transforms.json, or has no frame")
    return dict(content)


def _shots(path: Path, content: Mapping[str, Any], downscale: int, lenses: dict[Lens, int]) -> list[Shot]:
    shots = []
    for i, frame in enumerate(content["frames"]):
        where = f"{path}: frame {i}"
        values = {**content, **frame}
        full = _picture(path, frame.get("file_path"), where)
        shrunk = shrunk_folder(full.parent, downscale)
        lens = _lens(values, full, where)
        mask = frame.get("mask_path")
        shots.append(
            Shot(
                name=_plain(os.path.relpath(full, path.parent)),
                path=same_name(shrunk, full.name) if shrunk else full,
                lens=lens,
                viewmat=_viewmat(frame.get("transform_matrix"), where),
                camera_id=lenses.setdefault(lens, len(lenses)),
                downscale=1 if shrunk else downscale,
                mask=None if mask is None else _beside(path, mask, f"frame {i}: mask_path"),
            )
        )
    return shots


def _plain(name: str) -> str:
    return Path(os.path.normpath(name.replace("\\", "/"))).as_posix()


def _beside(path: Path, name: object, what: str) -> Path:
    if not isinstance(name, str) or not name or "\0" in name:
        raise FileError(f"{path}: {what}: expected a file name, found {name!r}")
    return path.parent / name.replace("\\", "/")


def _picture(path: Path, name: object, where: str) -> Path:
    """The picture of a frame; where it is not there, the name it should have."""
    picture = _beside(path, name, f"{where.removeprefix(f'{path}: ')}: file_path")
    if picture.is_file():
        return picture
    return next((p for s in SUFFIXES if (p := picture.with_name(picture.name + s)).is_file()), picture)


def _lens(values: Mapping[str, Any], picture: Path, where: str) -> Lens:
    model = values.get("camera_model", "OPENCV")
    if model not in LENSES or values.get("is_fisheye"):
        found = model if model not in LENSES else "a fisheye"
        raise UnsupportedError(f"{where}: camera_model: {found} is not implemented, only {', '.join(LENSES)} are")
    unknown = [key for key in ("k3", "k4", "k5", "k6") if _number(values, key, where, 0.0)]
    if unknown:
        raise UnsupportedError(f"{where}: {unknown[0]}: only the distortion k1, k2, p1, p2 is implemented")
    shutter = values.get("rolling_shutter")
    if isinstance(shutter, list) and any(shutter):
        raise UnsupportedError(f"{where}: rolling_shutter: {shutter} is not implemented")
    if "w" in values and "h" in values:
        width, height = (round(_number(values, key, where)) for key in ("w", "h"))
    else:
        info = picture_info(picture)
        width, height = info.width, info.height
    if width < 1 or height < 1:
        raise FileError(f"{where}: w and h: expected a size in pixels, found {width}x{height}")
    if "fl_x" in values:
        fx = _number(values, "fl_x", where)
        fy = _number(values, "fl_y", where, fx)
    elif "camera_angle_x" in values:
        fx = _focal(values, "camera_angle_x", width, where)
        fy = _focal(values, "camera_angle_y", height, where) if "camera_angle_y" in values else fx
    else:
        raise FileError(f"{where}: found no focal length; expected fl_x or camera_angle_x in the frame or the file")
    if not (fx > 0 and fy > 0):
        raise FileError(f"{where}: fl_x and fl_y: expected positive focal lengths, found {fx} and {fy}")
    cx, cy = _number(values, "cx", where, width / 2), _number(values, "cy", where, height / 2)
    k1, k2, p1, p2 = (_number(values, key, where, 0.0) for key in ("k1", "k2", "p1", "p2"))
    return Lens(width, height, fx, fy, cx, cy, (k1, k2, p1, p2))


def _focal(values: Mapping[str, Any], key: str, size: int, where: str) -> float:
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
    """World to camera in OpenCV's axes. [4, 4] fp64"""
    try:
        pose = torch.tensor(matrix, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pose = torch.empty(0)
    if pose.shape not in ((4, 4), (3, 4)) or not pose.isfinite().all():
        raise FileError(f"{where}: transform_matrix: expected 4x4 finite numbers, found {str(matrix)[:80]}")
    rotation = pose[:3, :3]
    skew = (rotation.T @ rotation - torch.eye(3, dtype=torch.float64)).abs().max()
    if skew > ROTATION_TOLERANCE or torch.linalg.det(rotation) < 0:
        raise FileError(f"{where}: transform_matrix: its 3x3 part is no rotation; take scale and mirroring out of it")
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3, :3] = torch.diag(pose.new_tensor([1.0, -1.0, -1.0])) @ rotation.T
    viewmat[:3, 3] = -viewmat[:3, :3] @ pose[:3, 3]
    return viewmat


def _box(viewmats: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Low and high corner of the cameras, and of what is straight ahead as far away as they are spread. [3], [3]"""
    poses = torch.stack(list(viewmats))
    places = centers(poses)
    spread = (places - places.mean(0)).norm(dim=-1).max().clamp_min(1e-3) * 2
    corners = torch.cat([places, places + spread * poses[:, 2, :3]]).float()
    return corners.amin(0), corners.amax(0)
