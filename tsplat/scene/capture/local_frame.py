"""The local frame of a capture, in which a run trains, so that neither the unit nor the origin of its files matter.

The origin is subtracted in double precision, and lengths are divided by a power of two, which changes no bit of their
mantissas: the same scene in other units, or moved without rounding, is trained with equal bits. The run writes its
cameras and models in the *frame of the model*, which is that of the files unless these are too far from their origin
for single precision, or the capture is normalized.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...arguments import to_float
from ...errors import ArgumentError, FileError
from ...precision import fp64, identity
from ..cameras import UP, Camera, move_camera
from ..extents import EXTENT_MIN, POINTS_MAX, are_inliers, center_and_extent, origin_and_unit
from ..gaussians import Gaussians
from ..rotation import similarity, similarity_scale

UP_NORM_MIN = 1e-6
"""Shortest mean of the cameras' up directions that counts as a common up direction."""


@dataclasses.dataclass(frozen=True, eq=False)
class LocalFrame:
    """Transforms between the frames of files, of the model and of training.

    Attributes:
        world: [4, 4] fp64, the similarity transform from the frame of the files to that of the model.
        origin: [3] origin of the local frame, in that of the model; zero if the model is relative to it.
        unit: A power of two, the unit of the local frame in that of the model.
        near: Depth of the near plane of the cameras, in the unit of the model; None if it is unknown.
        kept: Tensors of Gaussians by name, in the frame of the model, that training does not change: there and back,
            they would be rounded. Not a part of :meth:`to_json`.
    """

    world: Tensor = dataclasses.field(default_factory=similarity)
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    unit: float = 1.0
    near: float | None = None
    kept: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def is_of_model(self) -> bool:
        """Returns whether the local frame is that of the model."""
        return self.unit == 1 and not any(self.origin)

    @property
    def moves(self) -> bool:
        """Returns whether the frame of the model differs from that of the files."""
        return not torch.equal(self.world, similarity())

    def to_local(self) -> Tensor:
        """Returns the similarity transform from the frame of the files to the local one, [4, 4] fp64."""
        matrix = self.world.clone()
        matrix[:3, 3] -= matrix.new_tensor(self.origin)
        matrix[:3] /= self.unit
        return matrix

    def model(self) -> "LocalFrame":
        """Returns a frame with the same model, and the local frame equal to that of the model."""
        return dataclasses.replace(self, origin=(0.0, 0.0, 0.0), unit=1.0)

    def points_of_model(self, points: Tensor) -> Tensor:
        """Moves points [P, 3] from the local frame to that of the model. [P, 3] fp64"""
        return self.unit * points.double() + fp64(self.origin).to(points.device)

    def gaussians_of_model(self, gaussians: Gaussians) -> Gaussians:
        """Moves Gaussians from the local frame to that of the model."""
        if self.is_of_model:
            return gaussians
        moved = dataclasses.replace(
            gaussians,
            means=self.points_of_model(gaussians.means).to(gaussians.means),
            log_scales=gaussians.log_scales + math.log(self.unit),
        )
        kept: dict[str, Any] = dict(self.kept)
        return dataclasses.replace(moved.as_surfels() if gaussians.surfels else moved, **kept)

    def gaussians_to_local(self, gaussians: Gaussians) -> Gaussians:
        """Moves Gaussians from the frame of the model to the local one."""
        if self.is_of_model:
            return gaussians
        offsets = gaussians.means.double() - fp64(self.origin).to(gaussians.means.device)
        moved = dataclasses.replace(
            gaussians,
            means=(offsets / self.unit).to(gaussians.means),
            log_scales=gaussians.log_scales - math.log(self.unit),
        )
        return moved.as_surfels() if gaussians.surfels else moved

    def camera_of_model(self, camera: Camera) -> Camera:
        """Moves a camera from the local frame to that of the model."""
        return camera if self.is_of_model else move_camera(camera, similarity(None, self.origin, self.unit))

    def to_json(self) -> dict[str, Any]:
        """Returns the frame as JSON values."""
        return {"world": self.world.tolist(), "origin": list(self.origin), "unit": self.unit, "near": self.near}


def frame_from_json(values: Any, where: str) -> LocalFrame:
    """Returns the frame of the values of :meth:`LocalFrame.to_json`. Raises FileError for other values; messages start
    with `where`."""
    try:
        world = fp64(values["world"])
        x, y, z = map(float, values["origin"])
        unit, near = float(values["unit"]), values["near"]
        numbers = [x, y, z, unit, *world.flatten().tolist(), 0.0 if near is None else to_float(near) or math.nan]
        if world.shape != (4, 4) or not unit > 0 or not all(map(math.isfinite, numbers)):
            raise ValueError("numbers out of range")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{where}: expected a local frame with world, origin, unit and near ({error})") from error
    return LocalFrame(world, (x, y, z), unit, None if near is None else float(near))


