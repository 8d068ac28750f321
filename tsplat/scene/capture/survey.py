"""Functions shared by the readers of survey software: find photographs by name, and create the capture."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from torch import Tensor

from ...errors import ArgumentError, FileError
from ...scalars import describe
from ...support.reading import is_possible, stays_inside
from ..formats.point_clouds import CLOUD_SUFFIXES
from .initial_points import bounds, random_points, read_points
from .lenses import Lens
from .photographs import PHOTOGRAPH_SUFFIXES, Photograph
from .placement import ReadOptions, read_posed
from .views import Capture


def find_images(file: Path, labels: Sequence[str]) -> list[Path]:
    """Finds the photographs for labels, which may be paths of another machine; missing ones get their expected path."""
    folders = [folder for folder in (file.parent / "images", file.parent) if folder.is_dir()]
    known: dict[str, Path] = {}
    for folder in reversed(folders):
        entries = [entry for entry in sorted(folder.iterdir()) if entry.suffix.lower() in PHOTOGRAPH_SUFFIXES]
        known |= {entry.stem.lower(): entry for entry in entries} | {entry.name.lower(): entry for entry in entries}
    paths = []
    for label in labels:
        name = PurePosixPath(label.replace("\\", "/")).name
        path = folders[0] / (name or "unnamed")
        if not name or not stays_inside(name) or not is_possible(path):
            raise FileError(f"{file}: expected labels of cameras that are names of files, found {describe(label)}")
        paths.append(known.get(name.lower(), path))
    return paths


def name_of(image: Path, file: Path) -> str:
    """Returns the view name of an image: its path relative to the folder of the camera file."""
    return Path(os.path.relpath(image, file.parent)).as_posix()


def read_number(text: str) -> float | str:
    """Parses a number; returns the text if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return text


def list_photographs(
    file: Path, cameras: Iterable[tuple[str, Path, tuple[int, Lens], tuple[Tensor, Tensor]]]
) -> list[Photograph]:
    """Returns the photographs of cameras, sorted by name. Raises FileError if two cameras have the same image.

    A camera is a tuple of its name for messages, its image, the index and lens of its physical camera, and its fp64
    world-to-camera matrix and position.
    """
    photographs: dict[Path, Photograph] = {}
    for where, image, (camera_id, lens), (viewmat, position) in cameras:
        if image in photographs:
            raise FileError(f"{where}: another camera has the same photograph, {image.name!r}")
        name = name_of(image, file)
        photographs[image] = Photograph(name, image, lens, viewmat, camera_id, position=position)
    return sorted(photographs.values(), key=lambda photograph: photograph.name)


def read_survey(file: Path, photographs: Sequence[Photograph], notes: Sequence[str], options: ReadOptions) -> Capture:
    """Returns the capture of existing photographs, with the points of the only point cloud beside `file`, or random
    points.

    Args:
        file: The camera file.
        photographs: Photographs with poses in the frame of the file.
        notes: First notes of the capture.
        options: Options of the reader.

    Raises:
        ArgumentError: There are fewer than two photographs.
        FileError: A file is missing or cannot be read.
    """
    if len(photographs) < 2:
        raise ArgumentError(f"{file}: expected at least two photographs with a pose, found {len(photographs)}")
    clouds = sorted(path for path in file.parent.iterdir() if path.suffix.lower() in CLOUD_SUFFIXES and path.is_file())
    if len(clouds) == 1:
        points = read_points(clouds[0])
    else:
        found = f"{len(clouds)} point clouds" if clouds else "no point cloud"
        points = random_points(bounds, options.n_random, options.seed, f"{file}: {found} beside it")
    options = dataclasses.replace(options, background=options.background or (0.0, 0.0, 0.0))
    return read_posed(photographs, points, file, options, notes)
