"""Reads captures exported by phone apps: raw data of Polycam, and EXR + JPG sequences of Record3D.

Both contain photographs with pinhole cameras, camera-to-world poses in OpenGL axes (x right, y up, z backward) in a
world with y up and the unit meter, and for most photographs, depth along the optical axis. Initial points are sampled
from the depth maps.

Polycam (github.com/PolyCam/polyform): ``keyframes/`` contains ``corrected_images/ID.jpg`` and
``corrected_cameras/ID.json`` after global optimization, or the originals ``images/`` and ``cameras/``; ``depth/ID.png``
in millimeters; and ``confidence/ID.png`` with the values 0, 127 and 255. Record3D (github.com/marek-simonik/record3d,
issues 27, 33 and 36): ``metadata.json`` contains the poses as quaternion xyzw and position, ``K`` in column-major
order, and optionally ``perFrameIntrinsicCoeffs`` with fx, fy, cx and cy; ``rgb/N.jpg`` and ``depth/N.exr`` in meters
belong to pose N.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import FileError, MissingExtraError
from ...scalars import describe
from ...support.extras import require
from ...support.reading import read_json
from ..exr_maps import read_exr
from ..formats.json_objects import finite_number, finite_numbers
from ..images import BoundedFile, open_image, read_image
from ..rotation import rotation_matrix, similarity
from .initial_points import InitialPoints, bounds, random_points
from .lenses import Lens
from .photographs import PHOTOGRAPH_SUFFIXES, Photograph, find_usable
from .placement import ReadOptions, read_posed
from .transforms_cameras import read_viewmat
from .views import Capture

POLYCAM_FOLDERS = (("corrected_cameras", "corrected_images"), ("cameras", "images"))
"""Folders of cameras and of photographs, the optimized ones first."""

POLYCAM_BORDER = 15
"""Width in pixels of the border of optimized photographs that may be black; photographs are at least 1,024 pixels
wide."""

RECORD3D_FILES = ("metadata.json", "metadata")
RECORD3D_FOLDERS = ("rgb", "rgbd")
MILLIMETERS, HIGH_CONFIDENCE = 1000.0, 255
DEPTH_MAX = 5.0
"""Range of phone LiDARs in meters; according to Polycam, depth beyond it is a guess."""

N_POINTS = 40_000
"""Number of initial points that are sampled from the depth of all photographs."""

DEPTH_SIDE_MAX = 4096
"""Maximum side length of depth maps in pixels."""


class _Depth(NamedTuple):
    """Files of the depth map of a photograph and its confidence map."""

    depth: Path
    confidence: Path | None


def find_polycam(folder: Path) -> Path | None:
    """Returns the folder ``keyframes`` of Polycam's raw data in a folder, or `folder` if it is such a folder; else
    None."""
    for candidate in (folder / "keyframes", folder):
        for cameras, images in POLYCAM_FOLDERS:
            if (candidate / cameras).is_dir() and (candidate / images).is_dir():
                is_polycam = candidate.name == "keyframes" or any((candidate / cameras).glob("*.json"))
                return candidate if is_polycam else None
    return None


def find_record3d(folder: Path) -> Path | None:
    """Returns the metadata file of a Record3D sequence in a folder, or `folder` if it is that file; else None."""
    if folder.name in RECORD3D_FILES and folder.is_file():
        folder = folder.parent
    for candidate in (folder, folder / "EXR_RGBD"):
        if any((candidate / name).is_dir() for name in RECORD3D_FOLDERS):
            found = next(filter(Path.is_file, (candidate / name for name in RECORD3D_FILES)), None)
            if found is not None:
                return found
    return None


def read_polycam(folder: Path, options: ReadOptions) -> Capture:
    """Reads the photographs of Polycam's raw data with their cameras, and points from their depth maps.

    Args:
        folder: Folder that :func:`find_polycam` returns.
        options: See :func:`read_colmap`.

    Raises:
        FileError: A file is missing or cannot be read, a value in it is missing or invalid, or fewer than two
            photographs are left.
        ArgumentError: There are fewer than two photographs.
        MissingExtraError: Pillow is not installed.
    """
    corrected = all((folder / name).is_dir() for name in POLYCAM_FOLDERS[0])
    cameras, images = (folder / name for name in POLYCAM_FOLDERS[0 if corrected else 1])
    photographs, depths = [], []
    lenses: dict[Lens, int] = {}
    for image in _find_images(images):
        file = cameras / f"{image.stem}.json"
        if not file.is_file():
            continue
        values = _read_object(file)
        matrix = [[finite_number(values, f"t_{row}{column}", file) for column in range(4)] for row in range(3)]
        width, height = (round(min(finite_number(values, name, file), 1e9)) for name in ("width", "height"))
        fx, fy, cx, cy = (finite_number(values, name, file) for name in ("fx", "fy", "cx", "cy"))
        lens = Lens(width, height, fx, fy, cx, cy).checked(str(file))
        border = POLYCAM_BORDER * lens.width / max(lens.width, 1024) if corrected else 0.0
        photograph = _photograph(image, lens, matrix, str(file), lenses)
        photographs.append(dataclasses.replace(photograph, border=border))
        depth, confidence = (folder / name / f"{image.stem}.png" for name in ("depth", "confidence"))
        depths.append(_Depth(depth, confidence) if depth.is_file() else None)
    notes = []
    if corrected:
        notes.append(
            f"{folder}: {POLYCAM_BORDER} pixels at the borders of photographs, which may be black, do not count"
        )
    else:
        notes.append(f"{folder}: has no corrected_images; poses are those of ARKit, which Polycam did not optimize")
    return _read(folder, photographs, depths, _read_millimeters, notes, options)


def read_record3d(file: Path, options: ReadOptions) -> Capture:
    """Reads the photographs of a Record3D sequence with their cameras, and points from their depth maps.

    Args:
        file: File that :func:`find_record3d` returns.
        options: See :func:`read_colmap`.

    Raises:
        FileError, ArgumentError, MissingExtraError: As :func:`read_polycam`.
    """
    values = _read_object(file)
    poses = values.get("poses")
    if not isinstance(poses, list) or not poses:
        raise FileError(f"{file}: poses: expected a list of poses, found {describe(poses)}")
    width, height = (round(min(finite_number(values, name, file), 1e9)) for name in ("w", "h"))
    K = finite_numbers(values.get("K"), 9, f"{file}: K")
    per_frame = values.get("perFrameIntrinsicCoeffs")
    coefficients = per_frame if isinstance(per_frame, list) and len(per_frame) == len(poses) else []
    images = next(filter(Path.is_dir, (file.parent / name for name in RECORD3D_FOLDERS)))
    photographs, depths, n_without = [], [], 0
    lenses: dict[Lens, int] = {}
    for image in _find_images(images):
        if not (image.stem.isascii() and image.stem.isdecimal() and len(image.stem) < 9):
            continue
        index = int(image.stem)
        if index >= len(poses):
            n_without += 1
            continue
        where = f"{file}: poses[{index}]"
        x, y, z, w, *position = finite_numbers(poses[index], 7, where)
        fx, fy, cx, cy = K[0], K[4], K[6], K[7]
        if coefficients:
            fx, fy, cx, cy = finite_numbers(coefficients[index], 4, f"{file}: perFrameIntrinsicCoeffs[{index}]")
        lens = Lens(width, height, fx, fy, cx, cy).checked(f"{file}: the camera of {image.name}")
        photographs.append(_photograph(image, lens, _pose((w, x, y, z), position, where), where, lenses))
        depth = file.parent / "depth" / f"{image.stem}.exr"
        depths.append(_Depth(depth, None) if depth.is_file() else None)
    notes = [f"{file}: left out {n_without:,} photographs without a pose"] if n_without else []
    return _read(file, photographs, depths, _read_meters, notes, options)


def _photograph(image: Path, lens: Lens, pose: list[list[float]], where: str, lenses: dict[Lens, int]) -> Photograph:
    """Returns a photograph, given the rows of its camera-to-world matrix. Adds its lens to `lenses` if it is new."""
    viewmat, position = read_viewmat(pose, where)
    return Photograph(
        name=image.name,
        path=image,
        lens=lens,
        viewmat=viewmat,
        position=position,
        camera_id=lenses.setdefault(lens, len(lenses)),
    )


def _read(
    where: Path,
    photographs: Sequence[Photograph],
    depths: Sequence[_Depth | None],
    read_depth: Callable[[_Depth], NDArray[np.float32]],
    notes: Sequence[str],
    options: ReadOptions,
) -> Capture:
    """Returns the capture of photographs, with points from their depth maps, or random points if they have none."""
    if len(photographs) < 2:
        raise FileError(f"{where}: expected at least two photographs with a camera, found {len(photographs)}")
    kept, missing = find_usable([photograph.path for photograph in photographs], options.strict)
    photographs = [photographs[i] for i in kept]
    depths = [depths[i] for i in kept]
    points = _sample_points(photographs, depths, read_depth, where, options)
    options = dataclasses.replace(options, background=options.background or (0.0, 0.0, 0.0))
    return read_posed(photographs, points, where, options, [*notes, *missing])


def _find_images(folder: Path) -> list[Path]:
    """Returns the photographs in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PHOTOGRAPH_SUFFIXES and path.is_file())


