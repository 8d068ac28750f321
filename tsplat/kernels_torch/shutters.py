"""Rolling shutters in vectorized PyTorch: the pose of a camera at a time, and the time at which it exposes a point."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import Tensor

from ..config import SHUTTER_STEPS, CameraSettings, Unscented
from ..formulas.rotations import Triple, rotation_rows
from .lens_pixels import lens_pixel

Pose = tuple[tuple[Triple, Triple, Triple], Triple]
"""The rows of a world-to-camera rotation, and the translation."""


Path = namedtuple("Path", "q0 q1 t0 t1 angle inverse_sine center unused")
"""The path of a camera during the readout. ``q0``, ``q1``: rotations at the start and the end, unit quaternions wxyz at
most 90 degrees apart. ``t0``, ``t1``: translations. ``angle``: the angle between the quaternions in radians.
``inverse_sine``: 1 / sin(angle), 0 for equal rotations. ``center``: the camera center at the end, world frame.
``unused``: 0."""


def path_of(shutter: Tensor) -> Path:
    """Splits ``Cameras.shutter`` [..., 20] into its named values."""
    return Path(*torch.split(shutter, [4, 4, 3, 3, 1, 1, 3, 1], -1))


def rotate(vector: Triple, pose: Pose) -> Triple:
    """Rotates a vector from the world to the camera frame."""
    x, y, z = (w[0] * vector[0] + w[1] * vector[1] + w[2] * vector[2] for w in pose[0])
    return x, y, z


def to_camera(point: Triple, pose: Pose) -> Triple:
    """Transforms a point from the world to the camera frame."""
    x, y, z = (value + t for value, t in zip(rotate(point, pose), pose[1]))
    return x, y, z


def exposed_pixel(
    point: Triple,
    shutter: Tensor,
    lens: Tensor | None,
    intrinsics: tuple[Tensor, ...],
    camera: CameraSettings,
    transform: Unscented,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the pixel (u, v) of a world point when the shutter exposes it, and whether it is seen.

    The time s solves s = time(pixel(R(s) point + t(s))), by fixed-point iteration. The gradient follows from the
    implicit function theorem: with d = ds / dq and the velocity w of the pixel q, dq = dq|_s + w (d dq|_s) / (1 - d w).
    With ``whole_lines``, the time has no gradient.
    """

    def at(time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return lens_pixel(to_camera(point, pose_at(shutter, time)), lens, intrinsics, camera, transform.margin)

    def time_of(u: Tensor, v: Tensor) -> Tensor:
        if not transform.whole_lines:
            return exposure_time(u, v, camera)
        u, v = (_center_of_line(x, camera) for x in (u, v))
        return torch.where(at_start | at_end, exposure_time(u, v, camera), 1.0)

    with torch.no_grad():
        zero = torch.zeros_like(point[0])
        u, v, at_start = at(zero)
        end_u, end_v, at_end = at(zero + 1)
        u, v = torch.where(at_start, u, end_u), torch.where(at_start, v, end_v)
        for _ in range(SHUTTER_STEPS - 1):
            u, v, _ = at(time_of(u, v))
        time = time_of(u, v)
    u, v, seen = at(time)
    if u.requires_grad and not transform.whole_lines:
        moving = time.clone().requires_grad_()
        rate_u, rate_v = (torch.autograd.grad(at(moving)[k].sum(), moving)[0] for k in range(2))
        change = _delay(u - u.detach(), v - v.detach(), camera) / (1 - _delay(rate_u, rate_v, camera))
        u, v = u + rate_u * change, v + rate_v * change
    return u, v, seen & (at_start | at_end)


def _center_of_line(x: Tensor, camera: CameraSettings) -> Tensor:
    """Returns the center of the pixel row or column that contains a coordinate. A border belongs to the one that is
    read later."""
    from_end = camera.readout in ("ROLLING_BOTTOM_TO_TOP", "ROLLING_RIGHT_TO_LEFT")
    return x.ceil() - 0.5 if from_end else x.floor() + 0.5


def _delay(u: Tensor, v: Tensor, camera: CameraSettings) -> Tensor:
    """Returns the difference in exposure time of two pixels that differ by (u, v)."""
    return exposure_time(u, v, camera) - exposure_time(torch.zeros_like(u), torch.zeros_like(v), camera)


def exposure_time(u: Tensor, v: Tensor, camera: CameraSettings) -> Tensor:
    """Returns the exposure time of a pixel: 0 and 1 at the centers of the first and last row or column that is read."""
    if camera.readout == "ROLLING_TOP_TO_BOTTOM":
        return (v - 0.5) / max(camera.height - 1, 1)
    if camera.readout == "ROLLING_BOTTOM_TO_TOP":
        return (camera.height - 0.5 - v) / max(camera.height - 1, 1)
    if camera.readout == "ROLLING_LEFT_TO_RIGHT":
        return (u - 0.5) / max(camera.width - 1, 1)
    return (camera.width - 0.5 - u) / max(camera.width - 1, 1)


def pose_at(shutter: Tensor, time: Tensor) -> Pose:
    """Returns the pose at a time from 0 (start) to 1 (end): slerp of the quaternions, and lerp of the translations."""
    path, time = path_of(shutter), time[:, None]
    rotates = path.inverse_sine > 0
    before = torch.where(rotates, ((1 - time) * path.angle).sin() * path.inverse_sine, 1 - time)
    after = torch.where(rotates, (time * path.angle).sin() * path.inverse_sine, time)
    q = before * path.q0 + after * path.q1
    t = (1 - time) * path.t0 + time * path.t1
    return rotation_rows(torch.nn.functional.normalize(q, dim=-1)), (t[:, 0], t[:, 1], t[:, 2])
