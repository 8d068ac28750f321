"""The local frame in which a run trains, which makes training independent of the unit and origin of the files.

The origin is subtracted in double precision, and lengths are divided by a power of two, which does not change their
mantissas. If a scene is scaled by a power of two or translated without rounding, training therefore produces the same
bits. The run writes its cameras and models in the *frame of the model*. It equals the frame of the files, unless these
are too far from their origin for single precision, or the capture is normalized.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...errors import ArgumentError, FileError
from ...precision import fp64, identity
from ...scalars import to_float
from ..cameras import UP, Camera, move_camera
from ..extents import EXTENT_MIN, POINTS_MAX, are_inliers, center_and_extent, origin_and_unit
from ..gaussians import Gaussians
from ..rotation import similarity, similarity_scale

UP_NORM_MIN = 1e-6
"""Minimum length of the mean of the cameras' up directions for a common up direction."""


@dataclasses.dataclass(frozen=True, eq=False)
class LocalFrame:
    """Transforms between the frame of the files, the frame of the model and the local frame.

    Attributes:
        world: [4, 4] fp64, similarity transform from the frame of the files to the frame of the model.
        origin: [3] origin of the local frame in the frame of the model; zero if the model is relative to it.
        unit: Unit of the local frame in units of the model, a power of two.
        near: Near plane of the cameras in units of the model; None if it is unknown.
        kept: Name -> tensor of Gaussians in the frame of the model that training does not change. They are kept because
            transforming them to the local frame and back would round them. Not part of :meth:`to_json`.
    """

    world: Tensor = dataclasses.field(default_factory=similarity)
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    unit: float = 1.0
    near: float | None = None
    kept: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def is_model_frame(self) -> bool:
        """Returns whether the local frame equals the frame of the model."""
        return self.unit == 1 and not any(self.origin)

    @property
    def is_moved(self) -> bool:
        """Returns whether the frame of the model differs from the frame of the files."""
        return not torch.equal(self.world, similarity())

    def to_local(self) -> Tensor:
        """Returns the similarity transform from the frame of the files to the local frame, [4, 4] fp64."""
        matrix = self.world.clone()
        matrix[:3, 3] -= matrix.new_tensor(self.origin)
        matrix[:3] /= self.unit
        return matrix

    def model(self) -> "LocalFrame":
        """Returns a frame with the same frame of the model, which is also its local frame."""
        return dataclasses.replace(self, origin=(0.0, 0.0, 0.0), unit=1.0)

    def points_of_model(self, points: Tensor) -> Tensor:
        """Moves points [P, 3] from the local frame to the frame of the model, [P, 3] fp64."""
        return self.unit * points.double() + fp64(self.origin).to(points.device)

    def gaussians_of_model(self, gaussians: Gaussians) -> Gaussians:
        """Moves Gaussians from the local frame to the frame of the model."""
        if self.is_model_frame:
            return gaussians
        moved = dataclasses.replace(
            gaussians,
            means=self.points_of_model(gaussians.means).to(gaussians.means),
            log_scales=gaussians.log_scales + math.log(self.unit),
        )
        kept: dict[str, Any] = dict(self.kept)
        return dataclasses.replace(moved.as_surfels() if gaussians.surfels else moved, **kept)

    def gaussians_to_local(self, gaussians: Gaussians) -> Gaussians:
        """Moves Gaussians from the frame of the model to the local frame."""
        if self.is_model_frame:
            return gaussians
        offsets = gaussians.means.double() - fp64(self.origin).to(gaussians.means.device)
        moved = dataclasses.replace(
            gaussians,
            means=(offsets / self.unit).to(gaussians.means),
            log_scales=gaussians.log_scales - math.log(self.unit),
        )
        return moved.as_surfels() if gaussians.surfels else moved

    def camera_of_model(self, camera: Camera) -> Camera:
        """Moves a camera from the local frame to the frame of the model."""
        return camera if self.is_model_frame else move_camera(camera, similarity(None, self.origin, self.unit))

    def to_json(self) -> dict[str, Any]:
        """Returns the frame as JSON values."""
        return {"world": self.world.tolist(), "origin": list(self.origin), "unit": self.unit, "near": self.near}


def frame_from_json(values: Any, where: str) -> LocalFrame:
    """Converts the values of :meth:`LocalFrame.to_json` to a frame. Raises a FileError that begins with `where` for
    others."""
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
    """Chooses the local frame for cameras, without a near plane. Also returns a note if the frame of the model differs
    from the frame of the files.

    The unit is the power of two closest to the extent of the cameras, the origin is the multiple of the unit closest to
    their center. Outliers are ignored. If all cameras have the same position, the points give the unit.

    Args:
        positions: [C, 3] fp64, camera positions in the frame of the files.
        points: [P, 3] fp64, in the frame of the files; None if there are none.
        file: File that the cameras were read from, for the notes.
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
    all cameras have the same position.
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

    If the file has a `position` [3] fp64 instead of a translation, using it avoids a rounding far from the origin.
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
        # Subtract first: the difference is exact if the translation cancels large coordinates.
        scale = linear[0, 0]
        return scale * (points + translation / scale)
    return points @ linear.T + translation


def _is_scaled_only(transform: Tensor) -> bool:
    """Returns whether a similarity transform has no rotation, so that it can be applied without rounding."""
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