def _read_object(file: Path) -> Mapping[str, Any]:
    values = read_json(file)
    if not isinstance(values, dict):
        raise FileError(f"{file}: expected an object in JSON, found {describe(values)}")
    return values


def _pose(quat: tuple[float, ...], position: Sequence[float], where: str) -> list[list[float]]:
    """Returns the rows of the camera-to-world matrix [4, 4] for a quaternion wxyz and a position."""
    norm = math.hypot(*quat)
    if not 0.9 < norm < 1.1:
        raise FileError(f"{where}: expected a unit quaternion x, y, z and w first, found one of length {norm:.4g}")
    rows: list[list[float]] = similarity(rotation_matrix([value / norm for value in quat]), position).tolist()
    return rows


def _read_millimeters(files: _Depth) -> NDArray[np.float32]:
    """Reads a PNG with depth in millimeters; returns meters [H, W], 0 where the confidence is low."""
    depth = _read_integers(files.depth).astype(np.float32) / np.float32(MILLIMETERS)
    if files.confidence is not None and files.confidence.is_file():
        confidence = _read_integers(files.confidence)
        if confidence.shape == depth.shape:
            depth[confidence < HIGH_CONFIDENCE] = 0
    return depth


def _read_integers(path: Path) -> NDArray[Any]:
    """Reads the values [H, W] of a PNG with one channel."""
    require("PIL")
    try:
        with BoundedFile(path) as file, open_image(file) as image:
            if max(image.size) > DEPTH_SIDE_MAX:
                raise ValueError(f"expected at most {DEPTH_SIDE_MAX} pixels a side, found {image.size}")
            values = np.array(image)
    except (MemoryError, FileError):
        raise
    except Exception as error:  # Pillow raises errors of many types for damaged files
        raise FileError(f"{path}: cannot be read as a map of depth ({str(error)[:120]})") from error
    if values.ndim != 2:
        raise FileError(f"{path}: expected a map of one channel, found an image of shape {list(values.shape)}")
    return values


