"""Reads COLMAP models: cameras, images and points3D, as binary or text files.

COLMAP's documentation ("Output format") describes the layouts. Every count is checked against the size of its file
before memory is allocated, and every value is checked to be plausible for a camera, a pose or a point.
"""

import array
import codecs
import dataclasses
import itertools
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import FileError
from ...support.reading import open_file, read_file, stays_inside

MODELS_BY_ID = {
    0: ("SIMPLE_PINHOLE", 3),
    1: ("PINHOLE", 4),
    2: ("SIMPLE_RADIAL", 4),
    3: ("RADIAL", 5),
    4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8),
    6: ("FULL_OPENCV", 12),
    7: ("FOV", 5),
    8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5),
    10: ("THIN_PRISM_FISHEYE", 12),
    11: ("RAD_TAN_THIN_PRISM_FISHEYE", 16),
    12: ("SIMPLE_DIVISION", 4),
    13: ("DIVISION", 5),
    14: ("SIMPLE_FISHEYE", 3),
    15: ("FISHEYE", 4),
    16: ("EUCM", 6),
    17: ("EQUIRECTANGULAR", 2),
}
"""COLMAP's camera model id -> name and number of parameters."""

N_PARAMETERS = dict(MODELS_BY_ID.values())
FILES = ("cameras", "images", "points3D")
SUFFIXES = (".bin", ".txt")

COORDINATE_MAX = 1e12
"""Maximum magnitude of a coordinate."""

NORM_TOLERANCE = 0.01
"""Maximum deviation of the norm of a quaternion from 1."""