def choose_frame(positions: Tensor, points: Tensor | None, file: object) -> tuple[LocalFrame, list[str]]:
    """Returns the local frame of cameras, without a near plane, and a note if the model is not in that of the files.

    Its unit is the power of two next to their extent, its origin the multiple of the unit next to their center; cameras
    that are far from the others do not count. If all are at one place, the points [P, 3] give the unit.

    Args:
        positions: [C, 3] fp64, in the frame of the files.
        points: [P, 3] fp64, in the frame of the files; None if there are none.
        file: File that they were read from, for the notes.
    """
    center, extent = center_and_extent(positions)
    if points is not None and len(points):
        sample = points[:: 1 + len(points) // POINTS_MAX]
        extent = max(extent, EXTENT_MIN * float((sample - center).norm(dim=-1).median()))
    (x, y, z), unit, is_far = origin_and_unit(center, extent)
    if not is_far:
        return LocalFrame(origin=(x, y, z), unit=unit), []
    times = max(map(abs, (x, y, z))) / unit
    note = (
        f"{file}: the cameras are {times:,.0f} times as far from the origin as from each other, which single precision "
        f"cannot hold; all coordinates are relative to ({x:.15g}, {y:.15g}, {z:.15g})"
    )
    return LocalFrame(similarity(translation=(-x, -y, -z)), unit=unit), [note]


def normalizing_transform(poses: Tensor, positions: Tensor) -> Tensor:
    """Returns the transform [4, 4] fp64 of :func:`normalize_capture`.

    `poses` are world-to-camera matrices [C, 4, 4], `positions` [C, 3] their centers, both fp64. Raises ArgumentError if
    all cameras are at one place.
    """
    center, _ = center_and_extent(positions)
    farthest = float((positions[are_inliers(positions)] - center).norm(dim=-1).max())
    if not farthest > 1e-9 * float(center.norm()):
        raise ArgumentError(f"capture: expected cameras at different positions, found all {len(poses)} at one position")
    scale = 1 / farthest
    # The second row of a world-to-camera rotation is the camera's down direction in the world frame.
    rotation = _rotation_between(-poses[:, 1, :3].mean(0), fp64(UP))
    return similarity(rotation, (-scale * rotation @ center).tolist(), scale)


def move_pose(viewmat: Tensor, transform: Tensor, position: Tensor | None = None) -> Tensor:
    """Returns a world-to-camera matrix [4, 4] fp64 after a similarity transform [4, 4] fp64 of the world.

    A `position` [3] fp64, if the file has it instead of a translation, saves a rounding far from the origin.
    """
    if _is_scaled_only(transform):
        scale, rotation = float(transform[0, 0]), viewmat[:3, :3]
    else:
        scale = similarity_scale(transform)
        rotation = viewmat[:3, :3] @ transform[:3, :3].T / scale
    if position is not None:
        translation = -rotation @ move_points(position[None], transform)[0]
    else:
        translation = scale * viewmat[:3, 3] - rotation @ transform[:3, 3]
    return similarity(rotation, translation.tolist())


def move_points(points: Tensor, transform: Tensor) -> Tensor:
    """Returns points [P, 3] fp64 after a similarity transform [4, 4] fp64."""
    linear, translation = transform[:3, :3], transform[:3, 3]
    if _is_scaled_only(transform):
        # The difference first: it is exact where the translation cancels what is far from the origin.
        scale = linear[0, 0]
        return scale * (points + translation / scale)
    return points @ linear.T + translation


def _is_scaled_only(transform: Tensor) -> bool:
    """Returns whether a similarity transform turns nothing, so that it can be applied without rounding."""
    return torch.equal(transform[:3, :3], transform[0, 0] * identity(3))


def _rotation_between(start: Tensor, end: Tensor) -> Tensor:
    """Returns the smallest rotation [3, 3] from one direction [3] to another (Rodrigues' formula)."""
    if start.norm() < UP_NORM_MIN:
        return identity(3)
    a, b = normalize(start, dim=0), normalize(end, dim=0)
    if float(a @ b) < -1 + 1e-12:
        # Opposite directions: a rotation by 180 degrees about any perpendicular axis.
        axis = normalize(torch.linalg.cross(a, identity(3)[a.abs().argmin()]), dim=0)
        return 2 * torch.outer(axis, axis) - identity(3)
    x, y, z = torch.linalg.cross(a, b).tolist()
    skew = fp64([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return identity(3) + skew + skew @ skew / (1 + a @ b)