def _read_meters(files: _Depth) -> NDArray[np.float32]:
    """Reads the depth [H, W] in meters from an OpenEXR image."""
    return read_exr(files.depth, 1)[..., 0]


def _sample_points(
    photographs: Sequence[Photograph],
    depths: Sequence[_Depth | None],
    read_depth: Callable[[_Depth], NDArray[np.float32]],
    where: Path,
    options: ReadOptions,
) -> InitialPoints:
    """Samples points with colors from the depth maps of photographs; random points if there are no depth maps."""
    chosen = [(photograph, depth) for photograph, depth in zip(photographs, depths) if depth is not None]
    rng = np.random.default_rng(options.seed)
    positions, colors, reason = [], [], "no map of depth"
    for photograph, depth in chosen:
        try:
            values = read_depth(depth)
        except MissingExtraError as error:
            reason = f"its depth is not read: {error}"
            break
        n = -(-N_POINTS // len(chosen))
        rows, columns = np.nonzero((values > 0) & (values <= DEPTH_MAX))
        picked = rng.choice(len(rows), min(n, len(rows)), replace=False) if len(rows) else np.zeros(0, np.int64)
        rows, columns = rows[picked], columns[picked]
        positions.append(_unproject(photograph, values, rows, columns))
        image = read_image(photograph.path, size=(values.shape[1], values.shape[0]))
        colors.append(image[torch.from_numpy(rows), torch.from_numpy(columns)].float() / 255)
    n_points = sum(map(len, positions))
    if n_points < 2:
        return random_points(bounds, options.n_random, options.seed, f"{where}: {reason}")
    note = f"{where}: training starts from {n_points:,} points of the depth of {len(chosen):,} photographs"
    return InitialPoints(torch.cat(positions), torch.cat(colors), [note])


def _unproject(
    photograph: Photograph, depths: NDArray[np.float32], rows: NDArray[Any], columns: NDArray[Any]
) -> Tensor:
    """Unprojects pixels of a depth map [H, W] to positions [P, 3] fp64 in the frame of the files."""
    K = photograph.lens.intrinsics(depths.shape[1], depths.shape[0]).double()
    z = torch.from_numpy(depths[rows, columns]).double()
    x, y = (torch.from_numpy(values).double() + 0.5 for values in (columns, rows))
    camera = torch.stack([(x - K[0, 2]) / K[0, 0] * z, (y - K[1, 2]) / K[1, 1] * z, z], 1)
    position = photograph.position
    assert position is not None
    return camera @ photograph.viewmat[:3, :3] + position


def refuse_phone_file(path: Path) -> None:
    """Raises FileError for recordings of phone apps that must be exported first."""
    if path.suffix.lower() == ".r3d" and os.path.isfile(path):
        raise FileError(f"{path}: a recording of Record3D; export it in the app as EXR + JPG sequence")
