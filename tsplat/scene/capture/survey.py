"""Shared parts of the readers of survey software: photographs by name, and the capture of photographs with poses."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from torch import Tensor

from ...arguments import describe
from ...errors import ArgumentError, FileError
from ...support.reading import is_possible, stays_inside
from .initial_points import bounds, random_points, read_points
from .photographs import (
    CameraKind,
    OnProgress,
    Photograph,
    is_held_out,
    limit_sizes,
    note_doubts,
    note_lenses,
)
from .placement import DrawPoints, Frame, place, read_placed
from .views import Capture, Color

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp")
"""Suffixes of photographs, in lower case, whose names in the file may have none."""


def find_images(file: Path, labels: Sequence[str]) -> list[Path]:
    """Returns the photographs of labels, which may be paths of another machine; where none is, the expected path."""
    folders = [folder for folder in (file.parent / "images", file.parent) if folder.is_dir()]
    known: dict[str, Path] = {}
    for folder in reversed(folders):
        entries = [entry for entry in sorted(folder.iterdir()) if entry.suffix.lower() in SUFFIXES]
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
    """Returns the name of the view of an image: its path relative to the folder of the file of its camera."""
    return Path(os.path.relpath(image, file.parent)).as_posix()


def read_number(text: str) -> float | str:
    """Returns the number that a text says, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


def read_survey(
    file: Path,
    photographs: Sequence[Photograph],
    notes: Sequence[str],
    *,
    test_every: int,
    background: Color | None,
    n_random: int,
    seed: int,
    on_progress: OnProgress | None,
    cameras: CameraKind,
    max_size: int,
    frame: Frame,
    keep_far: bool,
) -> Capture:
    """Returns the capture of photographs that exist, with the points of the only PLY beside a file, or random ones.

    Args:
        file: The file of the cameras.
        photographs: With poses in the frame of the file.
        notes: What was noted about them, for the notes of the capture.
        test_every, background, n_random, seed, on_progress, cameras, max_size, frame, keep_far: See
            :func:`tsplat.scene.read_colmap`.

    Raises:
        ArgumentError: There are fewer than two photographs.
        FileError: A file is missing or cannot be read.
    """
    if len(photographs) < 2:
        raise ArgumentError(f"{file}: expected at least two photographs with a pose, found {len(photographs)}")
    doubts = [*note_lenses(photographs, file, cameras), *note_doubts(photographs, file)]
    photographs, limited = limit_sizes(photographs, max_size)
    clouds = sorted(file.parent.glob("*.ply"))
    points: Tensor | DrawPoints
    about_points: list[str] = []
    if len(clouds) == 1:
        points, colors = read_points(clouds[0], about_points)
    else:
        points, colors = random_points(bounds, n_random, seed)
        why = f"{len(clouds)} PLY files" if clouds else "no PLY file"
        about_points = [f"{file}: {why} beside it; training starts from {n_random} random points"]
    placed = place(photographs, points, frame, file, keep_far=keep_far)
    held_out = [is_held_out(i, test_every) for i in range(len(placed.photographs))]
    capture = read_placed(placed, colors, held_out, background or (0.0, 0.0, 0.0), on_progress, cameras)
    every = (*notes, *doubts, *limited, *placed.notes, *capture.notes, *about_points)
    return dataclasses.replace(capture, notes=every, random_points=len(clouds) != 1)
