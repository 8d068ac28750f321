"""Camera trajectories: orbits, spirals, and cameras read from a file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_size
from ..errors import FileError
from ..scene.cameras import look_at

TURNS, SWING, DIVE = 2, 0.2, 0.1
"""Spirals: number of turns, and the amplitudes sideways and forward relative to the distance of the target."""

FILE_BYTES_MAX = 64 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera.

    Attributes:
        viewmat: [4, 4] world to camera.
        K: [3, 3] intrinsics in pixels.
        width, height: Image size in pixels.
    """

    viewmat: Tensor
    K: Tensor
    width: int
    height: int


def orbit_around(eye: Sequence[float], target: Sequence[float], up: Sequence[float], frames: int) -> Tensor:
    """Returns the cameras of one turn around a target, starting at `eye`.

    Args:
        eye: [3] first camera position, world frame.
        target: [3] point at the image center, world frame.
        up: [3] axis of the turn, world frame; up in the images.
        frames: Number of cameras.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: As :func:`tsplat.scene.look_at`, or `frames` is not positive.
    """
    check_size("frames", frames)
    axis, middle = (torch.tensor(v, dtype=torch.float64) for v in (up, target))
    axis = axis / axis.norm().clamp_min(1e-12)
    offset = torch.tensor(eye, dtype=torch.float64) - middle
    along = (offset @ axis) * axis
    across = offset - along
    side = axis.cross(across, -1)
    angles = [2 * math.pi * i / frames for i in range(frames)]
    return torch.stack(
        [look_at((middle + along + math.cos(a) * across + math.sin(a) * side).tolist(), target, up) for a in angles]
    )


def spiral_at(eye: Sequence[float], target: Sequence[float], up: Sequence[float], frames: int) -> Tensor:
    """Returns the cameras of a closed spiral around `eye` that looks at `target`.

    The usual trajectory for forward-facing scenes (Mildenhall et al., 2019, "Local light field fusion").

    Args:
        eye: [3] center of the spiral, world frame.
        target, up, frames: As for :func:`orbit_around`.

    Returns:
        World-to-camera matrices [frames, 4, 4].

    Raises:
        ArgumentError: As :func:`tsplat.scene.look_at`, or `frames` is not positive.
    """
    check_size("frames", frames)
    viewmat = look_at(eye, target, up).double()
    start = torch.tensor(eye, dtype=torch.float64)
    distance = float((start - torch.tensor(target, dtype=torch.float64)).norm())
    matrices = []
    for i in range(frames):
        a = 2 * math.pi * i / frames
        swing = (SWING * math.cos(TURNS * a), SWING * math.sin(TURNS * a), DIVE * math.sin(a))
        offset = distance * torch.tensor(swing, dtype=torch.float64) @ viewmat[:3, :3]
        matrices.append(look_at((start + offset).tolist(), target, up))
    return torch.stack(matrices)


def read_cameras(path: str | os.PathLike[str]) -> list[Camera]:
    """Reads the `cameras.json` of Inria's code: a list of cameras with width, height, position, rotation, fx and fy.

    Positions and rotations (a list of rows) are camera to world; cameras look along +z, with y down.

    Raises:
        FileError: The file cannot be read, or does not have this form.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            listed = json.loads(file.read(FILE_BYTES_MAX))
        cameras = [_camera(camera) for camera in listed]
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, LookupError, TypeError, RuntimeError, RecursionError) as error:
        raise FileError(
            f"{path}: expected a list of cameras with width, height, position, rotation, fx and fy ({str(error)[:120]})"
        ) from error
    if not cameras:
        raise FileError(f"{path}: contains no cameras")
    return cameras


def _camera(camera: dict[str, Any]) -> Camera:
    width, height = camera["width"], camera["height"]
    check_size("width", width)
    check_size("height", height)
    rotation = torch.tensor(camera["rotation"], dtype=torch.float64).reshape(3, 3)
    position = torch.tensor(camera["position"], dtype=torch.float64).reshape(3)
    fx, fy = float(camera["fx"]), float(camera["fy"])
    if not (fx > 0 and fy > 0 and math.isfinite(fx * fy) and rotation.isfinite().all() and position.isfinite().all()):
        raise ValueError("expected positive focal lengths and finite numbers")
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3, :3] = rotation.T
    viewmat[:3, 3] = -rotation.T @ position
    K = torch.tensor([[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]])
    return Camera(viewmat.float(), K, width, height)
