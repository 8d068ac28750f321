"""Moves photographs with poses to a frame that suits single precision, and reads them as a capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...scalars import check_choice, check_size
from ...support.suggestions import list_names
from ..cameras import Camera
from ..extents import (
    SHOWN_POINTS,
    are_inliers,
    camera_positions,
    center_and_extent,
    near_plane,
    shows_points,
)
from ..option_types import CameraKind, Color, check_test_every
from .initial_points import N_RANDOM, DrawPoints, InitialPoints
from .local_frame import LocalFrame, choose_frame, move_points, move_pose, normalizing_transform
from .photographs import (
    TEST_EVERY,
    OnProgress,
    Photograph,
    camera_warnings,
    is_held_out,
    limit_sizes,
    note_lenses,
    read_views,
    split_views,
)
from .views import Capture

FrameChoice = LocalFrame | Literal["model", "local", "normalized"]
"""The frame of a capture: by name, or the local frame of an existing run."""

NAMED_MAX = 3
"""Maximum number of photographs that a note names."""

HeldOut = Callable[[Sequence[Photograph], Sequence[str]], list[bool]]
"""Returns which photographs are held out, given the photographs and the notes so far."""


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of all readers of captures, named like the arguments of :func:`tsplat.scene.read_colmap`.

    Raises:
        ArgumentError: A number is out of range.
    """

    downscale: int = 1
    test_every: int = TEST_EVERY
    background: Color | None = None
    n_random: int = N_RANDOM
    seed: int = 0
    strict: bool = False
    on_progress: OnProgress | None = None
    cameras: CameraKind = "undistorted"
    max_size: int = 0
    frame: FrameChoice = "model"
    keep_far: bool = False

    def __post_init__(self) -> None:
        check_size("downscale", self.downscale)
        check_size("n_random", self.n_random)
        check_test_every(self.test_every)


