"""Cameras of viser and cameras of tsplat, which have the same axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...scene.cameras import Camera, viewmat_from_pose
from .renderer import Pose

FOV_MAX = math.radians(179)


def viewmat_of(wxyz: np.ndarray[Any, Any], position: np.ndarray[Any, Any]) -> Tensor:
    """Returns the world-to-camera matrix [4, 4] of a camera-to-world rotation and a position."""
    from viser.transforms import SO3

    rotation = torch.from_numpy(SO3(np.asarray(wxyz)).as_matrix()).double()
    return viewmat_from_pose(rotation, torch.from_numpy(np.asarray(position)).double()).float()


def wxyz_of(viewmat: Tensor) -> np.ndarray[Any, Any]:
    """Returns the camera-to-world rotation of a world-to-camera matrix [4, 4] as a quaternion [4]."""
    from viser.transforms import SO3

    wxyz: np.ndarray[Any, Any] = SO3.from_matrix(viewmat[:3, :3].double().numpy().T).wxyz
    return wxyz


def vertical_fov(camera: Camera) -> float:
    """Returns the vertical field of view in radians."""
    half = 0.5 * camera.height / float(camera.K[1, 1])
    return min(2 * half if camera.model == "fisheye" else 2 * math.atan(half), FOV_MAX)


def fitting_fov(camera: Camera, width: int, height: int) -> float:
    """Returns the vertical field of view in radians at which a canvas shows all of the image of a camera."""
    bars = max(height * camera.width / (max(width, 1) * camera.height), 1.0)
    return min(2 * math.atan(bars * math.tan(vertical_fov(camera) / 2)), FOV_MAX)


def pose_of(camera: Camera, width: int | None = None, height: int | None = None) -> Pose:
    """Returns the pose of a camera, with a canvas of another size if it is given."""
    return Pose(camera.viewmat, vertical_fov(camera), width or camera.width, height or camera.height)


def client_pose(camera: Any) -> Pose:
    """Returns the pose of a client's camera. Canvases have no size while a page loads."""
    width, height = max(int(camera.image_width), 1), max(int(camera.image_height), 1)
    return Pose(viewmat_of(camera.wxyz, camera.position), min(camera.fov, FOV_MAX), width, height)


def add_frustum(scene: Any, name: str, camera: Camera, **options: Any) -> Any:
    """Draws a camera into the scene of a client, and returns its handle. Options are those of viser's frusta."""
    return scene.add_camera_frustum(
        name,
        vertical_fov(camera),
        camera.width / camera.height,
        wxyz=wxyz_of(camera.viewmat),
        position=camera.position.numpy(),
        **options,
    )