LINE_BYTES_MAX = 8 << 20
NAME_BYTES_MAX = 4096
GATHER_RECORDS = 1 << 16

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ColmapCamera:
    """A camera: COLMAP's model name, size in pixels, and parameters in COLMAP's order."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class ColmapImage:
    """A registered image: its id, its path in the image folder, and its world-to-camera rotation and translation.

    The rotation is a unit quaternion wxyz; `point_ids` [O] int64 are the ids of the points observed in the image.
    """

    image_id: int
    name: str
    camera_id: int
    quat: tuple[float, ...]
    translation: tuple[float, ...]
    point_ids: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class ColmapModel:
    """A COLMAP model: cameras by id, registered images in the order of the file, and points.

    `point_ids` [P] are int64, `points` [P, 3] fp64 in the world frame, `colors` [P, 3] uint8 RGB; P is 0 if there is no
    points file. Each note describes an inconsistency in one sentence.
    """

    cameras_file: Path
    cameras: dict[int, ColmapCamera]
    images: tuple[ColmapImage, ...]
    point_ids: npt.NDArray[np.int64]
    points: npt.NDArray[np.float64]
    colors: npt.NDArray[np.uint8]
    notes: tuple[str, ...]


def has_model(folder: Path) -> bool:
    """Returns whether a folder contains any file of a COLMAP model."""
    return any((folder / f"{name}{suffix}").is_file() for name in FILES for suffix in SUFFIXES)


def has_cameras(folder: Path) -> bool:
    """Returns whether a folder contains the cameras and images of a COLMAP model in one format."""
    return any(all((folder / f"{name}{suffix}").is_file() for name in FILES[:2]) for suffix in SUFFIXES)


def count_images(folder: Path) -> int:
    """Returns the number of registered images, reading only the images file; 0 if it is damaged."""
    try:
        if not (folder / "images.bin").is_file():
            return sum(1 for _ in _text_images(folder / "images.txt", {}))
        with open(folder / "images.bin", "rb") as file:
            return int(struct.unpack("<Q", file.read(8))[0])
    except (OSError, FileError, struct.error):
        return 0


def read_model(folder: Path) -> ColmapModel:
    """Reads a model. Binary files are preferred if all three exist. The points file is optional.

    Raises:
        FileError: A file is missing, truncated or damaged, or contains an implausible camera, pose or point.
    """
    suffix = _find_suffix(folder)
    header_counts: dict[str, int] = {}
    paths = [folder / f"{name}{suffix}" for name in FILES]
    if not paths[2].is_file():
        paths[2] = next((path for s in SUFFIXES if (path := folder / f"{FILES[2]}{s}").is_file()), paths[2])
    try:
        if suffix == ".bin":
            cameras = _binary_cameras(_Reader(paths[0]))
            images = _binary_images(_Reader(paths[1]))
        else:
            cameras = _text_cameras(paths[0], header_counts)
            images = list(_text_images(paths[1], header_counts))
        ids, points, colors = _read_points(paths[2], header_counts)
    except OSError as error:
        raise FileError(f"{error.filename or folder}: {error.strerror or error}") from error
    image_ids: set[int] = set()
    for image in images:
        if image.image_id in image_ids:
            raise FileError(f"{paths[1]}: expected images of different ids, found {image.image_id} twice")
        image_ids.add(image.image_id)
    first: dict[str, str] = {}
    for image in images:
        name = os.path.normpath(image.name)
        if name in first:
            found = f"{image.name!r} twice" if first[name] == image.name else f"{first[name]!r} and {image.name!r}"
            raise FileError(f"{paths[1]}: expected images of different names, found {found}")
        first[name] = image.name
    for image in images:
        if image.camera_id not in cameras:
            raise FileError(f"{paths[1]}: {image.name}: its camera {image.camera_id} is not in {paths[0].name}")
    if len(np.unique(ids)) < len(ids):
        raise FileError(f"{paths[2]}: expected points of different ids, found an id twice")
    invalid = ~(np.abs(points) <= COORDINATE_MAX).all(-1)
    if invalid.any():
        raise FileError(
            f"{paths[2]}: expected finite positions of at most {COORDINATE_MAX:.0e}; {int(invalid.sum())} of "
            f"{len(points):,} points are not (first: point {ids[invalid.argmax()]})"
        )
    notes = [
        f"{path}: its header says {header_counts[path.stem]} {path.stem}, it has {found}; it may be cut short"
        for path, found in zip(paths, (len(cameras), len(images), len(ids)))
        if header_counts.get(path.stem, found) != found
    ]
    return ColmapModel(paths[0], cameras, tuple(images), ids, points, colors, tuple(notes))


def _find_suffix(folder: Path) -> str:
    """Returns the suffix of the files to read."""
    missing = {suffix: [name for name in FILES if not (folder / f"{name}{suffix}").is_file()] for suffix in SUFFIXES}
    # The format with more existing files.
    suffix = min(SUFFIXES, key=lambda suffix: len(missing[suffix]))
    needed = [name for name in missing[suffix] if name in FILES[:2]]
    if not needed:
        return suffix
    names = " and ".join(f"{name}{suffix}" for name in needed)
    if len(missing[suffix]) == len(FILES):
        names = "cameras and images (.bin or .txt)"
    raise FileError(f"{folder}: no {names}; a COLMAP model needs cameras and images, both as .bin or both as .txt")


def _read_points(
    path: Path, header_counts: dict[str, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    """Returns ids, positions and colors of the points; empty if there is no file."""
    if not path.exists():
        return np.empty(0, np.int64), np.empty((0, 3)), np.empty((0, 3), np.uint8)
    return _binary_points(_Reader(path)) if path.suffix == ".bin" else _text_points(path, header_counts)


class _Reader:
    """Reads little-endian values from the content of a file, and checks that it is long enough."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, self.position = path, read_file(path), 0

    def error(self, message: str) -> FileError:
        return FileError(f"{self.path}: {message}")

    def skip(self, size: int, what: str) -> int:
        """Skips `size` bytes and returns their offset."""
        start = self.position
        if size > len(self.content) - start:
            raise self.error(f"cut short or damaged: {what} needs {size:,} bytes, {len(self.content) - start} are left")
        self.position = start + size
        return start

    def values(self, layout: str, what: str) -> tuple[int | float, ...]:
        return struct.unpack_from(layout, self.content, self.skip(struct.calcsize(layout), what))

    def count(self, what: str, size: int) -> int:
        """Reads a count of records, which have at least `size` bytes each."""
        count = int(self.values("<Q", f"the number of {what}")[0])
        left = len(self.content) - self.position
        if count * size > left:
            raise self.error(
                f"cut short or damaged: {count} {what} need at least {count * size:,} bytes, {left} are left"
            )
        return count

    def end(self) -> None:
        if self.position < len(self.content):
            raise self.error(f"damaged: {len(self.content) - self.position:,} bytes follow the last record")


