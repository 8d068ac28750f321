"""Normalizes captures: centered at the origin, upright, with the farthest camera at distance 1."""

import dataclasses

import torch
from torch import Tensor

from ..cameras import map_poses
from ..extents import camera_positions
from ..rotation import similarity_scale
from .local_frame import LocalFrame, move_points, move_pose, normalizing_transform
from .views import Capture, View


def normalize_capture(capture: Capture) -> tuple[Capture, Tensor]:
    """Moves the mean camera center to the origin, rotates the mean up direction to -y, and scales to unit size.

    Afterwards, the farthest camera is at distance 1 from the origin; outlier cameras are ignored. Images, intrinsics
    and projections of points do not change; depths are scaled. The capture is not rotated if the cameras have no common
    up direction.

    Returns:
        The normalized capture, whose ``world`` includes the transform, and the transform [4, 4] in fp64 from the old to
        the new world frame.

    Raises:
        ArgumentError: All cameras are at the same position.
    """
    matrices = [view.camera.viewmat for view in (*capture.train, *capture.test)]
    transform = normalizing_transform(torch.stack(matrices).double().cpu(), camera_positions(matrices))
    scale = similarity_scale(transform)

    def transformed(view: View) -> View:
        camera = map_poses(view.camera, lambda pose: move_pose(pose.double().cpu(), transform).to(pose))
        near = None if camera.near is None else scale * camera.near
        sparse = view.sparse
        if sparse is not None:
            sparse = sparse * sparse.new_tensor([1.0, 1.0, scale])
        return view.replaced(camera=dataclasses.replace(camera, near=near), sparse=sparse)

    near = capture.frame.near
    frame = LocalFrame(transform @ capture.world, near=None if near is None else scale * near)
    normalized = dataclasses.replace(
        capture,
        train=tuple(transformed(view) for view in capture.train),
        test=tuple(transformed(view) for view in capture.test),
        points=move_points(capture.points.double().cpu(), transform).to(capture.points),
        world=frame.world,
        frame=frame,
    )
    return normalized, transform
