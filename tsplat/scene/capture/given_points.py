"""Points of a file that training starts from instead of those of the scene, such as a survey's."""

import dataclasses
import os
from pathlib import Path

from torch import Tensor

from .initial_points import read_points
from .local_frame import move_points
from .views import Capture


def replace_points(capture: Capture, path: str | os.PathLike[str]) -> Capture:
    """Returns a capture whose points are those of a file.

    Args:
        capture: As :func:`read_capture` returns it, in any frame.
        path: PLY, LAS, LAZ or E57 file of points in the frame of the files of the capture, which are moved to that of
            the capture in double precision.

    Raises:
        FileError: The file is missing, damaged, or has fewer than two points.
        MissingExtraError: A package that the format needs is not installed.
    """
    initial = read_points(Path(path))
    assert isinstance(initial.positions, Tensor)
    points = move_points(initial.positions, capture.world).float().to(capture.points.device)
    colors = initial.colors.to(capture.points.device)
    notes = (*capture.notes, *initial.notes, f"{path}: training starts from its {len(points):,} points")
    return dataclasses.replace(capture, points=points, colors=colors, notes=notes, random_points=False)