def _binary_cameras(reader: _Reader) -> dict[int, ColmapCamera]:
    cameras: dict[int, ColmapCamera] = {}
    for _ in range(reader.count("cameras", 40)):
        camera_id, model_id, width, height = (int(v) for v in reader.values("<IiQQ", "a camera"))
        if model_id not in MODELS_BY_ID:
            raise reader.error(f"camera {camera_id}: expected a model from 0 to {max(MODELS_BY_ID)}, found {model_id}")
        if camera_id in cameras:
            raise reader.error(f"expected cameras of different ids, found {camera_id} twice")
        model, n_parameters = MODELS_BY_ID[model_id]
        params = tuple(float(v) for v in reader.values(f"<{n_parameters}d", f"camera {camera_id}"))
        cameras[camera_id] = ColmapCamera(model, width, height, params)
    reader.end()
    return cameras


def _binary_images(reader: _Reader) -> list[ColmapImage]:
    images = []
    for _ in range(reader.count("images", 73)):
        number, *pose = reader.values("<I7d", "an image")
        image_id = int(number)
        camera_id = int(reader.values("<I", f"image {image_id}")[0])
        end = reader.content.find(b"\0", reader.position, reader.position + NAME_BYTES_MAX)
        if end < 0:
            raise reader.error(f"image {image_id}: expected a name of at most {NAME_BYTES_MAX:,} bytes that ends in 0")
        raw = reader.content[reader.position : end]
        reader.position = end + 1
        count = reader.count(f"observations of image {image_id}", 24)
        start = reader.skip(24 * count, f"image {image_id}")
        points = np.frombuffer(reader.content, "<i8", 3 * count, start)[2::3]
        images.append(_image(reader.path, image_id, raw, camera_id, pose, points[points >= 0]))
    reader.end()
    return images


