"""Normalization of captures: centered at the origin, upright, with the farthest camera at distance 1."""

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...errors import ArgumentError
from ..cameras import UP, centers, map_poses
from ..rotation import similarity
from .views import Capture, View

UP_NORM_MIN = 1e-6
"""If the mean of the cameras' up directions is shorter than this, they have no common up direction."""


def normalize_capture(capture: Capture) -> tuple[Capture, Tensor]:
    """Moves the mean camera center to the origin, rotates the mean up direction to -y, and scales to unit size.

    Afterwards the farthest camera is at distance 1 from the origin. Images, intrinsics and the projections of points do
    not change; depths are scaled. The capture is not rotated if the cameras have no common up direction.

    Returns:
        The normalized capture, whose ``world`` includes the transform; and the transform [4, 4] in fp64, from the old
        to the new world frame.

    Raises:
        ArgumentError: All cameras are at the same position.
    """
    views = (*capture.train, *capture.test)
    poses = torch.stack([view.camera.viewmat for view in views]).double().cpu()
    rotations = poses[:, :3, :3]
    positions = centers(poses)
    center = positions.mean(0)
    farthest = float((positions - center).norm(dim=-1).max())
    if not farthest > 1e-9 * max(1.0, float(center.norm())):
        raise ArgumentError(f"capture: expected cameras at different positions, found all {len(views)} at one position")
    scale = 1 / farthest
    # The second row of a world-to-camera rotation is the camera's down direction in the world frame.
    rotation = _rotation_between(-rotations[:, 1].mean(0), torch.tensor(UP, dtype=torch.float64, device="cpu"))
    transform = similarity(rotation, (-scale * rotation @ center).tolist(), scale)

    def moved(pose: Tensor) -> Tensor:
        old = pose.double().cpu()
        translation = scale * (old[:3, :3] @ center + old[:3, 3])
        return similarity(old[:3, :3] @ rotation.T, translation.tolist()).to(pose)

    def transformed(view: View) -> View:
        sparse = view.sparse
        if sparse is not None:
            sparse = sparse * sparse.new_tensor([1.0, 1.0, scale])
        return view.replaced(camera=map_poses(view.camera, moved), sparse=sparse)

    points = capture.points.double().cpu() @ transform[:3, :3].T + transform[:3, 3]
    normalized = dataclasses.replace(
        capture,
        train=tuple(transformed(view) for view in capture.train),
        test=tuple(transformed(view) for view in capture.test),
        points=points.to(capture.points),
        world=transform @ capture.world,
    )
    return normalized, transform


def _rotation_between(start: Tensor, end: Tensor) -> Tensor:
    """Returns the smallest rotation [3, 3] from one direction [3] to another (Rodrigues' formula)."""
    if start.norm() < UP_NORM_MIN:
        return torch.eye(3, dtype=torch.float64, device="cpu")
    a, b = normalize(start, dim=0), normalize(end, dim=0)
    if float(a @ b) < -1 + 1e-12:
        # Opposite directions: a rotation by 180 degrees about any perpendicular axis.
        axis = normalize(
            torch.linalg.cross(a, torch.eye(3, dtype=torch.float64, device="cpu")[a.abs().argmin()]), dim=0
        )
        return 2 * torch.outer(axis, axis) - torch.eye(3, dtype=torch.float64, device="cpu")
    x, y, z = torch.linalg.cross(a, b).tolist()
    skew = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64, device="cpu")
    return torch.eye(3, dtype=torch.float64, device="cpu") + skew + skew @ skew / (1 + a @ b)
