"""Placing photographs and points in a frame that single precision holds, before they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ...arguments import check_choice
from ...errors import ArgumentError
from ..cameras import Camera
from ..extents import SHOWN_POINTS, are_close, camera_positions, near_plane, shows, spread
from .local_frame import LocalFrame, choose_frame, move_points, move_pose, normalizing
from .photographs import CameraKind, OnProgress, Photograph, read_views, split_views
from .views import Capture, Color

Frame = LocalFrame | Literal["model", "local", "normalized"]
"""The frame of a capture: that of the model, the local one, the normalized one, or the local frame of a run."""

NAMED_MAX = 3
"""Number of photographs that a note names."""

DrawPoints = Callable[[Sequence[Camera]], Tensor]
"""Returns points [P, 3] fp64 in the frame of cameras."""


@dataclasses.dataclass(frozen=True, eq=False)
class Placed:
    """Photographs and points in the frame of a capture.

    Attributes:
        photographs: With poses and points in this frame, and near planes.
        left_out: Names of the others, whose cameras are far from these and do not show the scene.
        points: [P, 3] fp32.
        frame: How this frame and that of the model belong together.
        notes: About the cameras.
    """

    photographs: list[Photograph]
    left_out: tuple[str, ...]
    points: Tensor
    frame: LocalFrame
    notes: list[str]


def place(
    photographs: Sequence[Photograph],
    points: Tensor | DrawPoints,
    frame: Frame,
    file: object,
    *,
    keep_far: bool = False,
) -> Placed:
    """Moves photographs and points from the frame of the files to that of a capture, in double precision.

    The result is that without the photographs that are left out.

    Args:
        points: [P, 3] fp64, or what draws them in the local frame.
        frame: The frame of the capture.
        file: What they were read from, for the notes.
        keep_far: Whether no photograph is left out.

    Raises:
        ArgumentError: The frame is normalized, and all cameras are at one place.
    """
    positions = torch.stack([_position(photograph) for photograph in photographs])
    names = [photograph.name for photograph in photographs]
    notes: list[str] = []
    given = points if isinstance(points, Tensor) else None
    if not isinstance(frame, LocalFrame):
        check_choice("frame", frame, ("model", "local", "normalized"))
    if isinstance(frame, LocalFrame):
        local = frame
    elif frame == "normalized":
        world = normalizing(torch.stack([photograph.viewmat for photograph in photographs]), positions)
        if world is None:
            raise ArgumentError(
                f"capture: expected cameras at different positions, found all {len(names)} at one position"
            )
        local = LocalFrame(world)
    else:
        local, note = choose_frame(positions, given, file)
        notes += note
    to_local = local.to_local()
    moved = [_moved(photograph, to_local) for photograph in photographs]
    cameras = [_camera(photograph) for photograph in moved]
    scene_points = points(cameras) if callable(points) else move_points(points.double(), to_local)
    far = (~are_close(positions)).nonzero().flatten().tolist()
    lost = [i for i in far if not shows(cameras[i], _seen(moved[i], scene_points))]
    if lost and not keep_far:
        rest = [photograph for i, photograph in enumerate(photographs) if i not in lost]
        placed = place(rest, points, frame, file)
        left_out = tuple(names[i] for i in lost)
        notes = [_note_lost(names, positions, lost, file), *placed.notes]
        return dataclasses.replace(placed, left_out=(*left_out, *placed.left_out), notes=notes)
    if far:
        notes.append(_note_far(names, positions, far, file))
    if not isinstance(frame, LocalFrame):
        near = near_plane(cameras, scene_points)
        local = dataclasses.replace(local, near=None if near is None else near * local.unit)
    if frame == "model" and not local.is_of_model:
        moved = [_moved(photograph, local.world) for photograph in photographs]
        scene_points = (
            local.points_of_model(scene_points) if given is None else move_points(given.double(), local.world)
        )
        local = local.model()
    near = None if local.near is None else local.near / local.unit
    return Placed([dataclasses.replace(p, near=near) for p in moved], (), scene_points.float(), local, notes)


def read_placed(
    placed: Placed,
    colors: Tensor,
    held_out: Sequence[bool],
    background: Color | None,
    on_progress: OnProgress | None,
    cameras: CameraKind,
) -> Capture:
    """Reads the photographs that were placed, as :func:`read_views` does. Returns their capture.

    Its notes are those on photographs that were read. Raises FileError if no training view is left.
    """
    views = read_views(placed.photographs, background, on_progress, cameras)
    train, test, skipped = split_views(views, held_out)
    return Capture(
        tuple(train),
        tuple(test),
        placed.points,
        colors,
        background or (0.0, 0.0, 0.0),
        placed.frame.to_local(),
        tuple(skipped),
        frame=placed.frame,
        left_out=placed.left_out,
    )


def _seen(photograph: Photograph, points: Tensor) -> Tensor:
    """Returns the points that a photograph is known to show, or else all points of the scene."""
    observed = photograph.points
    return points if observed is None or len(observed) < SHOWN_POINTS else observed


def _note_lost(names: Sequence[str], positions: Tensor, lost: Sequence[int], file: object) -> str:
    """Returns a note on the cameras [C, 3] that are left out."""
    return (
        f"{file}: left out {_name(names, lost)}, whose cameras are far from the others, {_distance(positions, lost)}, "
        "and show nothing of the points, or a spot; their poses are probably wrong. To keep them: tsplat train "
        "--keep-far, or keep_far=True"
    )


def _note_far(names: Sequence[str], positions: Tensor, far: Sequence[int], file: object) -> str:
    """Returns a note on the cameras [C, 3] that are far from the others, and kept."""
    return (
        f"{file}: the cameras of {_name(names, far)} are far from the others, {_distance(positions, far)}; the extent "
        "of the scene leaves them out"
    )


def _name(names: Sequence[str], chosen: Sequence[int]) -> str:
    more = f" and {len(chosen) - NAMED_MAX} more" if len(chosen) > NAMED_MAX else ""
    return f"{len(chosen)} of {len(names)} photographs ({', '.join(names[i] for i in chosen[:NAMED_MAX])}{more})"


def _distance(positions: Tensor, far: Sequence[int]) -> str:
    center, extent = spread(positions)
    farthest = float((positions[far] - center).norm(dim=-1).max())
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


def _moved(photograph: Photograph, transform: Tensor) -> Photograph:
    points = photograph.points
    return dataclasses.replace(
        photograph,
        viewmat=move_pose(photograph.viewmat, transform, photograph.position),
        position=None if photograph.position is None else move_points(photograph.position[None], transform)[0],
        points=None if points is None else move_points(points.double(), transform),
    )