def read_posed(
    photographs: Sequence[Photograph],
    points: InitialPoints,
    file: Path,
    options: ReadOptions,
    notes: Sequence[str],
    held_out: HeldOut | None = None,
) -> Capture:
    """Reads existing photographs with :func:`read_views`, and returns their capture.

    Args:
        photographs: Photographs with poses and points in the frame of the files.
        points: Initial points.
        file: File that the cameras were read from, for the notes.
        options: Options of the reader.
        notes: First notes of the capture.
        held_out: Selects held-out photographs; None for every ``test_every``-th photograph.

    Raises:
        ArgumentError: The frame is normalized, and all cameras have the same position.
        FileError: A file cannot be read, or no training view is left.
    """
    notes = [*notes, *note_lenses(photographs, file, options.cameras), *camera_warnings(photographs, file)]
    scaled = [dataclasses.replace(p, downscale=1 if p.is_downscaled else options.downscale) for p in photographs]
    photographs, size_notes = limit_sizes(scaled, options.max_size if options.downscale == 1 else 0)
    placed = place(photographs, points.positions, options.frame, file, keep_far=options.keep_far)
    notes = [*notes, *size_notes, *placed.notes]
    if held_out is None:
        is_test = [is_held_out(i, options.test_every) for i in range(len(placed.photographs))]
    else:
        is_test = held_out(placed.photographs, notes)
    views = read_views(placed.photographs, options.background, options.on_progress, options.cameras)
    train, test, skipped = split_views(views, is_test)
    return Capture(
        tuple(train),
        tuple(test),
        placed.points,
        points.colors,
        options.background or (0.0, 0.0, 0.0),
        placed.frame.to_local(),
        (*notes, *skipped, *points.notes),
        points.are_random,
        placed.frame,
        placed.left_out,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Placed:
    """Photographs and points in the frame of a capture.

    Attributes:
        photographs: Photographs with poses and points in this frame, and with near planes.
        left_out: Names of photographs that are left out because their cameras are outliers that do not show the scene.
        points: [P, 3] fp32 initial points in this frame.
        frame: Relation between this frame and the frame of the model.
        notes: Notes about the cameras.
    """

    photographs: list[Photograph]
    left_out: tuple[str, ...]
    points: Tensor
    frame: LocalFrame
    notes: list[str]


def place(
    photographs: Sequence[Photograph],
    points: Tensor | DrawPoints,
    frame: FrameChoice,
    file: object,
    *,
    keep_far: bool = False,
) -> Placed:
    """Moves photographs and points from the frame of the files to the frame of a capture, in double precision.

    Photographs that are left out do not affect the result.

    Args:
        photographs: Photographs in the frame of the files.
        points: [P, 3] fp64, or a function that draws them in the local frame.
        frame: The frame of the capture.
        file: File that the photographs were read from, for the notes.
        keep_far: Whether to keep all photographs.

    Raises:
        ArgumentError: The frame is normalized, and all cameras have the same position.
    """
    positions = torch.stack([_position(photograph) for photograph in photographs])
    names = [photograph.name for photograph in photographs]
    notes: list[str] = []
    given_points = points if isinstance(points, Tensor) else None
    if isinstance(frame, LocalFrame):
        local = frame
    elif frame == "normalized":
        local = LocalFrame(normalizing_transform(torch.stack([p.viewmat for p in photographs]), positions))
    else:
        check_choice("frame", frame, ("model", "local", "normalized"))
        local, note = choose_frame(positions, given_points, file)
        notes += note
    to_local = local.to_local()
    moved = [_move(photograph, to_local) for photograph in photographs]
    cameras = [_camera(photograph) for photograph in moved]
    scene_points = points(cameras) if callable(points) else move_points(points.double(), to_local)
    outliers = (~are_inliers(positions)).nonzero().flatten().tolist()
    blind = [i for i in outliers if not shows_points(cameras[i], _seen(moved[i], scene_points))]
    if blind and not keep_far:
        rest = [photograph for i, photograph in enumerate(photographs) if i not in blind]
        placed = place(rest, points, frame, file)
        left_out = tuple(names[i] for i in blind)
        notes = [_note_left_out(names, positions, blind, file), *placed.notes]
        return dataclasses.replace(placed, left_out=(*left_out, *placed.left_out), notes=notes)
    if outliers:
        notes.append(_note_outliers(names, positions, outliers, file))
    if not isinstance(frame, LocalFrame):
        near = near_plane(cameras, scene_points)
        local = dataclasses.replace(local, near=None if near is None else near * local.unit)
    if frame == "model" and not local.is_model_frame:
        moved = [_move(photograph, local.world) for photograph in photographs]
        if given_points is None:
            scene_points = local.points_of_model(scene_points)
        else:
            scene_points = move_points(given_points.double(), local.world)
        local = local.model()
    near = None if local.near is None else local.near / local.unit
    return Placed([dataclasses.replace(p, near=near) for p in moved], (), scene_points.float(), local, notes)


def _seen(photograph: Photograph, points: Tensor) -> Tensor:
    """Returns the points that are observed in a photograph, or all points of the scene if these are unknown."""
    observed = photograph.points
    return points if observed is None or len(observed) < SHOWN_POINTS else observed


def _note_left_out(names: Sequence[str], positions: Tensor, chosen: Sequence[int], file: object) -> str:
    """Returns a note about the cameras that are left out, given all positions [C, 3]."""
    return (
        f"{file}: left out {_name(names, chosen)}, whose cameras are far from the others, "
        f"{_distance(positions, chosen)}, and show nothing of the points, or a spot; their poses are probably wrong. "
        "To keep them: tsplat train --keep-far, or keep_far=True"
    )


def _note_outliers(names: Sequence[str], positions: Tensor, outliers: Sequence[int], file: object) -> str:
    """Returns a note about outlier cameras that are kept, given all positions [C, 3]."""
    return (
        f"{file}: the cameras of {_name(names, outliers)} are far from the others, {_distance(positions, outliers)}; "
        "the extent of the scene leaves them out"
    )


def _name(names: Sequence[str], chosen: Sequence[int]) -> str:
    return f"{len(chosen)} of {len(names):,} photographs ({list_names([names[i] for i in chosen], NAMED_MAX)})"


def _distance(positions: Tensor, outliers: Sequence[int]) -> str:
    center, extent = center_and_extent(positions)
    farthest = float((positions[outliers] - center).norm(dim=-1).max())
    return f"up to {farthest / extent:.3g} times the extent of these"


def _position(photograph: Photograph) -> Tensor:
    if photograph.position is not None:
        return photograph.position
    return camera_positions([photograph.viewmat])[0]


def _camera(photograph: Photograph) -> Camera:
    """Returns the camera of a photograph at full size, in double precision."""
    lens = photograph.lens
    K = lens.intrinsics(lens.width, lens.height)
    return Camera(photograph.viewmat, K, lens.width, lens.height, lens.model)


def _move(photograph: Photograph, transform: Tensor) -> Photograph:
    points = photograph.points
    return dataclasses.replace(
        photograph,
        viewmat=move_pose(photograph.viewmat, transform, photograph.position),
        position=None if photograph.position is None else move_points(photograph.position[None], transform)[0],
        points=None if points is None else move_points(points.double(), transform),
    )