def _binary_points(reader: _Reader) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    count = reader.count("points", 51)
    starts = np.empty(count, np.int64)
    for i in range(count):
        starts[i] = reader.skip(51, "a point")
        reader.skip(8 * struct.unpack_from("<Q", reader.content, reader.position - 8)[0], f"the track of point {i}")
    reader.end()
    dtype = np.dtype([("id", "<i8"), ("xyz", "<f8", 3), ("rgb", "u1", 3)])
    content = np.frombuffer(reader.content, np.uint8)
    ids, points, colors = np.empty(count, np.int64), np.empty((count, 3)), np.empty((count, 3), np.uint8)
    for first in range(0, count, GATHER_RECORDS):
        part = slice(first, first + GATHER_RECORDS)
        records = content[starts[part, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
        ids[part], points[part], colors[part] = records["id"], records["xyz"], records["rgb"]
    return ids, points, colors


def _lines(path: Path, header_counts: dict[str, int]) -> Iterator[tuple[int, bytes]]:
    """Yields the number and content of each line that is not a comment; stores the count of the header in
    `header_counts`."""
    with open_file(path) as file:
        for number in range(1, 1 << 62):
            line = file.readline(LINE_BYTES_MAX)
            if not line:
                break
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) == LINE_BYTES_MAX:
                raise FileError(f"{path}: line {number}: expected at most {LINE_BYTES_MAX >> 20} MiB")
            if line.startswith(b"#"):
                if count := re.match(rb"#\s*Number of (?:cameras|images|points): (\d{1,18})\b", line):
                    header_counts[path.stem] = int(count[1])
                continue
            yield number, line.strip()


def _parse_lines(path: Path, parse: Callable[[Sequence[bytes], Path], T], header_counts: dict[str, int]) -> Iterator[T]:
    """Yields the parsed nonempty lines."""
    for number, line in _lines(path, header_counts):
        if line:
            try:
                yield parse(line.split(None, 8 if path.stem == "points3D" else 20), path)
            except FileError:
                raise
            except (ValueError, LookupError, OverflowError) as error:
                raise _line_error(path, number, line) from error


def _line_error(path: Path, number: int, line: bytes) -> FileError:
    expected = {
        "cameras": "ID MODEL WIDTH HEIGHT PARAMETERS",
        "images": "ID QW QX QY QZ TX TY TZ CAMERA NAME, and a line of X Y POINT",
        "points3D": "ID X Y Z R G B ERROR TRACK",
    }[path.stem]
    return FileError(f"{path}: line {number}: expected {expected}, found {line[:60].decode('ascii', 'replace')!r}")


def _text_cameras(path: Path, header_counts: dict[str, int]) -> dict[int, ColmapCamera]:
    cameras: dict[int, ColmapCamera] = {}
    for camera_id, camera in _parse_lines(path, _text_camera, header_counts):
        if camera_id in cameras:
            raise FileError(f"{path}: expected cameras of different ids, found {camera_id} twice")
        cameras[camera_id] = camera
    return cameras


def _text_camera(words: Sequence[bytes], path: Path) -> tuple[int, ColmapCamera]:
    camera_id, model, width, height = int(words[0]), words[1].decode(), int(words[2]), int(words[3])
    params = tuple(float(word) for word in words[4:])
    if model not in N_PARAMETERS or len(params) != N_PARAMETERS[model]:
        expected = N_PARAMETERS.get(model, "a known model with its")
        raise FileError(f"{path}: camera {camera_id}: {model}: expected {expected} parameters, found {len(params)}")
    return camera_id, ColmapCamera(model, width, height, params)


def _text_images(path: Path, header_counts: dict[str, int]) -> Iterator[ColmapImage]:
    header: list[bytes] = []
    # The observation line of the last image may be missing.
    for number, line in itertools.chain(_lines(path, header_counts), [(0, b"")]):
        if not header:
            header = line.split(None, 9)
            if header and len(header) < 10:
                raise _line_error(path, number, line)
            continue
        words = line.split()
        try:
            if len(words) % 3:
                raise ValueError
            points = np.array([int(word) for word in words[2::3]], np.int64)
            pose = [float(word) for word in header[1:8]]
            yield _image(path, int(header[0]), header[9], int(header[8]), pose, points[points >= 0])
        except FileError:
            raise
        except (ValueError, OverflowError) as error:
            raise _line_error(path, number, line) from error
        header = []


def _text_points(
    path: Path, header_counts: dict[str, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    ids, points, colors = array.array("q"), array.array("d"), array.array("B")

    def parse(words: Sequence[bytes], _path: Path) -> None:
        ids.append(int(words[0]))
        points.extend([float(word) for word in words[1:4]])
        colors.extend([int(word) for word in words[4:7]])
        if len(words) < 8:
            raise ValueError

    for _ in _parse_lines(path, parse, header_counts):
        pass
    return (
        np.array(ids, np.int64),
        np.array(points, np.float64).reshape(-1, 3),
        np.array(colors, np.uint8).reshape(-1, 3),
    )


def _image(
    path: Path,
    image_id: int,
    raw: bytes,
    camera_id: int,
    pose: Sequence[int | float],
    point_ids: npt.NDArray[np.int64],
) -> ColmapImage:
    """Returns an image after checking its name and pose."""
    name = os.fsdecode(raw)
    norm = math.hypot(*pose[:4])
    if not abs(norm - 1) <= NORM_TOLERANCE:
        raise FileError(f"{path}: image {image_id}: expected a quaternion of norm 1, found {tuple(pose[:4])}")
    if not all(abs(value) <= COORDINATE_MAX for value in pose[4:]):
        raise FileError(
            f"{path}: image {image_id}: expected a translation of magnitude at most {COORDINATE_MAX:.0e}, found "
            f"{tuple(pose[4:])}"
        )
    if not name or "\0" in name:
        raise FileError(f"{path}: image {image_id}: expected a file name, found {name!r}")
    if not stays_inside(name):
        raise FileError(f"{path}: image {image_id}: expected a path inside the folder of images, found {name!r}")
    return ColmapImage(image_id, name, camera_id, tuple(value / norm for value in pose[:4]), tuple(pose[4:]), point_ids)
